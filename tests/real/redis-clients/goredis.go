package main

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// goRedis uses the client as its users do and compares each answer with what Redis documents.
func goRedis(socket string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: socket})
	defer c.Close()
	for _, step := range []struct {
		name string
		run  func(context.Context, *redis.Client) error
	}{
		{"values", values}, {"expiry", expiry}, {"pipeline", pipeline}, {"transaction", transaction}, {"watch", watch}, {"scan", scan},
	} {
		if err := step.run(ctx, c); err != nil {
			return fmt.Errorf("go-redis, %s: %w", step.name, err)
		}
	}
	return nil
}

func is[T comparable](what string, got T, err error, want T) error {
	if err != nil || got != want {
		return fmt.Errorf("%s is %v (%v), not %v", what, got, err, want)
	}
	return nil
}

func values(ctx context.Context, c *redis.Client) error {
	binary := strings.Repeat("\x00\r\n\xff$*", 10_000)
	set, err := c.Set(ctx, "go:value", binary, 0).Result()
	get, getErr := c.Get(ctx, "go:value").Result()
	_, missing := c.Get(ctx, "go:missing").Result()
	nx, nxErr := c.SetNX(ctx, "go:value", "other", 0).Result()
	n, nErr := c.IncrBy(ctx, "go:count", 41).Result()
	_, kind := c.Incr(ctx, "go:value").Result()
	many, manyErr := c.MGet(ctx, "go:count", "go:missing").Result()
	del, delErr := c.Del(ctx, "go:value", "go:count", "go:missing").Result()
	if !errors.Is(missing, redis.Nil) {
		return fmt.Errorf("a missing key answers %v, not nil", missing)
	}
	if kind == nil || !strings.Contains(kind.Error(), "not an integer") {
		return fmt.Errorf("INCR of a text answers %v", kind)
	}
	if manyErr != nil || many[0] != "41" || many[1] != nil {
		return fmt.Errorf("MGET is %v (%v)", many, manyErr)
	}
	return errors.Join(is("SET", set, err, "OK"), is("GET", get, getErr, binary), is("SETNX", nx, nxErr, false),
		is("INCRBY", n, nErr, 41), is("DEL", del, delErr, 2))
}

func expiry(ctx context.Context, c *redis.Client) error {
	if err := c.Set(ctx, "go:soon", "gone", 300*time.Millisecond).Err(); err != nil {
		return err
	}
	ttl, err := c.PTTL(ctx, "go:soon").Result()
	if err != nil || ttl <= 0 || ttl > 300*time.Millisecond {
		return fmt.Errorf("PTTL is %v (%v)", ttl, err)
	}
	time.Sleep(400 * time.Millisecond)
	n, err := c.Exists(ctx, "go:soon").Result()
	return is("EXISTS of an expired key", n, err, 0)
}

// A get of a key that was just set waits for the set, and nothing else waits for both: the pipeline ends within the client's 3 s.
func pipeline(ctx context.Context, c *redis.Client) error {
	got, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := 0; i < 500; i++ {
			p.Set(ctx, fmt.Sprintf("go:p%d", i), i, 0)
			p.Get(ctx, fmt.Sprintf("go:p%d", i))
		}
		return nil
	})
	if err != nil || len(got) != 1000 {
		return fmt.Errorf("%d answers (%v)", len(got), err)
	}
	for i := 0; i < 500; i++ {
		if n, err := got[2*i+1].(*redis.StringCmd).Int(); err != nil || n != i {
			return fmt.Errorf("GET after SET in one pipeline is %d (%v), not %d", n, err, i)
		}
	}
	return nil
}

func transaction(ctx context.Context, c *redis.Client) error {
	var last *redis.IntCmd
	_, err := c.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.Set(ctx, "{go}a", 1, 0)
		last = p.Incr(ctx, "{go}a")
		return nil
	})
	if err := is("INCR in a transaction", last.Val(), err, 2); err != nil {
		return err
	}
	_, err = c.TxPipelined(ctx, func(p redis.Pipeliner) error {
		for i := 0; i < 20; i++ {
			p.Set(ctx, fmt.Sprintf("go:cross%d", i), i, 0)
		}
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "CROSSSLOT") {
		return fmt.Errorf("a transaction of several partitions answers %v", err)
	}
	n, err := c.Exists(ctx, "go:cross0", "go:cross19").Result()
	return is("EXISTS after a refused transaction", n, err, 0)
}

// Ten clients each add to one number under WATCH: a lost update would be missing in the sum.
func watch(ctx context.Context, c *redis.Client) error {
	if err := c.Set(ctx, "{go}sum", 0, 0).Err(); err != nil {
		return err
	}
	add := func(tx *redis.Tx) error {
		n, err := tx.Get(ctx, "{go}sum").Int()
		if err != nil {
			return err
		}
		_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error { return p.Set(ctx, "{go}sum", n+1, 0).Err() })
		return err
	}
	var all sync.WaitGroup
	failed := make(chan error, 10)
	for i := 0; i < 10; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for done := 0; done < 10; {
				switch err := c.Watch(ctx, add, "{go}sum"); {
				case err == nil:
					done++
				case !errors.Is(err, redis.TxFailedErr):
					failed <- err
					return
				}
			}
		}()
	}
	all.Wait()
	select {
	case err := <-failed:
		return err
	default:
	}
	n, err := c.Get(ctx, "{go}sum").Int()
	return is("the sum", n, err, 100)
}

func scan(ctx context.Context, c *redis.Client) error {
	for i := 0; i < 50; i++ {
		if err := c.Set(ctx, fmt.Sprintf("go:scan%02d", i), i, 0).Err(); err != nil {
			return err
		}
	}
	var keys []string
	it := c.Scan(ctx, 0, "go:scan*", 7).Iterator()
	for it.Next(ctx) {
		keys = append(keys, it.Val())
	}
	sort.Strings(keys)
	if it.Err() != nil || len(keys) != 50 || keys[0] != "go:scan00" || keys[49] != "go:scan49" {
		return fmt.Errorf("SCAN finds %d keys (%v)", len(keys), it.Err())
	}
	return nil
}

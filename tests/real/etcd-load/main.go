// A load of puts or linearizable gets of 1 KiB on an etcd cluster, as redis-clients/load.go puts it on Redis and on a rack:
// `etcd-load fill ENDPOINTS`, `etcd-load load ENDPOINTS set|get SECONDS CLIENTS`.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	etcd "go.etcd.io/etcd/client/v3"
)

const (
	loadKeys  = 10_000
	loadBytes = 1024
	// Puts of a transaction of fill: etcd's default limit is 128.
	loadBatch = 100
)

func key(n int) string { return fmt.Sprintf("key:%06d", n) }

func connect(endpoints string) (*etcd.Client, error) {
	return etcd.New(etcd.Config{Endpoints: strings.Split(endpoints, ","), DialTimeout: 10 * time.Second})
}

// fill gives every key a value.
func fill(ctx context.Context, endpoints string) error {
	c, err := connect(endpoints)
	if err != nil {
		return err
	}
	defer c.Close()
	value := strings.Repeat("x", loadBytes)
	for n := 0; n < loadKeys; n += loadBatch {
		puts := []etcd.Op{}
		for i := 0; i < loadBatch; i++ {
			puts = append(puts, etcd.OpPut(key(n+i), value))
		}
		if _, err := c.Txn(ctx).Then(puts...).Commit(); err != nil {
			return err
		}
	}
	return nil
}

// client has a connection of its own and returns the time of each request.
func client(ctx context.Context, endpoints string, get bool, number int, end time.Time) ([]time.Duration, error) {
	c, err := connect(endpoints)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	draw, value, took := rand.New(rand.NewSource(int64(number))), strings.Repeat("y", loadBytes), []time.Duration{}
	for time.Now().Before(end) {
		k, begun := key(draw.Intn(loadKeys)), time.Now()
		if get {
			r, err := c.Get(ctx, k)
			if err != nil || len(r.Kvs) != 1 || len(r.Kvs[0].Value) != loadBytes {
				return nil, fmt.Errorf("get %s: %v", k, err)
			}
		} else if _, err := c.Put(ctx, k, value); err != nil {
			return nil, err
		}
		took = append(took, time.Since(begun))
	}
	return took, nil
}

func load(ctx context.Context, endpoints string, get bool, span time.Duration, clients int) error {
	begun := time.Now()
	var all []time.Duration
	var failed error
	var lock sync.Mutex
	var wait sync.WaitGroup
	for n := 0; n < clients; n++ {
		wait.Add(1)
		go func(n int) {
			defer wait.Done()
			took, err := client(ctx, endpoints, get, n, begun.Add(span))
			lock.Lock()
			defer lock.Unlock()
			all = append(all, took...)
			if err != nil {
				failed = err
			}
		}(n)
	}
	wait.Wait()
	if failed != nil || len(all) == 0 {
		return fmt.Errorf("load: %v", failed)
	}
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	at := func(percent int) float64 { return float64(all[(len(all)-1)*percent/100].Nanoseconds()) / 1e3 }
	return json.NewEncoder(os.Stdout).Encode(map[string]float64{
		"requests": float64(len(all)), "per_s": float64(len(all)) / time.Since(begun).Seconds(), "p50_us": at(50), "p99_us": at(99),
	})
}

func run(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	switch {
	case len(args) == 2 && args[0] == "fill":
		return fill(ctx, args[1])
	case len(args) == 5 && args[0] == "load" && (args[2] == "set" || args[2] == "get"):
		seconds, err := strconv.Atoi(args[3])
		clients, err2 := strconv.Atoi(args[4])
		if err != nil || err2 != nil || seconds < 1 || clients < 1 {
			return fmt.Errorf("SECONDS and CLIENTS are %q and %q: from 1", args[3], args[4])
		}
		return load(ctx, args[1], args[2] == "get", time.Duration(seconds)*time.Second, clients)
	}
	return fmt.Errorf("usage: etcd-load fill ENDPOINTS | load ENDPOINTS set|get SECONDS CLIENTS")
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

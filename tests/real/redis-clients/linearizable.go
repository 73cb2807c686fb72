package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"
)

// A command on one key and its answer. A command that got no answer, or an error, may have happened at any time after its start, or
// never: its answer is unknown.
type command struct {
	name, key, value string
}

type answer struct {
	value   string // "" of a key that is not there
	unknown bool
}

const keyCount = 6

// registers is what Redis documents for these commands, key by key.
var registers = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, o := range history {
			key := o.Input.(command).key
			byKey[key] = append(byKey[key], o)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		now, next := state.(string), state.(string)
		c, a := input.(command), output.(answer)
		says := now
		switch c.name {
		case "get":
		case "set":
			says, next = "OK", c.value
		case "getset":
			next = c.value
		case "setnx":
			says = strconv.FormatBool(now == "")
			if now == "" {
				next = c.value
			}
		case "del":
			says, next = strconv.FormatBool(now != ""), ""
		case "append":
			next = now + c.value
			says = strconv.Itoa(len(next))
		}
		return a.unknown || a.value == says, next
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%v -> %v", input, output) },
}

func ask(ctx context.Context, c *redis.Client, cmd command) (string, error) {
	var value string
	var err error
	switch cmd.name {
	case "get":
		value, err = c.Get(ctx, cmd.key).Result()
	case "set":
		value, err = c.Set(ctx, cmd.key, cmd.value, 0).Result()
	case "getset":
		value, err = c.GetSet(ctx, cmd.key, cmd.value).Result()
	case "setnx":
		var done bool
		done, err = c.SetNX(ctx, cmd.key, cmd.value, 0).Result()
		value = strconv.FormatBool(done)
	case "del":
		var n int64
		n, err = c.Del(ctx, cmd.key).Result()
		value = strconv.FormatBool(n == 1)
	case "append":
		var n int64
		n, err = c.Append(ctx, cmd.key, cmd.value).Result()
		value = strconv.FormatInt(n, 10)
	}
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return value, err
}

// linearizable lets clients run random commands on a few keys and checks the history. A history that Porcupine can't decide in a
// minute fails, and so does one in which most commands have no answer.
func linearizable(socket string, span time.Duration, clients int, seed int64) error {
	// One try for each command: a client that repeats a command by itself would make two of one.
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: socket, MaxRetries: -1, PoolSize: clients, ReadTimeout: 5 * time.Second})
	defer c.Close()
	ctx := context.Background()
	run := strconv.FormatInt(time.Now().UnixNano(), 36)
	begun := time.Now()
	var lock sync.Mutex
	var history []porcupine.Operation
	var slowest time.Duration
	unknown := 0
	var all sync.WaitGroup
	for id := 0; id < clients; id++ {
		all.Add(1)
		go func(id int) {
			defer all.Done()
			random := rand.New(rand.NewSource(seed*1000 + int64(id)))
			names := []string{"get", "get", "get", "set", "getset", "setnx", "del", "append"}
			for i := 0; time.Since(begun) < span; i++ {
				cmd := command{names[random.Intn(len(names))], fmt.Sprintf("lin:%s:%d", run, random.Intn(keyCount)), fmt.Sprintf("%d.%d ", id, i)}
				call := time.Since(begun)
				value, err := ask(ctx, c, cmd)
				back := time.Since(begun)
				lock.Lock()
				if back-call > slowest {
					slowest = back - call
				}
				op := porcupine.Operation{ClientId: id, Input: cmd, Call: int64(call), Output: answer{value: value}, Return: int64(back)}
				if err != nil {
					unknown++
					op.Output, op.Return = answer{unknown: true}, math.MaxInt64
				}
				if err == nil || cmd.name != "get" {
					history = append(history, op)
				}
				lock.Unlock()
				if err != nil {
					time.Sleep(20 * time.Millisecond)
				}
			}
		}(id)
	}
	all.Wait()
	result, info := porcupine.CheckOperationsVerbose(registers, history, time.Minute)
	fmt.Printf("%d commands, %d without an answer, the slowest %d ms: %s\n", len(history), unknown, slowest.Milliseconds(), result)
	if result != porcupine.Ok {
		if f, err := os.CreateTemp("", "history-*.html"); err == nil {
			_ = porcupine.Visualize(registers, info, f)
			fmt.Println("the history is in", f.Name())
		}
		return fmt.Errorf("the history is not linearizable: %s", result)
	}
	if len(history) < 100 || unknown*2 > len(history) {
		return fmt.Errorf("too few commands have an answer")
	}
	return nil
}

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"
)

const (
	loadKeys  = 10_000
	loadBytes = 1024
	// SETs of a write of fill; a divisor of the keys.
	loadBatch = 50
)

// A load of SETs or GETs of 1 KiB: `pipelined` commands at a time on each of `clients` connections. With `replicas`, a SET is
// answered when that many replicas have it: `WAIT` follows it in the same write.
type load struct {
	socket                       string
	span                         time.Duration
	clients, pipelined, replicas int
	get                          bool
}

func setCommand(key int, value []byte) []byte {
	name := fmt.Sprintf("key:%06d", key)
	head := fmt.Sprintf("*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n", len(name), name, len(value))
	return append(append([]byte(head), value...), "\r\n"...)
}

func getCommand(key int) []byte {
	name := fmt.Sprintf("key:%06d", key)
	return []byte(fmt.Sprintf("*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", len(name), name))
}

// reply reads one answer, which must be as long as it says; nil is an error.
func reply(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = line[:len(line)-2]
	if line[0] != '$' {
		return line, nil
	}
	n, err := strconv.Atoi(line[1:])
	if err != nil || n < 0 {
		return "", fmt.Errorf("%q is no value", line)
	}
	value := make([]byte, n+2)
	_, err = io.ReadFull(r, value)
	return string(value[:n]), err
}

// fill gives every key a value.
func fill(socket string) error {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer c.Close()
	r, value := bufio.NewReader(c), bytes.Repeat([]byte("x"), loadBytes)
	for key := 0; key < loadKeys; key += loadBatch {
		batch := []byte{}
		for i := 0; i < loadBatch; i++ {
			batch = append(batch, setCommand(key+i, value)...)
		}
		if _, err := c.Write(batch); err != nil {
			return err
		}
		for i := 0; i < loadBatch; i++ {
			if a, err := reply(r); err != nil || a != "+OK" {
				return fmt.Errorf("SET: %q, %v", a, err)
			}
		}
	}
	return nil
}

// client returns the time of each batch.
func (l load) client(number int, end time.Time) ([]time.Duration, error) {
	c, err := net.Dial("unix", l.socket)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	r, draw := bufio.NewReader(c), rand.New(rand.NewSource(int64(number)))
	value, took := bytes.Repeat([]byte("y"), loadBytes), []time.Duration{}
	for time.Now().Before(end) {
		batch := []byte{}
		for i := 0; i < l.pipelined; i++ {
			if l.get {
				batch = append(batch, getCommand(draw.Intn(loadKeys))...)
				continue
			}
			batch = append(batch, setCommand(draw.Intn(loadKeys), value)...)
			if l.replicas > 0 {
				batch = append(batch, fmt.Sprintf("*3\r\n$4\r\nWAIT\r\n$1\r\n%d\r\n$1\r\n0\r\n", l.replicas)...)
			}
		}
		begun := time.Now()
		if _, err := c.Write(batch); err != nil {
			return nil, err
		}
		for i := 0; i < l.pipelined; i++ {
			a, err := reply(r)
			if err != nil || l.get && len(a) != loadBytes || !l.get && a != "+OK" {
				return nil, fmt.Errorf("%q, %v", a, err)
			}
			if l.replicas > 0 && !l.get {
				if a, err := reply(r); err != nil || a != ":"+strconv.Itoa(l.replicas) {
					return nil, fmt.Errorf("WAIT: %q, %v", a, err)
				}
			}
		}
		took = append(took, time.Since(begun))
	}
	return took, nil
}

func (l load) run() error {
	begun := time.Now()
	var all []time.Duration
	var failed error
	var lock sync.Mutex
	var wait sync.WaitGroup
	for n := 0; n < l.clients; n++ {
		wait.Add(1)
		go func(n int) {
			defer wait.Done()
			took, err := l.client(n, begun.Add(l.span))
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
	requests := len(all) * l.pipelined
	return json.NewEncoder(os.Stdout).Encode(map[string]float64{
		"requests": float64(requests), "per_s": float64(requests) / time.Since(begun).Seconds(), "p50_us": at(50), "p99_us": at(99),
	})
}

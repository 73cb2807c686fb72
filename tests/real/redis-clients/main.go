// Redis clients written in Go against a rack's keys: what go-redis does with commands, pipelines and transactions, and whether a
// history of concurrent commands is linearizable (checked with Porcupine).
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

const usage = "usage: clients go-redis SOCKET | linearizable SOCKET SECONDS CLIENTS SEED | fill SOCKET | load SOCKET set|get SECONDS CLIENTS PIPELINED REPLICAS"

func main() {
	var err error
	switch {
	case len(os.Args) == 3 && os.Args[1] == "go-redis":
		err = goRedis(os.Args[2])
	case len(os.Args) == 6 && os.Args[1] == "linearizable":
		var n []int
		if n, err = numbers(os.Args[3:]); err == nil {
			err = linearizable(os.Args[2], time.Duration(n[0])*time.Second, n[1], int64(n[2]))
		}
	case len(os.Args) == 3 && os.Args[1] == "fill":
		err = fill(os.Args[2])
	case len(os.Args) == 8 && os.Args[1] == "load" && (os.Args[3] == "set" || os.Args[3] == "get"):
		var n []int
		if n, err = numbers(os.Args[4:]); err == nil {
			err = load{os.Args[2], time.Duration(n[0]) * time.Second, n[1], n[2], n[3], os.Args[3] == "get"}.run()
		}
	default:
		err = fmt.Errorf(usage)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func numbers(texts []string) ([]int, error) {
	all := []int{}
	for _, text := range texts {
		n, err := strconv.Atoi(text)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

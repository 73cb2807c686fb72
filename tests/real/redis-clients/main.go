// Redis clients written in Go against a rack's keys: what go-redis does with commands, pipelines and transactions, and whether a
// history of concurrent commands is linearizable (checked with Porcupine).
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

const usage = "usage: clients go-redis SOCKET | linearizable SOCKET SECONDS CLIENTS SEED"

func main() {
	var err error
	switch {
	case len(os.Args) == 3 && os.Args[1] == "go-redis":
		err = goRedis(os.Args[2])
	case len(os.Args) == 6 && os.Args[1] == "linearizable":
		var n [3]int
		for i := range n {
			if n[i], err = strconv.Atoi(os.Args[3+i]); err != nil {
				break
			}
		}
		if err == nil {
			err = linearizable(os.Args[2], time.Duration(n[0])*time.Second, n[1], int64(n[2]))
		}
	default:
		err = fmt.Errorf(usage)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

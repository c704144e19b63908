// Command probe is the only program of the image that the tests run.
package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"time"
)

func main() {
	switch os.Args[1] {
	case "cat":
		_, _ = io.Copy(os.Stdout, os.Stdin)
	case "exit":
		code, _ := strconv.Atoi(os.Args[2])
		fmt.Fprintln(os.Stderr, "ending with", code)
		os.Exit(code)
	case "sleep":
		fmt.Println("asleep")
		time.Sleep(time.Hour)
	case "eat":
		n, _ := strconv.Atoi(os.Args[2])
		b := make([]byte, n<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		fmt.Println("ate", len(b))
	case "env":
		dir, _ := os.Getwd()
		fmt.Println(os.Getenv("A"), dir, os.Getuid(), os.Getgid())
	case "print":
		n, _ := strconv.Atoi(os.Args[2])
		b := make([]byte, 1<<20)
		for range n {
			_, _ = os.Stdout.Write(b)
		}
	}
}

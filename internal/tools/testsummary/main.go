// Command testsummary makes test runs readable: one line for each package as it
// ends, everything about a test that failed, the reason of each that was
// skipped, and nothing else.
//
//	testsummary go [-tally FILE] NAME ARGS...      runs `go test -json ARGS...`
//	testsummary junit [-tally FILE] NAME REPORT    reads what pytest --junitxml wrote
//	testsummary total FILE                         adds up the tally
//
// The tally is a file to which each run adds a line, for total to read. The exit
// status is 0 if nothing failed, 1 if something did, 2 for wrong usage.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"time"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	usage := func() int {
		_, _ = fmt.Fprintln(stderr, "usage: testsummary go|junit [-tally FILE] NAME ARGS..., or testsummary total FILE")
		return 2
	}
	if len(args) < 2 {
		return usage()
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(stderr)
	tallyFile := flags.String("tally", "", "append the counts to this file")
	if flags.Parse(args[1:]) != nil {
		return 2
	}
	rest := flags.Args()

	var c counts
	var err error
	var took time.Duration
	began := time.Now()
	switch {
	case args[0] == "go" && len(rest) >= 2:
		c, err = goTest(context.Background(), rest[1:], stdout, stderr)
		took = time.Since(began)
	case args[0] == "junit" && len(rest) == 2:
		c, took, err = junit(rest[1], stdout)
	case args[0] == "total" && len(rest) == 1:
		c, err = total(rest[0])
		if err == nil {
			_, _ = fmt.Fprintln(stdout, c)
		}
	default:
		return usage()
	}
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "testsummary:", err)
		c.Failed++
	}
	if args[0] != "total" {
		_, _ = fmt.Fprintf(stdout, "%s: %s (%.0f s)\n", rest[0], c, took.Seconds())
	}
	if *tallyFile != "" {
		if err := appendTally(*tallyFile, c); err != nil {
			_, _ = fmt.Fprintln(stderr, "testsummary:", err)
			return 1
		}
	}
	if c.Failed > 0 {
		return 1
	}
	return 0
}

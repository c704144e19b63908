// Command images measures the image system against what it replaces: files that
// were extracted beforehand, tar, a bare range read. Each sample of Brisk's has the
// rival's right after it, and the ratio is theirs.
//
// It keeps what takes minutes to make in a directory of its own, and writes
// bench/results/images.json. Usage: make bench-images, or
//
//	go run ./bench/images [-parts mounts,import,share,memory] [-n 7]
//
// Run it on a quiet machine, as root. The page cache is dropped for samples that
// are called cold, for everybody.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"brisk.dev/brisk/bench/report"
)

type options struct {
	brisk, dir, out string
	n               int
	ctx             context.Context
}

// parts are what can be measured by itself.
var parts = []struct {
	name    string
	measure func(o options) ([]report.Row, error)
}{
	{"mounts", mounts},
	{"import", imports},
	{"import-cold", coldImports},
	{"first", first},
	{"touch", touches},
	{"share", share},
	{"memory", memory},
	{"import-memory", importMemory},
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == operationArg {
		operate(os.Args[2:])
		return
	}
	var o options
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	flag.StringVar(&o.brisk, "brisk", "bin/brisk", "`path` of the binary")
	flag.StringVar(&o.dir, "dir", "/var/cache/brisk/bench-images", "`directory` for what is kept between runs")
	flag.StringVar(&o.out, "out", "bench/results", "`directory` of the results")
	flag.IntVar(&o.n, "n", 7, "samples of each condition")
	chosen := flag.String("parts", strings.Join(names, ","), "which `parts` to run")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	o.ctx = ctx
	if err := run(o, strings.Split(*chosen, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "bench images:", err)
		os.Exit(1)
	}
}

func run(o options, chosen []string) (err error) {
	if o.brisk, err = filepath.Abs(o.brisk); err != nil {
		return err
	}
	if err := os.MkdirAll(o.dir, 0o700); err != nil {
		return err
	}
	rep := report.New()
	for _, name := range chosen {
		found := false
		for _, p := range parts {
			if p.name != name {
				continue
			}
			found = true
			rows, err := p.measure(o)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			rep.Rows = append(rep.Rows, rows...)
		}
		if !found {
			return fmt.Errorf("there is no part %q", name)
		}
	}
	if err := rep.Print(os.Stdout); err != nil {
		return err
	}
	return rep.Save(o.out, "images", len(chosen) < len(parts))
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

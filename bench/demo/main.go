// Command demo prints what `make run` ends with: what a first call, cold starts
// from a snapshot and warm calls of a numpy function take on this machine, from
// the user's program, and what the store holds for them.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"text/tabwriter"
	"time"

	"brisk.dev/brisk/bench/drive"
	"brisk.dev/brisk/bench/report"
	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/scheduler"
	"brisk.dev/brisk/internal/server"
)

func main() {
	brisk := flag.String("brisk", "bin/brisk", "`path` of the binary")
	data := flag.String("data", "", "data `directory` of the server")
	n := flag.Int("n", 8, "cold starts to measure")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *brisk, *data, *n); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

type measured struct {
	record                scheduler.CallRecord // of the first call
	first, restored, warm []float64
	image                 string // the beginning of its digest
}

func run(ctx context.Context, brisk, data string, n int) error {
	paths, err := server.PathsOf(data)
	if err != nil {
		return err
	}
	p, err := drive.Start(brisk, data, "bench/cold/numpy_mean.py", "BRISK_BENCH_RUN="+strconv.FormatInt(time.Now().UnixNano(), 36))
	if err != nil {
		return err
	}
	s := &drive.Server{Client: api.Dial(paths.Socket(), "default"), Paths: paths}
	defer s.Client.Close()
	m, err := measure(ctx, s, p, n)
	if err != nil {
		return err
	}
	if err := p.End(); err != nil {
		return err
	}
	return show(ctx, s.Client, data, m)
}

func measure(ctx context.Context, s *drive.Server, p *drive.Program, n int) (m measured, err error) {
	// A slow machine may let an instance go before its next call: such a call is
	// one of another kind, and no sample.
	call := func(want string, into *[]float64) error {
		a, err := p.Call()
		if err != nil {
			return err
		}
		calls, err := s.Client.Calls(ctx, 1)
		if err != nil || len(calls) == 0 {
			return fmt.Errorf("the call is not on record: %w", err)
		}
		if m.record = calls[0]; m.record.Start == want {
			*into = append(*into, a.MS)
		}
		return nil
	}
	if err := call("cold", &m.first); err != nil {
		return m, err
	}
	first := m.record
	defer func() { m.record = first }()
	if err := s.WaitSnapshot(ctx, first.Digest.String()); err != nil {
		return m, err
	}
	for range n {
		if err := s.SettleOf(ctx, "bench-numpy", 1); err != nil {
			return m, err
		}
		if err := call("restored", &m.restored); err != nil {
			return m, err
		}
		if live, err := s.Client.Instances(ctx); err == nil && m.image == "" {
			for _, i := range live {
				if i.App == "bench-numpy" {
					m.image = i.Image
				}
			}
		}
		for range 5 {
			if err := call("warm", &m.warm); err != nil {
				return m, err
			}
		}
	}
	return m, nil
}

func show(ctx context.Context, c *api.Client, data string, m measured) error {
	st, err := c.StoreStats(ctx)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\na numpy function, from .remote() to its value\tn\tmedian\tmin\tmax")
	line := func(what string, samples []float64) {
		if len(samples) == 0 {
			fmt.Fprintf(w, "%s\t0\n", what)
			return
		}
		s := report.Of(samples)
		fmt.Fprintf(w, "%s\t%d\t%.1f ms\t%.1f ms\t%.1f ms\n", what, len(samples), s.Median, s.Min, s.Max)
	}
	line("first call ever: start Python, import numpy", m.first)
	line("cold start from the snapshot", m.restored)
	line("warm call", m.warm)
	if err := w.Flush(); err != nil {
		return err
	}
	if d, err := c.Image(ctx, m.image); err == nil && d.Read != nil {
		fmt.Printf("\nof its image's %.1f MB, %.1f MB have been read since this server started: %.1f MB from the store, %.1f MB from the machine's cache\n",
			float64(d.Bytes)/1e6, float64(d.Read.OriginBytes+d.Read.CacheBytes)/1e6, float64(d.Read.OriginBytes)/1e6, float64(d.Read.CacheBytes)/1e6)
	}
	fmt.Printf("stored: %d images with %.1f MB of files take %.1f MB, since they share chunks and are compressed\n", st.Images, float64(st.ImageBytes)/1e6, float64(st.OriginBytes)/1e6)
	fmt.Printf("explain it: bin/brisk calls show %s --data %s\n", m.record.ID, data)
	return nil
}

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"brisk.dev/brisk/bench/drive"
	"brisk.dev/brisk/bench/report"
	"brisk.dev/brisk/internal/scheduler"
)

// on runs a program on a server of its own, and both to their end.
func on(ctx context.Context, o options, file string, do func(*drive.Server, *drive.Program) error) (err error) {
	s, err := drive.Up(ctx, o.brisk, o.data, 1)
	if err != nil {
		return err
	}
	defer func() {
		if derr := s.Down(); err == nil {
			err = derr
		}
	}()
	p, err := drive.Start(o.brisk, o.data, filepath.Join("bench", "cold", file))
	if err != nil {
		return err
	}
	defer func() {
		if perr := p.End(); err == nil {
			err = perr
		}
	}()
	return do(s, p)
}

func lastCall(ctx context.Context, s *drive.Server) (scheduler.CallRecord, error) {
	calls, err := s.Client.Calls(ctx, 1)
	if err != nil || len(calls) != 1 {
		return scheduler.CallRecord{}, fmt.Errorf("the call is not on record: %w", err)
	}
	return calls[0], nil
}

// echo measures what Brisk adds to a warm call, and what the server costs.
func echo(ctx context.Context, o options) (rows []report.Row, err error) {
	err = on(ctx, o, "echo.py", func(s *drive.Server, p *drive.Program) error {
		time.Sleep(2 * time.Second) // the memory of a server that has done nothing yet
		rss, err := s.RSS()
		if err != nil {
			return err
		}
		if _, err := p.Call(); err != nil {
			return err
		}
		last, err := lastCall(ctx, s)
		if err != nil {
			return err
		}
		if err := s.WaitSnapshot(ctx, last.Digest.String()); err != nil {
			return err
		}
		progress("warm calls")
		var ms []float64
		for i := range 1100 {
			a, err := p.Call()
			if err != nil {
				return err
			}
			if i >= 100 {
				ms = append(ms, a.MS)
			}
		}
		slices.Sort(ms)
		rows = []report.Row{
			report.Value("warm call, p50", "from the SDK", len(ms), ms[len(ms)/2], "ms", 2),
			report.Value("warm call, p99", "from the SDK", len(ms), ms[len(ms)*99/100], "ms", 5),
			report.Value("brisk up to ready", "data directory with images", 1, float64(s.Ready.Milliseconds()), "ms", 1000),
			report.Value("idle server", "resident memory", 1, float64(rss)/1e6, "MB", 100),
		}
		return nil
	})
	return rows, err
}

// many measures how long an image of 40,000 files takes from its manifest to a
// mounted root, on a server that has not opened it yet.
func many(ctx context.Context, o options) ([]report.Row, error) {
	var ms []float64
	for range 5 {
		progress("an image with many files")
		err := on(ctx, o, "many_files.py", func(s *drive.Server, p *drive.Program) error {
			a, err := p.Call()
			if err != nil {
				return err
			}
			if string(a.Value) != `"100/300"` {
				return fmt.Errorf("read %s", a.Value)
			}
			last, err := lastCall(ctx, s)
			if err != nil {
				return err
			}
			for _, st := range last.Steps {
				if st.Name == "mount image" && st.Note == "" {
					ms = append(ms, st.MS)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if len(ms) == 0 {
		return nil, fmt.Errorf("no start has mounted the image")
	}
	return []report.Row{report.Value("open an image of 40,000 files", "manifest local, median", len(ms), report.Of(ms).Median, "ms", 50)}, nil
}

// Command cold measures cold starts against bare runsc: a function restored by
// Brisk, from `.remote()` to its value in the user's program, and runsc's own
// restore of the same snapshot to its first drive.Answer, sample by sample in turn.
//
// It runs on a data directory of its own, which it keeps (images take minutes to
// build), and writes bench/results/cold.json. Usage: make bench-cold, or
//
//	go run ./bench/cold -brisk bin/brisk -n 20 [-cases numpy,torch]
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"brisk.dev/brisk/bench/drive"
	"brisk.dev/brisk/bench/report"
)

// benchCase is one function; targets are those of the median ratio.
type benchCase struct {
	name, file     string
	created, fresh float64 // target with and without a sandbox created beforehand
	input          []byte  // pickle of the call's arguments, for the rival
	rival          string
	kept           bundle // of a created sandbox
}

// The rival calls with the very arguments of the programs: ((list(range(20)),), {})
// and ((), {}) as pickles of protocol 5.
var cases = []benchCase{
	{
		name: "numpy mean", file: "numpy_mean.py", created: 0.7, fresh: 1.25, rival: "runsc restore to first answer",
		input: []byte("\x80\x05]\x94(K\x00K\x01K\x02K\x03K\x04K\x05K\x06K\x07K\x08K\x09K\x0aK\x0bK\x0cK\x0dK\x0eK\x0fK\x10K\x11K\x12K\x13e\x85\x94}\x94\x86\x94."),
	},
	{
		name: "torch resnet50", file: "torch_resnet50.py", created: 0.9, fresh: 1.15, rival: "runsc restore + forward pass",
		input: []byte("\x80\x05)}\x94\x86\x94."),
	},
}

type options struct {
	brisk, runsc, data, out string
	n                       int
	cases                   []string
}

func main() {
	var o options
	var names string
	flag.StringVar(&o.brisk, "brisk", "bin/brisk", "`path` of the binary")
	flag.StringVar(&o.runsc, "runsc", "bin/runsc", "`path` of runsc")
	flag.StringVar(&o.data, "data", "/var/cache/brisk/bench", "data `directory`, kept between runs")
	flag.StringVar(&o.out, "out", "bench/results", "`directory` of the results")
	flag.IntVar(&o.n, "n", 20, "samples of each condition")
	flag.StringVar(&names, "cases", "numpy,torch,many,echo", "which `cases` to run")
	flag.Parse()
	o.cases = strings.Split(names, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench cold:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	var err error
	if o.brisk, err = filepath.Abs(o.brisk); err != nil {
		return err
	}
	if o.runsc, err = filepath.Abs(o.runsc); err != nil {
		return err
	}
	rep := report.New()
	for _, c := range cases {
		if !slices.ContainsFunc(o.cases, func(n string) bool { return strings.HasPrefix(c.name, n) }) {
			continue
		}
		rows, err := c.run(ctx, o)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		rep.Rows = append(rep.Rows, rows...)
	}
	for _, other := range []struct {
		name    string
		measure func(context.Context, options) ([]report.Row, error)
	}{{"many", many}, {"echo", echo}} {
		if !slices.Contains(o.cases, other.name) {
			continue
		}
		rows, err := other.measure(ctx, o)
		if err != nil {
			return fmt.Errorf("%s: %w", other.name, err)
		}
		rep.Rows = append(rep.Rows, rows...)
	}
	if err := rep.Print(os.Stdout); err != nil {
		return err
	}
	return rep.Save(o.out, "cold", len(o.cases) < 4)
}

// run measures one case, as a function that is new and so has no snapshot yet: once with and once without created sandboxes, each with
// the page cache warm and dropped.
func (c *benchCase) run(ctx context.Context, o options) ([]report.Row, error) {
	var rows []report.Row
	fresh := "BRISK_BENCH_RUN=" + strconv.FormatInt(time.Now().UnixNano(), 36)
	for _, pool := range []int{1, -1} {
		got, err := c.withPool(ctx, o, pool, fresh)
		if err != nil {
			return nil, err
		}
		rows = append(rows, got...)
	}
	return rows, nil
}

func (c *benchCase) withPool(ctx context.Context, o options, pool int, fresh string) (rows []report.Row, err error) {
	s, err := drive.Up(ctx, o.brisk, o.data, pool)
	if err != nil {
		return nil, err
	}
	defer func() {
		if derr := s.Down(); err == nil {
			err = derr
		}
	}()
	p, err := drive.Start(o.brisk, o.data, filepath.Join("bench", "cold", c.file), fresh)
	if err != nil {
		return nil, err
	}
	defer func() {
		if perr := p.End(); err == nil {
			err = perr
		}
	}()
	progress("%s: first call, which builds what is missing", c.name)
	first, err := p.Call()
	if err != nil {
		return nil, err
	}
	calls, err := s.Client.Calls(ctx, 1)
	if err != nil || len(calls) != 1 {
		return nil, fmt.Errorf("the first call is not on record: %v", err) //nolint:errorlint // there may be none
	}
	function := calls[0].Digest.String()
	if err := s.WaitSnapshot(ctx, function); err != nil {
		return nil, err
	}
	if pool == 1 && calls[0].Start == "cold" {
		if r := calls[0].Origin; r != nil {
			share := 100 * float64(r.OriginBytes+r.CacheBytes) / float64(r.ImageBytes)
			rows = append(rows, report.Value(c.name+": read of its image", fmt.Sprintf("first call, image of %.0f MB", float64(r.ImageBytes)/1e6), 1, share, "%", 0))
		}
		rows = append(rows, report.Times(c.name, "first call ever, its image there", []float64{calls[0].MS}))
	}
	rival, err := c.bareRival(ctx, o, s, function, pool)
	if err != nil {
		return nil, err
	}
	defer func() {
		if cerr := rival.close(); err == nil {
			err = cerr
		}
	}()
	for _, dropped := range []bool{false, true} {
		row, err := c.sample(ctx, o, s, p, rival, first, pool, dropped)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// bareRival makes the rival out of a created sandbox; where there is none, out of
// the bundle that the run with created sandboxes has kept.
func (c *benchCase) bareRival(ctx context.Context, o options, s *drive.Server, function string, pool int) (_ *bare, err error) {
	dir := filepath.Join(o.data, "bare")
	if pool > 0 {
		if err := s.Settle(ctx, 1); err != nil {
			return nil, err
		}
		if c.kept, err = keepBundle(s, function, filepath.Join(o.data, "bare-bundle")); err != nil {
			return nil, err
		}
	}
	return newBare(s, o.runsc, c.kept, function, dir, c.input)
}

func (c *benchCase) sample(ctx context.Context, o options, s *drive.Server, p *drive.Program, rival *bare, first drive.Answer, pool int, dropped bool) (report.Row, error) {
	condition, target, start := "created beforehand", c.created, "restored"
	if pool < 0 {
		condition, target, start = "nothing created", c.fresh, "restored-fresh"
	}
	if dropped {
		condition += ", page cache dropped"
	} else {
		condition += ", page cache warm"
	}
	progress("%s: %s", c.name, condition)
	var ours, theirs []float64
	for range o.n {
		if err := s.Settle(ctx, max(pool, 0)); err != nil {
			return report.Row{}, err
		}
		prepare := func() error {
			if dropped {
				return drive.DropCaches()
			}
			return nil
		}
		if err := prepare(); err != nil {
			return report.Row{}, err
		}
		a, err := p.Call()
		if err != nil {
			return report.Row{}, err
		}
		if string(a.Value) != string(first.Value) {
			return report.Row{}, fmt.Errorf("a restored call gave %s, the first one %s", a.Value, first.Value)
		}
		calls, err := s.Client.Calls(ctx, 1)
		if err != nil {
			return report.Row{}, err
		}
		if calls[0].Start != start {
			return report.Row{}, fmt.Errorf("a start was %q, want %q", calls[0].Start, start)
		}
		if err := s.Settle(ctx, max(pool, 0)); err != nil {
			return report.Row{}, err
		}
		if err := prepare(); err != nil {
			return report.Row{}, err
		}
		ms, _, err := rival.call(ctx)
		if err != nil {
			return report.Row{}, err
		}
		ours, theirs = append(ours, a.MS), append(theirs, ms)
	}
	return report.Paired(c.name, condition, c.rival, ours, theirs, target), nil
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"brisk.dev/brisk/bench/drive"
	"brisk.dev/brisk/bench/link"
	"brisk.dev/brisk/bench/report"
	"brisk.dev/brisk/internal/store/s3/s3test"
)

// The link that first starts are measured over: what a machine has that is some hundred
// kilometres from its bucket.
const (
	roundTrip = 25 * time.Millisecond
	rate      = 100e6 // bits per second
)

// first compares the first start on a machine that has nothing, its images being in
// a bucket of an S3 server, with a start on the same machine when everything is there: plus, over
// a link, the time that the link needs for the bytes of the hot pack. That was written before, by
// another machine.
func first(o options) (_ []report.Row, err error) {
	work, err := os.MkdirTemp(o.dir, "first-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	gateway, err := bucket(o.ctx, filepath.Join(work, "bucket"))
	if err != nil {
		return nil, err
	}
	defer gateway.Kill()
	url := gateway.URL("first")
	progress("building an image on one machine, which writes its hot pack")
	one := filepath.Join(work, "one")
	key, packed, err := seed(o, one, url)
	if err != nil {
		return nil, err
	}
	starts := func(url string, fill bool, transfer func() (float64, error)) (ours, floor []float64, err error) {
		for i := range o.n {
			progress("first start on an empty machine, %d of %d", i+1, o.n)
			empty, again, err := emptyMachine(o, filepath.Join(work, fmt.Sprint("empty", i)), url, fill, key)
			if err != nil {
				return nil, nil, err
			}
			bytes, err := transfer()
			if err != nil {
				return nil, nil, err
			}
			ours, floor = append(ours, empty), append(floor, again+bytes)
		}
		return ours, floor, nil
	}
	near, nearFloor, err := starts(url, true, func() (float64, error) { return 0, nil })
	if err != nil {
		return nil, err
	}
	slow, err := link.Open(work, roundTrip, rate)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, slow.Close()) }()
	address, err := slow.Forward(gateway.Addr)
	if err != nil {
		return nil, err
	}
	far, farFloor, err := starts(strings.Replace(url, gateway.Addr, address, 1), false, func() (float64, error) {
		speed, err := slow.Throughput(2 * packed)
		return float64(packed) / speed * 1000, err
	})
	if err != nil {
		return nil, err
	}
	const what = "first start of a numpy function on an empty machine"
	size := fmt.Sprintf("hot pack of %.0f MB", float64(packed)/1e6)
	return []report.Row{
		report.Paired(what, "S3 server on the same machine, "+size, "the same start with everything there", near, nearFloor, 1.3),
		report.Paired(what, "S3 server behind 25 ms and 100 Mbit/s, "+size,
			"the same start with everything there + the hot pack's bytes at the speed of plain TCP", far, farFloor, 1.3),
	}, nil
}

// bucket starts an S3 server whose keys the environment then has.
func bucket(ctx context.Context, dir string) (*s3test.Server, error) {
	if s3test.Find() == "" {
		return nil, errors.New("there is no versitygw: scripts/setup.sh s3 builds it")
	}
	for k, v := range map[string]string{"AWS_ACCESS_KEY_ID": s3test.AccessKey, "AWS_SECRET_ACCESS_KEY": s3test.SecretKey, "AWS_EC2_METADATA_DISABLED": "true"} {
		if err := os.Setenv(k, v); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return s3test.Run(ctx, dir)
}

// touches compares the first read of a chunk that only the origin has with a bare
// range read of as many bytes.
func touches(o options) (_ []report.Row, err error) {
	work, err := os.MkdirTemp(o.dir, "touch-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	gateway, err := bucket(o.ctx, filepath.Join(work, "bucket"))
	if err != nil {
		return nil, err
	}
	defer gateway.Kill()
	progress("first touches of missing chunks")
	all, err := gateway.FirstTouches(o.ctx, filepath.Join(work, "store"), 400)
	if err != nil {
		return nil, err
	}
	var ours, bare []float64
	for _, t := range all {
		ours, bare = append(ours, ms(t.Chunk)), append(bare, ms(t.Bare))
	}
	return []report.Row{report.Paired("first touch of one missing chunk", "S3 server on the same machine; fetched and verified; kept behind it", "one bare HTTP range read", ours, bare, 1.5)}, nil
}

const firstFile = "bench/images/first.py"

// seed has a machine build the image, start it twice, and write a hot pack; it
// gives the workspace's key and the pack's size in bytes.
func seed(o options, data, url string) (key []byte, packed int64, err error) {
	s, err := drive.Up(o.ctx, o.brisk, data, -1, "--store", url)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, s.Down()) }()
	for range 3 {
		if out, err := exec.CommandContext(o.ctx, o.brisk, "run", "--data", data, firstFile).CombinedOutput(); err != nil {
			return nil, 0, fmt.Errorf("run %s: %w: %s", firstFile, err, out)
		}
		if err := s.Settle(o.ctx, 0); err != nil {
			return nil, 0, err
		}
	}
	line, err := s.WaitLog(o.ctx, "wrote a hot pack")
	if err != nil {
		return nil, 0, err
	}
	_, size, _ := strings.Cut(line, " bytes=")
	if _, err := fmt.Sscan(size, &packed); err != nil {
		return nil, 0, fmt.Errorf("the log does not say how large the hot pack is: %q", line)
	}
	key, err = exec.CommandContext(o.ctx, o.brisk, "store", "key", "export", "--data", data).Output()
	return key, packed, err
}

// emptyMachine starts the function on a machine that has the key and nothing else,
// and, when all of the image has arrived, once more: milliseconds of both calls. Without
// fill only what was read arrives, and the second start finds that in the page cache of the same
// mount: over a slow link all of it would take minutes.
func emptyMachine(o options, data, url string, fill bool, key []byte) (ms, again float64, err error) {
	put := exec.CommandContext(o.ctx, o.brisk, "store", "key", "import", "--data", data)
	put.Stdin = bytes.NewReader(key)
	if out, err := put.CombinedOutput(); err != nil {
		return 0, 0, fmt.Errorf("import the key: %w: %s", err, out)
	}
	args := []string{"--store", url}
	if !fill {
		args = append(args, "--no-fill")
	}
	s, err := drive.Up(o.ctx, o.brisk, data, -1, args...)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, s.Down(), os.RemoveAll(data)) }()
	call := func() (float64, error) {
		if out, err := exec.CommandContext(o.ctx, o.brisk, "run", "--data", data, firstFile).CombinedOutput(); err != nil {
			return 0, fmt.Errorf("run %s: %w: %s", firstFile, err, out)
		}
		calls, err := s.Client.Calls(o.ctx, 1)
		if err != nil || len(calls) == 0 {
			return 0, fmt.Errorf("the call is not on record: %w", err)
		}
		if calls[0].Start != "cold" {
			return 0, fmt.Errorf("a start was %q, want cold", calls[0].Start)
		}
		return calls[0].MS, s.Settle(o.ctx, 0)
	}
	if ms, err = call(); err != nil {
		return 0, 0, err
	}
	if fill {
		if _, err := s.WaitLog(o.ctx, "complete and mounted natively"); err != nil {
			return 0, 0, err
		}
	}
	if _, err := call(); err != nil { // the first on the native mount
		return 0, 0, err
	}
	again, err = call()
	return ms, again, err
}

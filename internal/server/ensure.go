package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
)

// backgroundTime is how long EnsureRunning waits: a start after a crash sweeps first.
const backgroundTime = 20 * time.Second

// EnsureRunning makes sure that a server answers for a data directory, starting
// one in the background with argv (a command line that ends in Run with
// ReadyPipe) if there is none. Of several that start one at once, one wins and
// all wait for it. started says whether it was this one.
func EnsureRunning(ctx context.Context, data string, argv []string) (started bool, err error) {
	p, err := PathsOf(data)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, backgroundTime)
	defer cancel()
	for {
		err := answers(ctx, p)
		if fault.Is(err, fault.Timeout) {
			return false, silent(p, err)
		}
		if err == nil || !fault.Is(err, fault.Unavailable) {
			return false, err
		}
		if os.Geteuid() != 0 {
			return false, NotRoot()
		}
		err = startBackground(ctx, p, argv)
		if !fault.Is(err, fault.Exists) {
			return err == nil, err
		}
		// Somebody holds the lock: a server that is about to answer, or one that is
		// about to end. Neither tells us when; look again soon.
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return false, silent(p, &fault.Error{Op: "wait for the server", Err: err})
		}
	}
}

// silent is the error for a server that is there and does not answer.
func silent(p Paths, err error) error {
	return &fault.Error{
		Class: fault.Timeout, Err: err,
		Hint: "It does not answer: `brisk down` ends it. Its log is " + p.LogFile() + ".",
	}
}

// answers is nil if a server answers now, and Unavailable if there is none.
func answers(ctx context.Context, p Paths) error {
	c := api.Dial(p.Socket(), image.DefaultWorkspace)
	defer c.Close()
	_, err := c.Info(ctx)
	return err
}

// startBackground starts a server that outlives this process, and waits until it
// has reported.
func startBackground(ctx context.Context, p Paths, argv []string) error {
	if err := prepareData(p); err != nil { // not even a log is left in a directory that is somebody's
		return err
	}
	if err := os.MkdirAll(filepath.Dir(p.outputFile()), 0o700); err != nil {
		return fault.Wrap(err, "start a server with data in", p.Data)
	}
	output, err := os.OpenFile(p.outputFile(), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fault.Wrap(err, "start a server with data in", p.Data)
	}
	defer output.Close()
	before, err := output.Seek(0, io.SeekEnd)
	if err != nil {
		return fault.Wrap(err, "start a server with data in", p.Data)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fault.Wrap(err, "start a server with data in", p.Data)
	}
	defer r.Close()

	cmd := exec.Command(argv[0], argv[1:]...) //nolint:noctx // it outlives ctx, and this process
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = output, output
	cmd.ExtraFiles = []*os.File{w} // descriptor 3
	cmd.Env = append(os.Environ(), readyVariable+"=3")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return fault.Wrap(err, "start", argv[0])
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // if it goes before we do, it leaves no zombie

	defer context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Now()) })()
	err = readReport(r)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF):
		why := fmt.Sprint(<-ended)
		if line := lastLine(output, before); line != "" {
			why += ": " + line
		}
		return fault.New(fault.Internal, "the server ended while it started: %s", why).
			WithHint("All that it said is in %s and %s.", p.outputFile(), p.LogFile())
	case errors.Is(err, os.ErrDeadlineExceeded):
		// It goes on: it may be sweeping, and whoever asks next finds it.
		return fault.New(fault.Timeout, "the server has not started in time").
			WithHint("Its log is %s.", p.LogFile())
	}
	return err
}

// lastLine finds the last line with something in it after an offset.
func lastLine(f *os.File, after int64) string {
	b, err := io.ReadAll(io.NewSectionReader(f, after, 64<<10))
	if err != nil {
		return ""
	}
	lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	// A panic begins with its reason; everything below that is stacks.
	for _, l := range lines {
		if bytes.HasPrefix(l, []byte("panic: ")) || bytes.HasPrefix(l, []byte("fatal error: ")) {
			return string(l)
		}
	}
	return strings.TrimSpace(string(lines[len(lines)-1]))
}

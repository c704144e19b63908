package gvisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/sandbox"
	"brisk.dev/brisk/internal/trace"
)

// The files of a checkpoint, in the order in which the sentry wants them.
var checkpointFiles = []string{"checkpoint.img", "pages_meta.img", "pages.img"}

// Restore implements sandbox.Sandbox.
func (s *Sandbox) Restore(ctx context.Context, dir string) error {
	if err := s.claim(); err != nil {
		return err
	}
	end := trace.Begin(ctx, "sandbox restore")
	defer end("")
	ctx, cancel := context.WithTimeout(ctx, restoreTimeout)
	defer cancel()
	files, err := openCheckpoint(dir, os.O_RDONLY)
	defer closeAll(files)
	if err != nil {
		return err
	}
	c, err := s.dial(ctx)
	if err != nil {
		return s.failed("restore", err)
	}
	defer c.close()
	s.begun()
	early := s.askEarly()
	if err := c.call(ctx, methodRestore, restoreArgs{HavePagesFile: true}, files, nil); err != nil {
		s.finish(0, err)
		return s.restoreFailed(err)
	}
	go func() {
		status, err := s.ask(context.Background())
		if err != nil {
			if e := <-early; e.err == nil {
				status, err = e.status, nil
			}
		}
		s.finish(status, err)
	}()
	return s.limitCPU()
}

// answer is what the sentry says about the end of the first process.
type answer struct {
	status uint32
	err    error
}

// ask asks for the exit status on a connection of its own.
func (s *Sandbox) ask(ctx context.Context) (status uint32, err error) {
	w, err := s.dial(ctx)
	if err != nil {
		return 0, err
	}
	defer w.close()
	err = w.call(ctx, methodWait, s.spec.ID, nil, &status)
	return status, err
}

// askEarly asks while a restore runs. The sentry replaces its control server then:
// who asks the old one may be cut off, without an answer, by the end of the sentry,
// and who asks the new one comes too late for a process that ends at once. Restore
// does both. Until the restore has begun the question is refused ("not started").
func (s *Sandbox) askEarly() <-chan answer {
	got := make(chan answer, 1)
	go func() {
		for {
			status, err := s.ask(context.Background())
			if _, refused := errors.AsType[refusal](err); refused && !s.isEnded() {
				time.Sleep(pause)
				continue
			}
			got <- answer{status, err}
			return
		}
	}()
	return got
}

func (s *Sandbox) isEnded() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// restoreFailed classes the error of a restore. A sentry that meets an incomplete
// file gives up or dies; that it dies of something else is much less likely.
func (s *Sandbox) restoreFailed(err error) error {
	err = s.failed("restore", err)
	if fault.Is(err, fault.Internal) {
		return &fault.Error{Class: fault.Corrupt, Err: err}
	}
	return err
}

// openCheckpoint opens the files of a checkpoint, in order.
func openCheckpoint(dir string, flags int) ([]*os.File, error) {
	var files []*os.File
	for _, name := range checkpointFiles {
		f, err := os.OpenFile(filepath.Join(dir, name), flags, 0o600)
		if err != nil {
			return files, fault.Wrap(err, "open", "checkpoint")
		}
		files = append(files, f)
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// Checkpoint implements sandbox.Sandbox.
func (s *Sandbox) Checkpoint(ctx context.Context, dir string) (err error) {
	defer trace.Begin(ctx, "sandbox checkpoint")("")
	ctx, cancel := context.WithTimeout(ctx, checkpointTimeout)
	defer cancel()
	if _, err := os.Lstat(dir); err == nil {
		return fault.New(fault.Exists, "checkpoint %s exists", dir)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".checkpoint-")
	if err != nil {
		return fault.Wrap(err, "checkpoint", s.what())
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(tmp)
		}
	}()
	files, err := openCheckpoint(tmp, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	defer func() { closeAll(files) }()
	if err != nil {
		return err
	}
	c, err := s.dial(ctx)
	if err != nil {
		return s.failed("checkpoint", err)
	}
	defer c.close()
	s.mu.Lock()
	s.mu.checkpointed = true
	s.mu.Unlock()
	args := checkpointArgs{Metadata: map[string]string{"compression": "none"}, HavePagesFile: true}
	if err := c.call(ctx, methodCheckpoint, args, files, nil); err != nil {
		s.mu.Lock()
		s.mu.checkpointed = false
		s.mu.Unlock()
		return s.failed("checkpoint", err)
	}
	return publish(tmp, dir, files)
}

// publish makes a written checkpoint durable and gives it its name.
func publish(tmp, dir string, files []*os.File) error {
	for _, f := range files {
		if err := f.Sync(); err != nil {
			return fault.Wrap(err, "sync", "checkpoint")
		}
	}
	if err := syncDir(tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, dir); err != nil {
		return fault.Wrap(err, "publish", "checkpoint")
	}
	return syncDir(filepath.Dir(dir))
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fault.Wrap(err, "sync", dir)
	}
	defer func() { _ = f.Close() }()
	return fault.Wrap(f.Sync(), "sync", dir)
}

var _ sandbox.Sandbox = (*Sandbox)(nil)

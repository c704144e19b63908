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
	followed := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(followed)
		s.followRestore(stop)
	}()
	s.begun()
	if err := c.call(ctx, methodRestore, restoreArgs{HavePagesFile: true}, files, nil); err != nil {
		close(stop)
		return s.restoreFailed(err)
	}
	return nil
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

// followRestore is follow for a restore. The sentry replaces its control server
// while it restores, and closes idle connections: the question for the exit status
// has to be on its way when that happens. Until the restore has begun it is refused
// ("not started"), so it is asked again.
func (s *Sandbox) followRestore(failed <-chan struct{}) {
	for {
		w, err := s.dial(context.Background())
		if err != nil {
			s.finish(0, err)
			return
		}
		var status uint32
		err = w.call(context.Background(), methodWait, s.spec.ID, nil, &status)
		w.close()
		if _, refused := errors.AsType[refusal](err); !refused {
			s.finish(status, err)
			return
		}
		select {
		case <-failed:
			s.finish(0, err)
			return
		case <-time.After(pause):
		}
	}
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

package gvisor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/sandbox"
	"brisk.dev/brisk/internal/trace"
)

// Sandbox implements sandbox.Sandbox.
type Sandbox struct {
	r    *Runtime
	spec sandbox.Spec

	mu struct {
		sync.Mutex
		claimed      bool // Start or Restore has been called
		running      bool // and the sentry took it
		checkpointed bool // the sentry may end without a status
		doomed       bool // Destroy has begun
	}

	// ended is closed once exit and err are set.
	ended chan struct{}
	once  sync.Once
	exit  sandbox.Exit
	err   error

	// destroying is held while one Destroy works; gone is under it.
	destroying sync.Mutex
	gone       bool
}

func newSandbox(r *Runtime, s sandbox.Spec) *Sandbox {
	return &Sandbox{r: r, spec: s, ended: make(chan struct{})}
}

// ID implements sandbox.Sandbox.
func (s *Sandbox) ID() string { return s.spec.ID }

func (s *Sandbox) what() string { return "sandbox " + s.spec.ID }

// create makes everything up to the sentry that waits for its order to start.
// Whatever it leaves on an error, Destroy removes.
func (s *Sandbox) create(ctx context.Context) error {
	defer trace.Begin(ctx, "sandbox create")("")
	dir := s.r.bundleDir(s.spec.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fault.Wrap(err, "create", s.what())
	}
	if d := s.r.options.Debug; d != "" {
		if err := os.MkdirAll(filepath.Join(d, s.spec.ID), 0o700); err != nil {
			return fault.Wrap(err, "create", s.what())
		}
	}
	root, err := s.r.prepareRoot(s.spec)
	if err != nil {
		return err
	}
	if err := writeBundle(dir, s.r.bundle(s.spec, root)); err != nil {
		return err
	}
	if err := s.r.execCreate(ctx, s.spec); err != nil {
		return err
	}
	// Until the code inside runs, all CPU goes into Brisk's own work: a quota of one
	// CPU would make the sentry, which decodes and loads on several, wait for periods.
	if s.spec.Limits.CPU > 0 {
		if err := s.r.group(s.spec.ID).SetCPU(0); err != nil {
			return err
		}
	}
	c, err := s.dial(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	// At this point of time rather than at the start: opening the packet socket
	// takes the kernel some milliseconds, which a restore need not wait for.
	return connectNetwork(ctx, c, s.spec.Netns)
}

func (s *Sandbox) dial(ctx context.Context) (*control, error) {
	return dial(ctx, s.r.socket(s.spec.ID))
}

// limitCPU makes the CPU limit bind, which it does not while the sandbox is made.
func (s *Sandbox) limitCPU() error {
	if s.spec.Limits.CPU <= 0 {
		return nil
	}
	return s.r.group(s.spec.ID).SetCPU(cpuQuota(s.spec.Limits))
}

// claim is what makes Start and Restore happen once.
func (s *Sandbox) claim() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.doomed {
		return fault.New(fault.NotFound, "%s is destroyed", s.what())
	}
	if s.mu.claimed {
		return fault.New(fault.Invalid, "%s was started already", s.what())
	}
	s.mu.claimed = true
	return nil
}

// Start implements sandbox.Sandbox.
func (s *Sandbox) Start(ctx context.Context) error {
	if err := s.claim(); err != nil {
		return err
	}
	if err := s.limitCPU(); err != nil {
		return err
	}
	defer trace.Begin(ctx, "sandbox start")("")
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	// A sentry whose process has ended stays for its open connections: with this
	// one made beforehand, the exit status of the fastest process is not missed.
	w, err := s.dial(ctx)
	if err != nil {
		return s.failed("start", err)
	}
	c, err := s.dial(ctx)
	if err == nil {
		err = c.call(ctx, methodStart, s.spec.ID, nil, nil)
		c.close()
	}
	if err != nil {
		w.close()
		return s.failed("start", err)
	}
	s.begun()
	go s.follow(w)
	return nil
}

func (s *Sandbox) begun() {
	s.mu.Lock()
	s.mu.running = true
	s.mu.Unlock()
}

// follow waits for the first process and keeps how it ended.
func (s *Sandbox) follow(w *control) {
	defer w.close()
	var status uint32
	err := w.call(context.Background(), methodWait, s.spec.ID, nil, &status)
	s.finish(status, err)
}

// finish records the end, once.
func (s *Sandbox) finish(status uint32, err error) {
	s.once.Do(func() {
		s.exit, s.err = s.judge(status, err)
		close(s.ended)
	})
}

// judge works out how the first process ended, from its wait status, or from the
// circumstances if the sentry went without giving one.
func (s *Sandbox) judge(status uint32, err error) (sandbox.Exit, error) {
	s.mu.Lock()
	checkpointed, doomed := s.mu.checkpointed, s.mu.doomed
	s.mu.Unlock()
	group := s.r.group(s.spec.ID)
	if err == nil {
		e := sandbox.Exit{Code: syscall.WaitStatus(status).ExitStatus()}
		if ws := syscall.WaitStatus(status); ws.Signaled() {
			e.Code = 128 + int(ws.Signal())
		}
		e.OOMKilled = e.Code != 0 && group.OOMKills() > 0
		return e, nil
	}
	killed := sandbox.Exit{Code: 128 + int(syscall.SIGKILL)}
	switch {
	case checkpointed:
		return sandbox.Exit{}, nil
	case group.OOMKills() > 0:
		killed.OOMKilled = true
		return killed, nil
	case doomed:
		return killed, nil
	}
	reason := s.lastWords()
	if group.ForksRefused() > 0 || classify(reason) == fault.Exhausted {
		return killed, fault.New(fault.Exhausted, "%s ran out of processes: %s", s.what(), reason).
			WithHint("Raise its limit of processes, or start fewer.")
	}
	if reason == "" {
		reason = err.Error()
	}
	return killed, fault.New(fault.Internal, "the kernel of %s died: %s", s.what(), reason)
}

// lastWords is what the sentry printed when it died, in one line, or "".
func (s *Sandbox) lastWords() string {
	dir := s.r.bundleDir(s.spec.ID)
	if b, err := os.ReadFile(filepath.Join(dir, "panic.log")); err == nil {
		for l := range strings.SplitSeq(string(b), "\n") {
			if strings.HasPrefix(l, "panic:") || strings.HasPrefix(l, "fatal error:") || strings.HasPrefix(l, "runtime:") {
				return oneLine([]byte(l))
			}
		}
		if l := oneLine(b); l != "" {
			return l
		}
	}
	return loggedError(filepath.Join(dir, "runsc.log"))
}

// failed classes an error of a call into the sentry.
func (s *Sandbox) failed(op string, err error) error {
	var no refusal
	switch {
	case errors.As(err, &no):
		return &fault.Error{Class: classify(no.text), Op: op, Object: s.what(), Err: errors.New(oneLine([]byte(no.text)))}
	case gone(err):
		_, why := s.judge(0, err)
		if s.r.group(s.spec.ID).OOMKills() > 0 {
			return memoryTooSmall(s.spec.ID, op)
		}
		if why == nil {
			why = err
		}
		return fault.Wrap(why, op, s.what())
	}
	return fault.Wrap(err, op, s.what())
}

// Wait implements sandbox.Sandbox.
func (s *Sandbox) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-s.ended:
		return s.exit, s.err
	case <-ctx.Done():
		return sandbox.Exit{}, fault.Wrap(ctx.Err(), "wait for", s.what())
	}
}

// Signal implements sandbox.Sandbox.
func (s *Sandbox) Signal(ctx context.Context, sig os.Signal, all bool) error {
	n, ok := sig.(syscall.Signal)
	if !ok {
		return fault.New(fault.Invalid, "signal %v is not one of Linux", sig)
	}
	ctx, cancel := context.WithTimeout(ctx, signalTimeout)
	defer cancel()
	c, err := s.dial(ctx)
	if err != nil {
		return s.failed("signal", err)
	}
	defer c.close()
	args := signalArgs{CID: s.spec.ID, Signo: int32(n)}
	if all {
		args.Mode = 1
	}
	if err := c.call(ctx, methodSignal, args, nil, nil); err != nil {
		return s.failed("signal", err)
	}
	return nil
}

// Usage implements sandbox.Sandbox.
func (s *Sandbox) Usage() (sandbox.Usage, error) {
	u, err := s.r.group(s.spec.ID).Usage()
	return sandbox.Usage(u), err
}

// Destroy implements sandbox.Sandbox.
func (s *Sandbox) Destroy(ctx context.Context) error {
	s.mu.Lock()
	s.mu.doomed = true
	running := s.mu.running
	s.mu.Unlock()
	s.destroying.Lock()
	defer s.destroying.Unlock()
	if s.gone {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, destroyTimeout)
	defer cancel()
	if err := s.r.group(s.spec.ID).Kill(ctx); err != nil {
		return err
	}
	// Nothing holds the connection of a follower any more; without one, nobody
	// else says that it is over.
	if running {
		<-s.ended
	} else {
		s.finish(0, fs.ErrClosed)
	}
	if err := s.r.remove(ctx, s.spec.ID); err != nil {
		return err
	}
	s.gone = true
	s.r.forget(s.spec.ID)
	return nil
}

// remove removes what is left of a sandbox, of this process or of an earlier one.
// Its processes are killed if there are any. Everything is tried, whatever fails.
func (r *Runtime) remove(ctx context.Context, id string) error {
	group := r.group(id)
	errs := []error{group.Kill(ctx), r.releaseRoot(id)}
	for _, f := range r.stateFiles(id) {
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fault.Wrap(err, "destroy", "sandbox "+id))
		}
	}
	errs = append(errs,
		fault.Wrap(os.RemoveAll(r.bundleDir(id)), "destroy", "sandbox "+id),
		fault.Wrap(os.RemoveAll(r.scratchDir(id)), "destroy", "sandbox "+id),
		group.Remove(ctx))
	return errors.Join(errs...)
}

// pause is how long a follower of a restore waits between two tries.
const pause = 2 * time.Millisecond

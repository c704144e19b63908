package server

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
)

// stopTime is how long Stop waits for an orderly end: as long as that may take,
// and some more.
const stopTime = shutdownTime + 10*time.Second

// Stop ends the server of a data directory and returns when its process has
// ended: by asking over the API, by SIGTERM if it does not answer, and in the end
// by SIGKILL, which killed tells. It returns at once if there is none.
func Stop(ctx context.Context, data string) (stopped, killed bool, err error) {
	p, err := PathsOf(data)
	if err != nil {
		return false, false, err
	}
	if os.Geteuid() != 0 {
		return false, false, NotRoot()
	}
	return stop(ctx, p, stopTime)
}

// stop is Stop for a server that gets so long for its orderly end.
func stop(ctx context.Context, p Paths, orderly time.Duration) (stopped, killed bool, err error) {
	pid := lockHolder(p)
	if pid == 0 {
		return false, false, nil
	}
	process, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return true, false, nil
	}
	if err != nil {
		return false, false, fault.Wrap(err, "find the server", "")
	}
	defer unix.Close(process)
	if lockHolder(p) != pid { // it has ended, and its pid may be somebody else's by now
		return true, false, nil
	}

	asking, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	c := api.Dial(p.Socket(), image.DefaultWorkspace)
	defer c.Close()
	if err := c.Shutdown(asking); err != nil {
		if err := unix.PidfdSendSignal(process, unix.SIGTERM, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return false, false, fault.Wrap(err, "stop the server", "")
		}
	}
	if err := waitEnd(ctx, process, orderly); err == nil || ctx.Err() != nil {
		return err == nil, false, err
	}
	if err := unix.PidfdSendSignal(process, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return false, false, fault.Wrap(err, "kill the server", "")
	}
	err = waitEnd(ctx, process, stopTime)
	return err == nil, true, err
}

// waitEnd waits until the process of a pidfd has ended.
func waitEnd(ctx context.Context, process int, most time.Duration) error {
	until := time.Now().Add(most)
	for {
		// In slices, so that ctx counts: poll knows nothing of it.
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}, 100)
		switch {
		case n > 0:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fault.Wrap(err, "wait for the server", "")
		case ctx.Err() != nil:
			return fault.Wrap(ctx.Err(), "wait for the server", "")
		case time.Now().After(until):
			return fault.New(fault.Timeout, "the server has not ended within %v", most)
		}
	}
}

// HasLeftovers reports whether a server that has ended left something to Sweep.
func HasLeftovers(data string) (bool, error) {
	p, err := PathsOf(data)
	if err != nil {
		return false, err
	}
	_, err = os.Lstat(p.Run)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, fault.Wrap(err, "look for", p.Run)
}

// Sweep removes what a killed server left: it starts one that serves nobody, and
// ends it. The process must be in the server's namespace (EnterNamespace).
func Sweep(ctx context.Context, o Options) error { return sweep(ctx, o, wire) }

func sweep(ctx context.Context, o Options, build wiring) error {
	o.ensureDefaults()
	h, err := occupy(o)
	if err != nil {
		return err
	}
	defer h.leave()
	h.log.Info("sweeping", "pid", os.Getpid())
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	built, err := build(ctx, o, h.paths, h.log)
	if err != nil {
		return err
	}
	if err := built.close(ctx, h.log); err != nil {
		return err
	}
	return removeRun(h.paths)
}

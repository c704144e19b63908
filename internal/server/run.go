package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
)

const (
	// startTime bounds building the parts, leftovers of a predecessor included.
	startTime = 60 * time.Second
	// shutdownTime bounds an orderly end: runsc takes up to seconds to destroy a
	// sandbox, and there may be dozens.
	shutdownTime = 20 * time.Second
	// streamTime is how long clients get to read how their calls ended.
	streamTime = 2 * time.Second
)

// Run is a server from its start to its end. It returns nil after an orderly end,
// and does not end before ctx does, a signal comes, a client asks, or it is idle.
func Run(ctx context.Context, o Options) error { return run(ctx, o, wire) }

// parts are what a server is made of.
type parts struct {
	backend api.Backend
	active  func() int // calls, containers and instances that there are now
	// quiesce ends every call and instance; nil if there is nothing of the kind.
	quiesce func(ctx context.Context) error
	// closers end the other parts, the one that came last first. Each may take until ctx ends.
	closers []closer
}

type closer struct {
	name  string
	close func(ctx context.Context) error
}

// later adds a closer.
func (p *parts) later(name string, close func(ctx context.Context) error) {
	p.closers = append(p.closers, closer{name, close})
}

// close ends all parts, whatever fails, and returns what did.
func (p *parts) close(ctx context.Context, log *slog.Logger) error {
	errs := []error{p.rest(ctx)}
	for len(p.closers) > 0 {
		c := p.closers[len(p.closers)-1]
		p.closers = p.closers[:len(p.closers)-1]
		began := time.Now()
		err := c.close(ctx)
		log.Debug("closed", "part", c.name, "ms", time.Since(began).Milliseconds(), "err", err)
		if err != nil {
			errs = append(errs, fault.Wrap(err, "close", c.name))
		}
	}
	return errors.Join(errs...)
}

// rest quiesces, once.
func (p *parts) rest(ctx context.Context) error {
	if p.quiesce == nil {
		return nil
	}
	f := p.quiesce
	p.quiesce = nil
	return f(ctx)
}

// wiring builds the parts. On an error it has closed what it had built.
type wiring func(ctx context.Context, o Options, p Paths, log *slog.Logger) (*parts, error)

func run(ctx context.Context, o Options, build wiring) (err error) {
	o.ensureDefaults()
	var once sync.Once
	ready := func(err error) { once.Do(func() { o.Ready(err) }) }
	defer func() { ready(err) }()
	if err := o.validate(); err != nil {
		return err
	}

	began := time.Now()
	h, err := occupy(o)
	if err != nil {
		return err
	}
	defer h.leave()
	h.log.Info("starting", "version", o.Version, "pid", os.Getpid(), "data", h.paths.Data, "run", h.paths.Run)

	// From here on a signal means an orderly end.
	ctx, hurry, release := catchSignals(ctx, o.Foreground, h.log)
	defer release()

	starting, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	built, err := build(starting, o, h.paths, h.log)
	if err != nil {
		h.log.Error("cannot start", "err", err, "hint", fault.HintOf(err))
		if h.fresh { // else there may be leftovers in it that only it leads to
			_ = removeRun(h.paths)
		}
		return err
	}

	stopping, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	srv := api.New(built.backend, api.Options{
		Log:      h.log,
		Shutdown: func() { stop(errAsked) },
		Info: api.Info{
			Version: o.Version, PID: os.Getpid(), Data: h.paths.Data, Node: o.Node,
			Workspaces: []string{image.DefaultWorkspace}, Started: began.UTC(),
		},
	})
	served := make(chan error, 1)
	listener, err := listen(h.paths.Socket())
	if err == nil {
		go func() { served <- srv.Serve(listener) }()
		h.log.Info("ready", "socket", h.paths.Socket(), "ms", time.Since(began).Milliseconds())
		ready(nil)
		if o.IdleExit > 0 {
			go watchIdle(stopping, o.IdleExit, srv, built.active, func() { stop(errIdle) })
		}
		select {
		case <-stopping.Done():
			h.log.Info("stopping", "why", context.Cause(stopping))
		case err = <-served:
			served <- nil
			h.log.Error("cannot serve", "err", err)
		}
	}
	return errors.Join(err, h.end(hurry, srv, built, listener, served))
}

var (
	errAsked = errors.New("a client asked for it")
	errIdle  = errors.New("nobody has needed the server")
)

// house is the place where a server lives: its directories, its lock, its log.
type house struct {
	paths Paths
	lock  *lock
	file  *logFile
	log   *slog.Logger
	fresh bool // nobody has used the run directory before
}

// occupy makes the directories and takes the lock.
func occupy(o Options) (*house, error) {
	if os.Geteuid() != 0 {
		return nil, NotRoot()
	}
	p, err := PathsOf(o.Data)
	if err != nil {
		return nil, err
	}
	if err := prepareData(p); err != nil {
		return nil, err
	}
	h := &house{paths: p}
	if h.lock, err = takeLock(p); err != nil {
		return nil, err
	}
	if err = migrateData(context.Background(), p); err != nil {
		h.lock.release()
		return nil, err
	}
	if h.file, err = openLogFile(p.LogFile()); err != nil {
		h.lock.release()
		return nil, err
	}
	h.log = newLogger(h.file, o.Output, o.Verbose)
	if h.fresh, err = prepareRun(p); err != nil {
		h.leave()
		return nil, err
	}
	return h, nil
}

func (h *house) leave() {
	_ = h.file.Close()
	h.lock.release()
}

// end is the orderly end: nobody new gets in, what runs is told, everybody hears
// how their calls ended, the parts go, and then the run directory.
func (h *house) end(hurry context.Context, srv *api.Server, built *parts, l net.Listener, served <-chan error) error {
	ctx, cancel := context.WithTimeout(hurry, shutdownTime)
	defer cancel()
	srv.Drain()
	var errs []error
	errs = append(errs, built.rest(ctx)) // the calls' streams then end by themselves
	streams, cancelStreams := context.WithTimeout(ctx, streamTime)
	errs = append(errs, srv.Close(streams))
	cancelStreams()
	if l != nil {
		errs = append(errs, <-served)
	}
	errs = append(errs, built.close(ctx, h.log))
	err := errors.Join(errs...)
	if err == nil { // else the next start needs it to sweep
		err = removeRun(h.paths)
	}
	if err != nil {
		h.log.Error("stopped with something left", "err", err)
	} else {
		h.log.Info("stopped")
	}
	return err
}

// listen opens the socket for this user only. A file of that name is a dead server's:
// we hold the lock.
func listen(socket string) (net.Listener, error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fault.Wrap(err, "remove", socket)
	}
	// Nobody sees it under its name before it is closed to others.
	early := filepath.Join(filepath.Dir(socket), ".api.sock")
	_ = os.Remove(early)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: early, Net: "unix"})
	if err != nil {
		return nil, fault.Wrap(err, "listen at", socket)
	}
	l.SetUnlinkOnClose(false) // it would remove the early name; the run directory goes as a whole
	if err := errors.Join(os.Chmod(early, 0o600), os.Rename(early, socket)); err != nil {
		l.Close()
		return nil, fault.Wrap(err, "listen at", socket)
	}
	return l, nil
}

// catchSignals gives a context that ends with ctx or the first SIGINT or
// SIGTERM, and one, hurry, that ends with the second. After that signals kill,
// as they do without us.
func catchSignals(ctx context.Context, foreground bool, log *slog.Logger) (first, hurry context.Context, release func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	if !foreground {
		signal.Ignore(syscall.SIGHUP)
	}
	first, stop := context.WithCancelCause(ctx)
	hurry, cut := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer signal.Stop(signals)
		select {
		case s := <-signals:
			stop(errors.New("signal: " + s.String()))
		case <-done:
			return
		}
		select {
		case s := <-signals:
			log.Warn("stopping at once", "why", "another signal: "+s.String())
			cut()
		case <-done:
		}
	}()
	return first, hurry, func() { close(done); stop(nil); cut() }
}

// watchIdle calls idle once, when nothing has been active and no client connected for d.
func watchIdle(ctx context.Context, d time.Duration, srv *api.Server, active func() int, idle func()) {
	every := min(max(d/10, 10*time.Millisecond), 10*time.Second)
	tick := time.NewTicker(every)
	defer tick.Stop()
	quiet := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if active() > 0 {
				quiet = now
			} else if now.Sub(quiet) >= d && srv.DrainIfIdle(d) {
				idle()
				return
			}
		}
	}
}

// NotRoot is the error of whoever needs to be root and is not.
func NotRoot() error {
	return fault.New(fault.Machine, "Brisk makes mounts, sandboxes and network namespaces, which only root may").
		WithHint("Use sudo.")
}

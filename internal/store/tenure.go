package store

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// tenure is a work lease at a shared origin that holds of this process have in
// common. It begins when one of them first has to protect something, which waits for it.
type tenure struct {
	s     *Store
	ready chan struct{} // closed when what follows is valid
	lease *lease
	err   error

	// Guarded by tenures.mu.
	began time.Duration      // boottime; 0: it has not begun
	holds int                // when there are none left, it ends
	end   context.CancelFunc // nil: it has not begun
}

// tenures are a store's. A hold may share an older tenure: that protects more. One that
// has not begun is always the newest, so whoever relies on anything begins it.
type tenures struct {
	mu     sync.Mutex
	newest *tenure
}

const (
	// sharedFor is how long holds join a tenure after its beginning: each costs four
	// requests, and a build or an import has several holds. Longer, and work without
	// a pause would keep garbage for ever.
	sharedFor = time.Minute
	// farewell bounds the end of a lease, which Close waits for. One that is not ended dies by itself.
	farewell = 2 * time.Second
)

// boottime is a clock that goes on while the machine sleeps, and never jumps.
func boottime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // cannot fail for this clock
	return time.Duration(ts.Nano())
}

// join gives a tenure to hold by; nil if the origin is this process's alone.
func (s *Store) join() *tenure {
	if s.ledger == nil {
		return nil
	}
	s.tenures.mu.Lock()
	defer s.tenures.mu.Unlock()
	if t := s.tenures.newest; t != nil && t.holds > 0 && !t.failed() && (t.began == 0 || boottime()-t.began < sharedFor) {
		t.holds++
		return t
	}
	s.tenures.newest = &tenure{s: s, ready: make(chan struct{}), holds: 1}
	return s.tenures.newest
}

// failed reports whether it is known that the tenure protects nothing.
func (t *tenure) failed() bool {
	select {
	case <-t.ready:
		return t.err != nil || t.lease.lost.Load()
	default:
		return false
	}
}

// leave ends one hold's part in it.
func (t *tenure) leave() {
	if t == nil {
		return
	}
	t.s.tenures.mu.Lock()
	defer t.s.tenures.mu.Unlock()
	if t.holds--; t.holds == 0 && t.end != nil {
		t.end()
	}
}

// begin begins the lease, once.
func (t *tenure) begin() {
	t.s.tenures.mu.Lock()
	defer t.s.tenures.mu.Unlock()
	if t.began != 0 {
		return
	}
	t.began = boottime()
	var ctx context.Context
	ctx, t.end = context.WithCancel(t.s.ctx)
	if !t.s.spawn(func() { t.run(ctx) }) {
		t.end()
		t.err = errClosed()
		close(t.ready)
	}
}

// await returns when the tenure protects, or why it does not.
func (t *tenure) await(ctx context.Context) error {
	if t == nil {
		return nil
	}
	select {
	case <-t.ready:
		return t.err
	default:
	}
	t.begin()
	select {
	case <-t.ready:
		return t.err
	case <-ctx.Done():
		return fault.Wrap(ctx.Err(), "hold", "objects of the origin")
	}
}

// run begins the lease, renews it, and ends it when nobody holds by it any more.
func (t *tenure) run(ctx context.Context) {
	t.lease, t.err = t.s.ledger.work(t.s.ctx)
	if t.err == nil {
		t.err = t.s.refresh(t.s.ctx)
	}
	close(t.ready)
	if t.lease == nil {
		return
	}
	t.lease.keep(ctx, t.s)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	t.lease.release(ctx)
}

// keep renews a lease until ctx ends or it is broken.
func (h *lease) keep(ctx context.Context, s *Store) {
	tick := time.NewTicker(h.l.times.renewal())
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if err := h.renew(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("a hold on the origin cannot be renewed", "err", err)
			if h.lost.Load() {
				return
			}
		}
	}
}

// refresh lists the packs again if what is known of them is so old that there may be
// no record any more of what was deleted since.
func (s *Store) refresh(ctx context.Context) error {
	if !s.loaded.Load() { // then it will be listed, before anything of it is relied on
		return nil
	}
	if boottime()-time.Duration(s.listed.Load()) < s.ledger.times.staleAfter() {
		return nil
	}
	return s.load(ctx)
}

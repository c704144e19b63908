package remote

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// errDown is in the chain of what is refused because the origin is down.
var errDown = errors.New("the origin is down")

// An origin is down after so many failures in a row, over so long: a restart of
// the server, which fails a hundred requests at once, is no reason.
const (
	downAfter = 5
	downFor   = 2 * time.Second
)

// One that has not answered once since New is believed to be down sooner: a server
// that starts without its origin is to start.
const (
	absentAfter = 3
	absentFor   = 300 * time.Millisecond
)

// Whether it is back is tried after a delay that doubles between these.
const (
	firstProbe = time.Second
	lastProbe  = 15 * time.Second
)

// breaker knows whether the origin answers.
type breaker struct {
	log  *slog.Logger
	rand func() float64

	mu       sync.Mutex
	answered bool      // once
	failures int       // in a row
	first    time.Time // of them
	err      error     // the last
	down     bool
	probing  bool // somebody finds out
	next     time.Time
	delay    time.Duration
}

// allow lets a request pass, whose outcome is then told to done, or says why not.
func (b *breaker) allow() (done func(error), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.down {
		return func(err error) { b.report(err, false) }, nil
	}
	if b.probing || time.Now().Before(b.next) {
		return nil, b.downError()
	}
	b.probing = true
	return func(err error) { b.report(err, true) }, nil
}

// downError says since when, and what the last error was.
func (b *breaker) downError() error {
	return &fault.Error{Class: fault.Unavailable, Hint: fault.HintOf(b.err),
		Err: fmt.Errorf("%w: no answer for %v; the last error: %w", errDown, time.Since(b.first).Round(time.Second), b.err)}
}

func (b *breaker) report(err error, probe bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if probe {
		b.probing = false
	}
	now := time.Now()
	switch {
	case fault.Is(err, fault.Cancelled), fault.Is(err, fault.Timeout): // the caller's, and says nothing
		return
	case !fault.Is(err, fault.Unavailable): // an answer
		if b.down {
			b.log.Info("the origin answers again", "down", now.Sub(b.first).Round(time.Millisecond).String())
		}
		b.answered, b.failures, b.err, b.down, b.delay = true, 0, nil, false, 0
		return
	}
	if b.failures++; b.failures == 1 {
		b.first = now
	}
	b.err = err
	switch {
	case b.down && !probe: // it began before
	case b.down:
		b.delay = min(2*b.delay, lastProbe)
		b.next = now.Add(b.jitter())
	case b.failures >= downAfter && now.Sub(b.first) >= downFor,
		!b.answered && b.failures >= absentAfter && now.Sub(b.first) >= absentFor:
		b.down, b.delay = true, firstProbe
		b.next = now.Add(b.jitter())
		b.log.Warn("the origin does not answer; what is not on this machine fails until it does", "err", err, "hint", fault.HintOf(err))
	}
}

// jitter keeps machines from asking in step.
func (b *breaker) jitter() time.Duration { return time.Duration((0.5 + b.rand()/2) * float64(b.delay)) }

// Health is how an origin does.
type Health struct {
	Up    bool
	Since time.Time // of the first failure that no answer has followed; zero if there is none
	Err   error     // the last such failure; nil if there is none
}

// Health says whether the origin answers, as far as is known.
func (o *Origin) Health() Health {
	b := &o.breaker
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures == 0 {
		return Health{Up: true}
	}
	return Health{Up: !b.down, Since: b.first, Err: b.err}
}

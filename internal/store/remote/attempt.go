package remote

import (
	"context"
	"errors"
	"fmt"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// repeat says whether something may be done twice.
type repeat bool

const (
	again         repeat = true
	onlyIfRefused repeat = false
)

// Delays before further attempts: a random part of firstDelay, then of twice as much, ...
const (
	firstDelay = 100 * time.Millisecond
	lastDelay  = 2 * time.Second
)

// try does something small until it works, fails for good, or the time is up.
func (o *Origin) try(ctx context.Context, key string, r repeat, fn func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, o.opts.Overall, errOverall)
	defer cancel()
	return o.persist(ctx, key, r, func(ctx context.Context) error {
		attempt, cancel := context.WithTimeoutCause(ctx, o.opts.Attempt, errAttempt)
		defer cancel()
		return late(attempt, fn(attempt))
	})
}

// Why a context ended that the caller's did not end.
var (
	errAttempt = errors.New("no answer in time")
	errOverall = errors.New("given up")
)

// late tells an attempt that took too long from a caller that went away.
func late(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil || !errors.Is(context.Cause(ctx), errAttempt) {
		return err
	}
	if c := fault.ClassOf(err); c != fault.Timeout && c != fault.Cancelled {
		return err
	}
	return fault.New(fault.Unavailable, "%w", errAttempt).WithHint("Is the origin overloaded, or the network to it?")
}

// persist makes attempts. Each waits for a slot.
func (o *Origin) persist(ctx context.Context, key string, r repeat, fn func(ctx context.Context) error) error {
	began := time.Now()
	for n := 1; ; n++ {
		err := o.attempt(ctx, fn)
		if err == nil || !o.repeatable(err, r) {
			return o.given(ctx, err, key)
		}
		if n == o.opts.Attempts {
			return gaveUp(err, n, began)
		}
		o.counts.retries.Add(1)
		delay := min(firstDelay<<(n-1), lastDelay)
		select {
		case <-time.After(time.Duration(o.opts.Rand() * float64(delay))):
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), errOverall) {
				return gaveUp(err, n, began)
			}
			return fault.Wrap(ctx.Err(), "wait for", key)
		}
	}
}

// attempt makes one attempt, if the breaker lets it.
func (o *Origin) attempt(ctx context.Context, fn func(ctx context.Context) error) error {
	done, err := o.breaker.allow()
	if err != nil {
		o.counts.refused.Add(1)
		return err
	}
	select {
	case o.slots <- struct{}{}:
		defer func() { <-o.slots }()
	case <-ctx.Done():
		done(ctx.Err())
		return ctx.Err()
	}
	o.counts.requests.Add(1)
	err = fn(ctx)
	if err != nil {
		o.counts.note(err)
	}
	done(err)
	return err
}

// repeatable reports whether another attempt may go better.
func (o *Origin) repeatable(err error, r repeat) bool {
	if errors.Is(err, errDown) || !fault.Is(err, fault.Unavailable) {
		return false
	}
	return r == again || errors.Is(err, store.ErrRefused)
}

// given makes an answer of an error: that the time was up is no fault of the caller's.
func (o *Origin) given(ctx context.Context, err error, key string) error {
	if err != nil && ctx.Err() != nil && errors.Is(context.Cause(ctx), errOverall) && (fault.Is(err, fault.Timeout) || fault.Is(err, fault.Cancelled)) {
		return fault.New(fault.Unavailable, "%s: no answer in %v", key, o.opts.Overall)
	}
	return err
}

func gaveUp(err error, attempts int, began time.Time) error {
	if attempts == 1 {
		return err
	}
	return &fault.Error{Class: fault.ClassOf(err), Hint: fault.HintOf(err),
		Err: fmt.Errorf("%w (%d attempts in %v)", err, attempts, time.Since(began).Round(time.Millisecond))}
}

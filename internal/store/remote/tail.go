package remote

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// tail remembers how long small reads took of late, and how many second ones may be made.
type tail struct {
	mu      sync.Mutex
	recent  [128]time.Duration
	n       int // how many there have been
	median  time.Duration
	slow    time.Duration // 19 of 20 were faster
	allowed float64       // second requests
}

const (
	hedgeShare = 0.05 // of the reads, at most
	hedgeBurst = 4    // may come together
	hedgeFrom  = 20   // reads, before which nothing is known
	hedgeSize  = 256 << 10
	// Below this a second request costs more than it can save.
	hedgeLeast = 2 * time.Millisecond
)

// note remembers one more.
func (t *tail) note(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.recent[t.n%len(t.recent)] = d
	t.n++
	if t.n >= hedgeFrom && (t.n%16 == 0 || t.n == hedgeFrom) {
		sorted := slices.Sorted(slices.Values(t.recent[:min(t.n, len(t.recent))]))
		t.median, t.slow = sorted[len(sorted)/2], sorted[len(sorted)*95/100]
	}
}

// patience is how long a read is waited for before there is a second: longer than
// 19 of 20 take, by half the usual, since where latencies hardly differ that is no tail. False: for ever.
func (t *tail) patience() (time.Duration, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.allowed = min(t.allowed+hedgeShare, hedgeBurst)
	return max(t.slow+t.median/2, hedgeLeast), t.slow > 0
}

// take takes one second request from what is allowed.
func (t *tail) take() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.allowed < 1 {
		return false
	}
	t.allowed--
	return true
}

// usual is the median latency; 0 if it is not known.
func (t *tail) usual() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.median
}

// hedged reads, and once more if that takes long. The first read is the caller's
// goroutine's own: usually there is no other. It has ended when hedged returns; the
// second may go on for a moment, and what it then gives is thrown away. Precondition: the caller has entered.
func hedged[T any](ctx context.Context, o *Origin, read func(ctx context.Context, second bool) (T, error)) (T, error) {
	patience, known := o.tail.patience()
	if !known {
		return timed(ctx, o, false, read)
	}
	type answer struct {
		v   T
		err error
		is  bool // there was a second read
	}
	mine, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	theirs, cancelTheirs := context.WithCancelCause(ctx)
	second := make(chan answer, 1)
	o.wg.Add(1)
	slow := time.AfterFunc(patience, func() {
		defer o.wg.Done()
		if !o.hedge() {
			second <- answer{}
			return
		}
		defer func() { <-o.slots }()
		v, err := timed(theirs, o, true, read)
		second <- answer{v, err, true}
		if err == nil {
			cancel(errLost)
		}
	})
	v, err := timed(mine, o, false, read)
	if slow.Stop() {
		o.wg.Done()
		cancelTheirs(nil)
		return v, err
	}
	lost := err != nil && errors.Is(context.Cause(mine), errLost)
	if !lost && !fault.Is(err, fault.Unavailable) {
		cancelTheirs(errLost)
		return v, err
	}
	defer cancelTheirs(nil)
	other := <-second // it may do better, or has
	if !other.is || other.err != nil && !lost && fault.Is(other.err, fault.Unavailable) {
		return v, err
	}
	if other.err == nil {
		o.counts.hedgesWon.Add(1)
	}
	return other.v, other.err
}

// timed reads, and notes how long that took.
func timed[T any](ctx context.Context, o *Origin, second bool, read func(ctx context.Context, second bool) (T, error)) (T, error) {
	began := time.Now()
	v, err := read(ctx, second)
	if err == nil || errors.Is(context.Cause(ctx), errLost) {
		o.tail.note(time.Since(began)) // at least
	}
	return v, err
}

// hedge takes a slot for a second read, if one may be made.
func (o *Origin) hedge() bool {
	select {
	case o.slots <- struct{}{}:
	default:
		return false // there is enough to do
	}
	if !o.tail.take() {
		<-o.slots
		return false
	}
	o.counts.hedges.Add(1)
	o.counts.requests.Add(1)
	return true
}

// errLost is why the slower of two reads ends.
var errLost = errors.New("the other was faster")

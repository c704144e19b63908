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

// hedged reads, and once more if that takes long. What either gives is its own:
// the slower one may go on for a moment.
func hedged[T any](ctx context.Context, o *Origin, read func(ctx context.Context) (T, error)) (T, error) {
	timed := func(ctx context.Context) (T, error) {
		began := time.Now()
		v, err := read(ctx)
		if err == nil || errors.Is(context.Cause(ctx), errLost) {
			o.tail.note(time.Since(began)) // at least
		}
		return v, err
	}
	patience, known := o.tail.patience()
	if !known {
		return timed(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(errLost)
	type answer struct {
		v      T
		err    error
		second bool
	}
	answers := make(chan answer, 2)
	start := func(second bool) {
		o.wg.Go(func() {
			v, err := timed(ctx)
			if second {
				<-o.slots
			}
			answers <- answer{v, err, second}
		})
	}
	running := 1
	start(false)
	slow := time.NewTimer(patience)
	defer slow.Stop()
	for {
		select {
		case a := <-answers:
			running--
			if running > 0 && fault.Is(a.err, fault.Unavailable) {
				continue // the other may do better
			}
			if a.second && a.err == nil {
				o.counts.hedgesWon.Add(1)
			}
			return a.v, a.err
		case <-slow.C:
			select {
			case o.slots <- struct{}{}:
			default:
				continue // there is enough to do
			}
			if !o.tail.take() {
				<-o.slots
				continue
			}
			o.counts.hedges.Add(1)
			o.counts.requests.Add(1)
			running++
			start(true)
		}
	}
}

// errLost is why the slower of two reads ends.
var errLost = errors.New("the other was faster")

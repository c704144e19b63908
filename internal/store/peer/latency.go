package peer

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// latency is what a peer's last answers with chunks took.
type latency struct {
	mu      sync.Mutex
	samples [64]time.Duration
	n       int // taken in all

	median, slow, slowest atomic.Int64 // of the samples: 50, 95 and 99 in a hundred; 0 = none yet
	known                 atomic.Bool  // there are enough
}

// add takes a sample. A request that was given up counts with more than it was
// given, so that a peer whose answers become slower gets more time, up to the limit.
func (l *latency) add(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.samples[l.n%len(l.samples)] = d
	l.n++
	l.known.Store(l.n >= enough)
	if l.n > 8 && l.n%8 != 0 {
		return // sorting each time would cost more than it tells
	}
	s := l.samples
	taken := s[:min(l.n, len(s))]
	slices.Sort(taken)
	at := func(percent int) int64 { return max(1, int64(taken[(len(taken)-1)*percent/100])) }
	l.median.Store(at(50))
	l.slow.Store(at(95))
	l.slowest.Store(at(99))
}

// enough is how many samples say what is usual.
const enough = 16

// minDeadline is more than any LAN needs, and what a busy scheduler may take.
const minDeadline = 50 * time.Millisecond

// deadline is how long an answer may take, between two limits.
func (l *latency) deadline(least, most time.Duration) time.Duration {
	slowest := time.Duration(l.slowest.Load())
	if slowest == 0 || !l.known.Load() {
		return most
	}
	return min(max(2*slowest, least), most)
}

// hedge is when somebody else is asked beside.
func (l *latency) hedge(most time.Duration) time.Duration {
	slow := time.Duration(l.slow.Load())
	if slow == 0 || !l.known.Load() {
		return most / 4
	}
	return min(max(slow, 2*time.Millisecond), most/2)
}

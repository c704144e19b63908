package cluster

import (
	"sync"
	"time"
)

// bucket lets through burst at once, and one more every interval.
type bucket struct {
	burst    float64
	interval time.Duration

	mu   sync.Mutex
	left float64
	at   time.Time
}

func newBucket(burst int, interval time.Duration) *bucket {
	return &bucket{burst: float64(burst), interval: interval, left: float64(burst), at: time.Now()}
}

// take reports whether one more may pass now.
func (b *bucket) take() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.left = min(b.burst, b.left+float64(now.Sub(b.at))/float64(b.interval))
	b.at = now
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

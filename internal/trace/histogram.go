package trace

import (
	"sync"
	"time"
)

// Bounds are the upper ends of a Histogram's buckets, in seconds: from a warm call's
// fraction of a millisecond to a first start over a slow network.
var Bounds = [...]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}

// Histogram counts durations by their size. Its zero value is empty; safe for
// concurrent use.
type Histogram struct {
	mu sync.Mutex
	d  Distribution
}

// Distribution is what a Histogram has counted.
type Distribution struct {
	Count   uint64
	Sum     float64             // seconds
	Buckets [len(Bounds)]uint64 // how many took at most Bounds[i], those of smaller buckets included
}

// Observe counts one; a negative duration, of a clock that was set back, is 0.
func (h *Histogram) Observe(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := max(d.Seconds(), 0)
	h.d.Count++
	h.d.Sum += s
	for i, bound := range Bounds {
		if s <= bound {
			h.d.Buckets[i]++
		}
	}
}

// Read gives the counts.
func (h *Histogram) Read() Distribution {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.d
}

// Add adds the counts of another.
func (d *Distribution) Add(o Distribution) {
	d.Count += o.Count
	d.Sum += o.Sum
	for i := range d.Buckets {
		d.Buckets[i] += o.Buckets[i]
	}
}

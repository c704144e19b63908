package cluster

import (
	"sync"
	"time"
)

// clock is the cluster's time: a time that was right once, and the monotonic
// clock since. Jumps of the wall clock do not reach it.
type clock struct {
	mu   sync.Mutex
	then time.Time // cluster's
	at   time.Time // local, with its monotonic reading
}

// newClock starts at what the wall clock says.
func newClock(wall time.Time) *clock {
	return &clock{then: wall.Round(0), at: time.Now()}
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.then.Add(time.Since(c.at))
}

// set takes over what the control node says. The journey of the answer is not
// allowed for: it is far below the leeway.
func (c *clock) set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.then, c.at = t.Round(0), time.Now()
}

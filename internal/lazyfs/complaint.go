package lazyfs

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// complaints logs each kind of trouble with each image once a minute at most: a
// process that meets EIO tends to try again, thousands of times.
type complaints struct {
	log *slog.Logger

	mu   sync.Mutex
	last map[[2]string]*complaint
}

type complaint struct {
	at    time.Time
	since int // not logged since then
}

const quiet = time.Minute

func newComplaints(log *slog.Logger) *complaints {
	return &complaints{log: log, last: map[[2]string]*complaint{}}
}

// say logs, or counts for the next time.
func (c *complaints) say(level slog.Level, id, kind, message string, args ...any) {
	c.mu.Lock()
	key, now := [2]string{id, kind}, time.Now()
	l := c.last[key]
	if l == nil {
		l = &complaint{}
		c.last[key] = l
	}
	if now.Sub(l.at) < quiet {
		l.since++
		c.mu.Unlock()
		return
	}
	if l.since > 0 {
		args = append(args, "repeated", l.since)
	}
	l.at, l.since = now, 0
	c.mu.Unlock()
	c.log.Log(context.Background(), level, message, args...)
}

// forget drops what is remembered of an image.
func (c *complaints) forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.last {
		if k[0] == id {
			delete(c.last, k)
		}
	}
}

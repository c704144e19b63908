// Package trace records the steps of one piece of work and their times, so that
// a cold start can be explained millisecond by millisecond.
//
// A Trace travels in a context. Code that does a step calls Begin and the function it returns;
// without a trace in the context that costs nothing. Steps may overlap and may
// be recorded from any goroutine.
package trace

import (
	"context"
	"sync"
	"time"
)

// Step is one span: Start and Duration are in milliseconds, Start counted from
// the beginning of the trace. Name is one of few: what differs from time to time is in
// Note ("restored", "512 chunks").
type Step struct {
	Name  string  `json:"name"`
	Start float64 `json:"start_ms"`
	MS    float64 `json:"ms"`
	Note  string  `json:"note,omitempty"`
}

// Trace collects steps. Its zero value is not usable: call New.
type Trace struct {
	began time.Time
	mu    struct {
		sync.Mutex
		steps []Step
	}
}

// New starts a trace now.
func New() *Trace { return &Trace{began: time.Now()} }

// Began is when the trace started.
func (t *Trace) Began() time.Time { return t.began }

// Steps is a copy of what has ended so far, in the order of ending.
func (t *Trace) Steps() []Step {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]Step(nil), t.mu.steps...)
}

// Add records a step that is over.
func (t *Trace) Add(name string, start time.Time, d time.Duration, note string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.steps = append(t.mu.steps, Step{Name: name, Start: ms(start.Sub(t.began)), MS: ms(d), Note: note})
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

type key struct{}

// With puts t into the context.
func With(ctx context.Context, t *Trace) context.Context { return context.WithValue(ctx, key{}, t) }

// From is the context's trace, or nil, on which Add does nothing.
func From(ctx context.Context) *Trace {
	t, _ := ctx.Value(key{}).(*Trace)
	return t
}

// Begin starts a step; the returned function ends it, with a note or "".
func Begin(ctx context.Context, name string) func(note string) {
	t := From(ctx)
	if t == nil {
		return func(string) {}
	}
	start := time.Now()
	return func(note string) { t.Add(name, start, time.Since(start), note) }
}

// Merge adds the steps of another trace, each at its own time; one that began
// before t has a negative start.
func (t *Trace) Merge(other *Trace) {
	if t == nil || other == nil {
		return
	}
	shift := ms(other.began.Sub(t.began))
	steps := other.Steps()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range steps {
		s.Start += shift
		t.mu.steps = append(t.mu.steps, s)
	}
}

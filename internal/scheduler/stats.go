package scheduler

import (
	"maps"
	"sync"
	"time"

	"brisk.dev/brisk/internal/trace"
)

// Stats are numbers of all workspaces together: what there is now, and counts since Open.
type Stats struct {
	Running    int            // calls that have an instance, now
	Waiting    int            // calls that wait for one, now
	Instances  map[string]int // now, by state: busy, idle, created, starting
	Containers int            // now

	Calls    map[CallState]int64           // that have ended, by how
	Waits    map[string]trace.Distribution // of calls for an instance, by CallRecord.Start
	Runs     trace.Distribution            // of calls, from when they had an instance
	Starts   map[string]trace.Distribution // of instances, by how they started: as CallRecord.Start, never warm
	Steps    map[string]trace.Distribution // of these starts, by trace.Step.Name
	Unborn   int64                         // instances that did not start
	Snapped  int64                         // snapshots made
	Unmade   int64                         // snapshots that could not be made
	Finished int64                         // containers that ran and ended
}

// tallies are the counts of a scheduler. All maps have few keys: they are words of this
// package and its like, never of a user.
type tallies struct {
	mu                                sync.Mutex
	calls                             map[CallState]int64
	waits                             map[string]*trace.Histogram
	starts                            map[string]*trace.Histogram
	steps                             map[string]*trace.Histogram
	runs                              trace.Histogram
	unborn, snapped, unmade, finished int64
}

func newTallies() *tallies {
	return &tallies{
		calls: map[CallState]int64{}, waits: map[string]*trace.Histogram{}, starts: map[string]*trace.Histogram{},
		steps: map[string]*trace.Histogram{},
	}
}

// of gives the histogram of a word. Precondition: the lock is held.
func of(m map[string]*trace.Histogram, word string) *trace.Histogram {
	h := m[word]
	if h == nil {
		h = new(trace.Histogram)
		m[word] = h
	}
	return h
}

// called counts a call's end.
func (t *tallies) called(state CallState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls[state]++
}

// waited counts a call that has its instance.
func (t *tallies) waited(kind string, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	of(t.waits, kind).Observe(d)
}

// started counts an instance that lives, and the steps to it.
func (t *tallies) started(st *start) {
	took := time.Since(st.trace.Began())
	t.mu.Lock()
	defer t.mu.Unlock()
	of(t.starts, st.kind).Observe(took)
	for _, s := range st.trace.Steps() {
		if s.MS > 0 { // else it is only a note
			of(t.steps, s.Name).Observe(time.Duration(s.MS * float64(time.Millisecond)))
		}
	}
}

// add counts in one of the plain numbers.
func (t *tallies) add(n *int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	*n++
}

// Stats gives the counts.
func (s *Scheduler) Stats() Stats {
	st := Stats{Instances: map[string]int{"busy": 0, "idle": 0, "created": 0, "starting": 0}}
	s.mu.Lock()
	pools := make([]*pool, 0, len(s.mu.pools))
	for _, p := range s.mu.pools {
		pools = append(pools, p)
	}
	st.Containers = len(s.mu.containers)
	s.mu.Unlock()
	for _, p := range pools {
		p.mu.Lock()
		st.Running += len(p.mu.busy)
		st.Waiting += len(p.mu.waiters)
		st.Instances["busy"] += len(p.mu.busy)
		st.Instances["idle"] += len(p.mu.idle)
		st.Instances["created"] += len(p.mu.created)
		st.Instances["starting"] += p.mu.starting
		p.mu.Unlock()
	}
	t := s.tallies
	t.mu.Lock()
	defer t.mu.Unlock()
	st.Calls = maps.Clone(t.calls)
	st.Waits, st.Starts, st.Steps = read(t.waits), read(t.starts), read(t.steps)
	st.Runs = t.runs.Read()
	st.Unborn, st.Snapped, st.Unmade, st.Finished = t.unborn, t.snapped, t.unmade, t.finished
	return st
}

func read(m map[string]*trace.Histogram) map[string]trace.Distribution {
	out := map[string]trace.Distribution{}
	for word, h := range m {
		out[word] = h.Read()
	}
	return out
}

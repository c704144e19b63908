package image

import (
	"sync"
	"sync/atomic"
)

// touches is the order in which the chunks of a device were first read. What the
// kernel has in its page cache is not read again, so one order for all who use a
// mount loses nothing that recordings of their own would have.
type touches struct {
	seen []atomic.Uint64 // a bit a chunk, so that all but the first read of one take no lock

	mu     sync.Mutex
	order  []uint32
	cold   bool // since order began, the page cache has had nothing else
	active map[*Recording]struct{}
}

func newTouches(chunks int) touches {
	return touches{seen: make([]atomic.Uint64, (chunks+63)/64), active: map[*Recording]struct{}{}}
}

func (t *touches) note(chunk int) {
	word, bit := &t.seen[chunk/64], uint64(1)<<(chunk%64)
	if word.Load()&bit != 0 || word.Or(bit)&bit != 0 {
		return
	}
	t.mu.Lock()
	t.order = append(t.order, uint32(chunk))
	t.mu.Unlock()
}

// Recording watches which chunks of an image are read for the first time while
// something starts on it. Its methods are safe for concurrent use.
type Recording struct {
	of    *touches
	from  int
	ready int // -1: not yet
	alone bool
}

// Run is what a recording saw: chunks as indices of Blocks.Chunks, each list in
// the order of first reading.
type Run struct {
	Before []uint32 // read before it began; the start may have used them as well, from the page cache
	Chunks []uint32 // read while it lasted
	Ready  int      // so many of Chunks were read before Ready was called
	// Complete means that Chunks is all that the start needed, and nothing else:
	// the image had been mounted for it, and nobody else started meanwhile.
	Complete bool
}

// Mounted says that the image has been mounted. fresh means that the kernel has nothing
// of it in its page cache; otherwise an earlier server's reads may be there.
func (b *Blocks) Mounted(fresh bool) {
	t := &b.touches
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.active) > 0 {
		fresh = false
	}
	if t.cold = fresh; fresh {
		for i := range t.seen {
			t.seen[i].Store(0)
		}
		t.order = nil
	}
}

// Record begins a recording. The first after Mounted has also what was read since then:
// by whoever prepared the start.
func (b *Blocks) Record() *Recording {
	t := &b.touches
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &Recording{of: t, ready: -1, from: len(t.order)}
	if t.cold {
		r.alone, r.from, t.cold = true, 0, false
	}
	for other := range t.active {
		r.alone, other.alone = false, false
	}
	t.active[r] = struct{}{}
	return r
}

// Ready marks the moment at which the start is over, as far as its user is
// concerned; only the first call counts.
func (r *Recording) Ready() {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	if r.ready < 0 {
		r.ready = len(r.of.order) - r.from
	}
}

// Stop ends the recording and says what it saw. Without a call of Ready all of it
// was before that. Further calls give an empty Run.
func (r *Recording) Stop() Run {
	t := r.of
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.active[r]; !ok {
		return Run{}
	}
	delete(t.active, r)
	run := Run{Ready: r.ready, Complete: r.alone}
	run.Before, run.Chunks = append(run.Before, t.order[:r.from]...), append(run.Chunks, t.order[r.from:]...)
	if run.Ready < 0 {
		run.Ready = len(run.Chunks)
	}
	return run
}

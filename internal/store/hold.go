package store

import (
	"sync"
	"sync/atomic"
)

// holds is a clock and those who hold. Each hold ticks the clock and remembers
// the tick. What is written or relied on is marked with the clock as it stands.
// So everything that a hold has to protect has a mark not before its tick.
type holds struct {
	clock  atomic.Uint64
	mu     sync.Mutex
	active map[uint64]struct{}
	blobs  map[Digest]uint64 // marks of blobs; those of packs are in the index
}

// Hold protects from Retain whatever is written or relied on from now until
// release: by PutBlob, and by batches that are committed after now, which hold by
// themselves until then. It protects what is relied on in the base, too. Release it when the manifest that refers to all that is
// durable. It blocks nobody.
func (s *Store) Hold() (release func()) {
	base := s.base.Load()
	if base == nil {
		return s.holds.hold()
	}
	own, bases := s.holds.hold(), base.holds.hold()
	return func() { own(); bases() }
}

func (h *holds) hold() (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	tick := h.clock.Add(1)
	if h.active == nil {
		h.active = map[uint64]struct{}{}
	}
	h.active[tick] = struct{}{}
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.active, tick)
	})
}

func (h *holds) now() uint64 { return h.clock.Load() }

// since is the tick of the oldest hold, or of the next if there is none: what
// has a mark before it is nobody's.
func (h *holds) since() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	since := h.clock.Load() + 1
	for tick := range h.active {
		since = min(since, tick)
	}
	return since
}

// touchBlob marks a blob that was just put.
func (h *holds) touchBlob(d Digest) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.blobs == nil {
		h.blobs = map[Digest]uint64{}
	}
	h.blobs[d] = h.clock.Load()
}

// forgetBlob drops a blob's mark unless that is at or after since, and reports
// whether the blob may be deleted.
func (h *holds) forgetBlob(d Digest, since uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.blobs[d] >= since {
		return false
	}
	delete(h.blobs, d)
	return true
}

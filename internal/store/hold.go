package store

import (
	"context"
	"sync"
	"sync/atomic"
)

// Hold protects from collection whatever is written or relied on, in the store or its
// base, from its beginning until Release: by PutBlob, and by batches that are committed after
// it began, which hold by themselves until then.
//
// With an origin that several machines share it is a lease there, which begins when
// something is first written or relied on. What is held is therefore named by
// Publish, which makes sure that the lease is alive.
type Hold struct {
	s      *Store
	local  func()
	tenure *tenure // nil: the origin is this process's alone
	base   *Hold
	once   sync.Once
}

// Hold begins a hold and returns what ends it. It blocks nobody.
func (s *Store) Hold() (release func()) { return s.hold().Release }

// Claim is Hold for who will name what it holds: Publish.
func (s *Store) Claim() *Hold { return s.hold() }

func (s *Store) hold() *Hold {
	h := &Hold{s: s, local: s.holds.hold(), tenure: s.join()}
	if base := s.base.Load(); base != nil {
		h.base = base.hold()
	}
	return h
}

// Release ends the hold, once. It does not block.
func (h *Hold) Release() {
	h.once.Do(func() {
		h.local()
		h.tenure.leave()
		if h.base != nil {
			h.base.Release()
		}
	})
}

// again gives another hold that protects the same, whose end is its own.
func (h *Hold) again() *Hold {
	twin := &Hold{s: h.s, local: h.s.holds.hold(), tenure: h.tenure}
	if h.tenure != nil {
		h.s.tenures.mu.Lock()
		h.tenure.holds++
		h.s.tenures.mu.Unlock()
	}
	if h.base != nil {
		twin.base = h.base.again()
	}
	return twin
}

// await returns when the hold protects.
func (h *Hold) await(ctx context.Context) error {
	for ; h != nil; h = h.base {
		if err := h.tenure.await(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Publish makes something durable with write that names these packs and blobs, which
// were written or relied on under this hold. It fails without that if one of them may have been deleted,
// because this machine was asleep for too long. If that turns out afterwards, it calls undo,
// which must remove nothing but what write has written. After an error it is not known whether write will
// still have an effect.
func (h *Hold) Publish(ctx context.Context, packs, blobs []Digest, write, undo func() error) error {
	if h.base != nil {
		inner := write
		write = func() error { return h.base.Publish(ctx, packs, nil, inner, undo) }
	}
	if h.tenure == nil {
		return write()
	}
	if err := h.tenure.await(ctx); err != nil {
		return err
	}
	var keys []string
	for _, d := range packs {
		if _, ours := h.s.index.size(d); ours {
			keys = append(keys, packKey(d))
		}
	}
	for _, d := range blobs {
		if key, ok := h.s.placed.Load(d); ok {
			keys = append(keys, key.(string))
		}
	}
	return h.tenure.lease.commit(ctx, keys, write, undo)
}

// spares reports whether an object may be relied on as it is.
func (h *Hold) spares(key string) bool {
	return h.tenure == nil || h.tenure.lease.judge(key) == spared
}

// pardon sees to it that a chunk can be relied on, if it is stored only in packs that are
// condemned. Precondition: await.
func (h *Hold) pardon(ctx context.Context, c Chunk) error {
	for ; h != nil; h = h.base {
		if h.tenure == nil || !h.tenure.lease.strict() {
			continue
		}
		for _, at := range h.s.index.find(h.s, c.Digest) {
			ok, err := h.tenure.lease.rely(ctx, packKey(at.pack))
			if err != nil {
				return err
			}
			if ok {
				return nil
			}
		}
	}
	return nil
}

// rely finds a good copy of a chunk to be relied on; if it is to be current, of this epoch only.
func (h *Hold) rely(c Chunk, current bool) (in Digest, ok bool) {
	for ; h != nil; h = h.base {
		will := func(p *pack) bool { return (!current || h.s.current(p)) && h.spares(packKey(p.digest)) }
		if in, ok = h.s.index.rely(c.Digest, c.Size, h.s.holds.now, will); ok {
			return in, true
		}
	}
	return in, false
}

// holds is a clock and those who hold. Each hold ticks the clock and remembers
// the tick. What is written or relied on is marked with the clock as it stands.
// So everything that a hold has to protect has a mark not before its tick. This is all there is
// if the origin is this process's alone.
type holds struct {
	clock  atomic.Uint64
	mu     sync.Mutex
	active map[uint64]struct{}
	blobs  map[Digest]uint64 // marks of blobs; those of packs are in the index
}

func (h *holds) hold() (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	tick := h.clock.Add(1)
	if h.active == nil {
		h.active = map[uint64]struct{}{}
	}
	h.active[tick] = struct{}{}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.active, tick)
	}
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
// whether the blob may be deleted. With dry it only reports.
func (h *holds) forgetBlob(d Digest, since uint64, dry bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.blobs[d] >= since {
		return false
	}
	if !dry {
		delete(h.blobs, d)
	}
	return true
}

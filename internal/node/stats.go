package node

import (
	"context"
	"maps"

	"brisk.dev/brisk/internal/image"
)

// Filling is how the fetching of the rest of an image ended.
type Filling string

// The ways. What had no room, or failed, is tried again after the next start on the image.
const (
	Filled    Filling = "complete"
	NoRoom    Filling = "no room" // in the cache, without evicting
	Failed    Filling = "failed"
	Cancelled Filling = "cancelled" // the image was removed, or the node closed
)

// Stats are what is mounted and fetched now, and counts since Open.
type Stats struct {
	Lazy, Native int // images mounted so; one may be both
	Used         int // of these mounts, those that something runs on

	Queued       int   // images whose rest is to be fetched
	Filling      bool  // the rest of one is being fetched,
	MissingBytes int64 // so much of it is not here yet,
	TotalBytes   int64 // of so much
	Filled       map[Filling]int64
}

// Stats gives the counts. It waits for nothing.
func (n *Node) Stats() Stats { return n.mounts.stats() }

func (m *mounts) stats() (s Stats) {
	m.mu.Lock()
	for key, r := range m.roots {
		if key.native {
			s.Native++
		} else {
			s.Lazy++
		}
		if r.users > 0 {
			s.Used++
		}
	}
	s.Queued = len(m.todo)
	s.Filled = map[Filling]int64{Filled: 0, NoRoom: 0, Failed: 0, Cancelled: 0}
	maps.Copy(s.Filled, m.ended)
	var blocks *image.Blocks
	if m.filling != "" && m.fill {
		s.Filling = true
		if r := m.roots[rootKey{m.filling, false}]; r != nil { // it was started on, so its table is known
			blocks = r.blocks
		}
	}
	m.mu.Unlock()
	if blocks != nil {
		for _, c := range blocks.Chunks() {
			s.TotalBytes += int64(c.Size)
			if !m.slab.Has(c.Digest) {
				s.MissingBytes += int64(c.Size)
			}
		}
	}
	return s
}

// filled counts an attempt to fetch the rest of an image.
func (m *mounts) filled(ctx context.Context, complete bool, err error) {
	how := Filled
	switch {
	case ctx.Err() != nil:
		how = Cancelled
	case err != nil:
		how = Failed
	case !complete:
		how = NoRoom
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended[how]++
}

package image

import (
	"cmp"
	"encoding/hex"
	"slices"
	"time"

	"brisk.dev/brisk/internal/store"
)

// Entry names what is started on an image, as far as it decides what is read: a
// function, a command, the restoring of a function's snapshot.
type Entry struct {
	ID    EntryID
	Label string // for people
}

// EntryID is the beginning of the digest of what identifies an entry point.
type EntryID [8]byte

// maxLabel bounds Entry.Label, in bytes.
const maxLabel = 200

// NewEntry makes an Entry of a kind ("function", "command", ...) and what
// identifies one of that kind.
func NewEntry(kind string, identity ...string) Entry {
	e := Entry{Label: kind}
	var b []byte
	for _, s := range append([]string{kind}, identity...) {
		b = append(append(b, s...), 0)
	}
	for _, s := range identity {
		e.Label += " " + s
	}
	if len(e.Label) > maxLabel {
		e.Label = e.Label[:maxLabel]
	}
	d := store.Sum(b)
	e.ID = EntryID(d[:])
	return e
}

// String gives the 16 hexadecimal digits that name the entry's profile.
func (e EntryID) String() string { return hex.EncodeToString(e[:]) }

// Profile is what a start of one entry point on one image reads, learnt from the
// starts that there were. docs/format/profile.md is its stored form.
type Profile struct {
	Image   store.Digest
	Entry   Entry
	Runs    uint32         // complete ones that it was learnt from
	Partial uint32         // and others, which saw part of what they used
	Updated time.Time      // to the second
	Chunks  []ProfileChunk // in the order of use
	Hot     []store.HotPack
}

// ProfileChunk is a chunk that a start reads.
type ProfileChunk struct {
	store.Chunk
	Late bool   // only after the start was ready: by the first call
	Rank uint32 // its earliest place in the order of a run
	Heat uint8  // 1 to hottest; at 0 it is forgotten
}

const (
	// A chunk that was seen once goes after newHeat complete runs without it; each
	// run with it makes up for one without, up to hottest.
	newHeat = 4
	hottest = 12

	// maxProfile bounds the chunks of a profile: 2 GiB, the last of which arrive a
	// minute after the first over the fastest of links.
	maxProfile = 1 << 14
)

// List gives the chunks in the order of use.
func (p *Profile) List() []store.Chunk {
	l := make([]store.Chunk, len(p.Chunks))
	for i, c := range p.Chunks {
		l[i] = c.Chunk
	}
	return l
}

// Bytes is the size of the chunks.
func (p *Profile) Bytes() (n int64) {
	for _, c := range p.Chunks {
		n += int64(c.Size)
	}
	return n
}

// Merge learns from a run on a device of these chunks, and says how many chunks
// came, went, or changed sides of the moment of being ready.
//
// A complete run counts against the chunks that it did not read, and replaces what
// is known from partial runs only. A partial run proves nothing unneeded; the
// first adds also what had been read before it, for it may have used that.
func (p *Profile) Merge(r Run, device []store.Chunk) (changes int) {
	p.Updated = time.Now().Truncate(time.Second)
	seen := r.Chunks
	ready := r.Ready
	old := p.Chunks
	switch {
	case r.Complete:
		if p.Runs == 0 {
			old = nil
		}
		p.Runs++
	default:
		p.Partial++
		if p.Runs == 0 && p.Partial == 1 {
			seen = append(slices.Clone(r.Before), r.Chunks...)
			ready += len(r.Before)
		}
	}
	merged := make([]ProfileChunk, 0, max(len(old), len(seen)))
	place := make(map[store.Digest]int, len(old))
	for _, c := range old {
		place[c.Digest] = len(merged)
		merged = append(merged, c)
	}
	present := make([]bool, len(merged))
	// A partial run has no ranks of its own: what it read first, a complete one reads somewhere.
	base := uint32(0)
	if !r.Complete && len(old) > 0 {
		base = merged[len(merged)-1].Rank + 1
	}
	for rank, i := range seen {
		if int(i) >= len(device) || device[i].Digest.IsZero() {
			continue // not of this device
		}
		c := ProfileChunk{Chunk: device[i], Late: rank >= ready, Rank: base + uint32(rank), Heat: newHeat}
		at, known := place[c.Digest]
		if !known {
			place[c.Digest] = len(merged)
			merged, present = append(merged, c), append(present, true) //nolint:makezero // of the old ones
			changes++
			continue
		}
		m := &merged[at]
		present[at] = true
		m.Heat = min(m.Heat+2, hottest)
		if r.Complete || m.Late && !c.Late {
			m.Rank = min(m.Rank, c.Rank)
		}
		if m.Late && !c.Late {
			m.Late = false
			changes++
		}
	}
	kept := merged[:0]
	for i, c := range merged {
		if r.Complete && !present[i] {
			if c.Heat--; c.Heat == 0 {
				changes++
				continue
			}
		}
		kept = append(kept, c)
	}
	slices.SortStableFunc(kept, func(a, b ProfileChunk) int {
		if a.Late != b.Late {
			return cmp.Compare(b2i(a.Late), b2i(b.Late))
		}
		return cmp.Compare(a.Rank, b.Rank)
	})
	if r.Complete && p.Runs == 1 {
		changes = len(kept)
	}
	p.Chunks = slices.Clip(kept[:min(len(kept), maxProfile)])
	return changes
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Stale reports whether the hot packs lack much of what the profile lists, or
// hold much that it does not.
func (p *Profile) Stale() bool {
	hot := map[store.Digest]bool{}
	var held, wanted, both int64
	for _, h := range p.Hot {
		for _, f := range h.Frames {
			hot[f.Digest] = true
			held += int64(f.Size)
		}
	}
	for _, c := range p.Chunks {
		wanted += int64(c.Size)
		if hot[c.Digest] {
			both += int64(c.Size)
		}
	}
	return wanted-both > wanted/8 || held-both > wanted/4
}

// parseEntryID reads what EntryID.String writes.
func parseEntryID(digits string) (id EntryID, ok bool) {
	b, err := hex.DecodeString(digits)
	if err != nil || len(b) != len(id) {
		return id, false
	}
	return EntryID(b), EntryID(b).String() == digits
}

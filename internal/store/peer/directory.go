package peer

import (
	"encoding/binary"
	"slices"
	"sync"

	"brisk.dev/brisk/internal/store"
)

// directory is who has announced what, in two generations: when the young one is
// full it becomes the old one, which is forgotten. So it keeps between half and all of
// what it may hold, the latest. It knows names by their first 8 bytes: a mix-up costs
// one request that finds nothing.
type directory struct {
	limit int // entries of a generation

	mu         sync.Mutex
	young, old map[uint64]holders
	numbers    map[string]uint16 // members, as holders has them
	members    []string
}

// holders are up to four members by number, from 1, the latest first.
type holders [4]uint16

// directorySize is 32 GiB of whole chunks in each of the two generations. They take
// some 20 MB together when full.
const directorySize = 256 << 10

// maxMembers is how many names of members there may ever be, for a process.
const maxMembers = 1<<16 - 1

func newDirectory(limit int) *directory {
	return &directory{limit: limit, young: map[uint64]holders{}, numbers: map[string]uint16{}}
}

func entryOf(name *store.Digest) uint64 { return binary.LittleEndian.Uint64(name[8:]) }

// add notes that a member has chunks.
func (d *directory) add(member string, names []store.Digest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, known := d.numbers[member]
	if !known {
		if len(d.members) == maxMembers {
			return
		}
		d.members = append(d.members, member)
		n = uint16(len(d.members))
		d.numbers[member] = n
	}
	for i := range names {
		key := entryOf(&names[i])
		h, in := d.young[key]
		if !in {
			h = d.old[key]
		}
		at := slices.Index(h[:], n)
		if at < 0 {
			at = len(h) - 1
		}
		copy(h[1:at+1], h[:at])
		h[0] = n
		if !in && len(d.young) >= d.limit {
			d.old, d.young = d.young, make(map[uint64]holders, d.limit)
		}
		d.young[key] = h
	}
}

// find gives the members that have announced a chunk, the latest first.
func (d *directory) find(name *store.Digest) (l []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := entryOf(name)
	h, in := d.young[key]
	if !in {
		h = d.old[key]
	}
	for _, n := range h {
		if n != 0 {
			l = append(l, d.members[n-1])
		}
	}
	return l
}

func (d *directory) len() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.young) + len(d.old)
}

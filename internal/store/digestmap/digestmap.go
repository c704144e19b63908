// Package digestmap finds small numbers by digests, in 10 to 15 bytes a number.
//
// A Map does not hold the digests: whoever uses one numbers its entries, has the
// digest in the entry, and compares. In exchange it takes a quarter of the memory of a
// Go map of digests' beginnings, and has no pointers for the garbage collector to
// follow. It is an open-addressing table with linear probing: a place is 32 bits of
// a hash and the number. The hash is seeded at random, so that who chooses contents
// cannot choose what lies beside them.
//
// # Who may block whom
//
// A Map has no lock: it is read by many or changed by one.
package digestmap

import (
	"encoding/binary"
	"iter"
	"math/bits"
	"math/rand/v2"
)

// Map has numbers by digests. A digest may have several. The zero Map is empty.
type Map struct {
	places []uint64 // tag, and the number plus one; 0: free
	n      int
	seed   uint64 // odd; 0: not drawn yet
}

// Max is the largest number that a Map can hold.
const Max = 1<<32 - 2

// The table grows by half when four fifths of it are taken, and shrinks when a quarter is.
const (
	smallest = 16
	full     = 5 // n*full > len*(full-1): too full
	empty    = 4 // n*empty < len: too large
)

// Len is how many numbers there are.
func (m *Map) Len() int { return m.n }

// Reserve makes room for n numbers in all.
func (m *Map) Reserve(n int) {
	if want := n*full/(full-1) + 1; want > len(m.places) {
		m.resize(want)
	}
}

// tag is the hash of a digest: its first eight bytes, which are as good as random
// unless somebody has chosen them, times an odd number that nobody knows.
func (m *Map) tag(d *[32]byte) uint32 {
	return uint32(binary.LittleEndian.Uint64(d[:]) * m.seed >> 32)
}

// home is where the search for a tag begins.
func (m *Map) home(tag uint32) int {
	hi, _ := bits.Mul64(uint64(tag)<<32, uint64(len(m.places)))
	return int(hi)
}

func (m *Map) next(i int) int {
	if i++; i == len(m.places) {
		return 0
	}
	return i
}

// Candidates gives the numbers that were added with d, and very rarely
// others: the caller compares digests. m must not be changed meanwhile.
func (m *Map) Candidates(d [32]byte) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		if m.n == 0 {
			return
		}
		tag := m.tag(&d)
		for i := m.home(tag); m.places[i] != 0; i = m.next(i) {
			if p := m.places[i]; uint32(p>>32) == tag && !yield(uint32(p)-1) {
				return
			}
		}
	}
}

// Add adds a number, at most Max.
func (m *Map) Add(d [32]byte, number uint32) {
	if m.seed == 0 {
		m.seed = rand.Uint64() | 1
	}
	if (m.n+1)*full > len(m.places)*(full-1) {
		m.resize(max(smallest, len(m.places)+len(m.places)/2))
	}
	m.put(uint64(m.tag(&d))<<32 | uint64(number+1))
	m.n++
}

func (m *Map) put(place uint64) {
	i := m.home(uint32(place >> 32))
	for m.places[i] != 0 {
		i = m.next(i)
	}
	m.places[i] = place
}

// Remove removes a number that was added with d, and reports whether it was there.
func (m *Map) Remove(d [32]byte, number uint32) bool {
	if m.n == 0 {
		return false
	}
	tag := m.tag(&d)
	place := uint64(tag)<<32 | uint64(number+1)
	i := m.home(tag)
	for ; m.places[i] != place; i = m.next(i) {
		if m.places[i] == 0 {
			return false
		}
	}
	// What follows moves up, unless it would come before its home.
	for j := m.next(i); m.places[j] != 0; j = m.next(j) {
		if h := m.home(uint32(m.places[j] >> 32)); !between(i, h, j) {
			m.places[i] = m.places[j]
			i = j
		}
	}
	m.places[i] = 0
	m.n--
	if m.n*empty < len(m.places) && len(m.places) > smallest {
		m.resize(max(smallest, len(m.places)/2))
	}
	return true
}

// between reports whether h is behind i and not behind j, going around.
func between(i, h, j int) bool {
	if i < j {
		return i < h && h <= j
	}
	return i < h || h <= j
}

func (m *Map) resize(n int) {
	old := m.places
	m.places = make([]uint64, n)
	for _, p := range old {
		if p != 0 {
			m.put(p)
		}
	}
}

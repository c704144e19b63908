package peer

import (
	"encoding/binary"

	"github.com/zeebo/blake3"

	"brisk.dev/brisk/internal/store"
)

// owners is how many members keep the directory for a name. Two, so that the death
// of one loses nothing.
const owners = 2

// seedOf makes a member's name a number. It and score are part of the protocol:
// members agree on owners only if they compute the same.
func seedOf(member string) uint64 {
	sum := blake3.Sum256([]byte(member))
	return binary.LittleEndian.Uint64(sum[:])
}

// score ranks members for a name: those with the highest are its owners. It is
// the finalizer of splitmix64; names are random, so that little is asked of it.
func score(seed uint64, name *store.Digest) uint64 {
	x := seed ^ binary.LittleEndian.Uint64(name[:])
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// table is the members that are alive, as far as this machine is told. It does not change.
type table struct {
	machines []*machine
	self     uint64 // seed of this machine
	listens  bool   // others reach this machine, and count it among the owners
}

// owners gives a name's owners, the first first; nil stands for this machine.
func (t *table) owners(name *store.Digest) (l [owners]*machine, n int) {
	var scores [owners]uint64
	put := func(m *machine, s uint64) {
		i := n
		for i > 0 && s > scores[i-1] {
			i--
		}
		if i == owners {
			return
		}
		copy(l[i+1:], l[i:])
		copy(scores[i+1:], scores[i:])
		l[i], scores[i] = m, s
		n = min(n+1, owners)
	}
	if t.listens {
		put(nil, score(t.self, name))
	}
	for _, m := range t.machines {
		put(m, score(m.seed, name))
	}
	return l, n
}

func (t *table) find(name string) *machine {
	for _, m := range t.machines {
		if m.member.Name == name {
			return m
		}
	}
	return nil
}

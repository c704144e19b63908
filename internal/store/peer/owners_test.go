package peer

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"brisk.dev/brisk/internal/store"
)

// tableOf is what one of the members sees.
func tableOf(self string, members []string) *table {
	t := &table{self: seedOf(self), listens: true}
	for _, m := range members {
		if m != self {
			t.machines = append(t.machines, &machine{member: Member{Name: m}, seed: seedOf(m)})
		}
	}
	return t
}

func (t *table) ownerNames(self string, d store.Digest) (l []string) {
	ms, n := t.owners(&d)
	for _, m := range ms[:n] {
		if m == nil {
			l = append(l, self)
		} else {
			l = append(l, m.member.Name)
		}
	}
	return l
}

func TestAllMembersAgreeOnOwners(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z0-9]{1,8}`), 1, 12, rapid.ID).Draw(t, "members")
		d := name(rapid.Int().Draw(t, "name"))
		want := tableOf(members[0], members).ownerNames(members[0], d)
		require.Len(t, want, min(owners, len(members)))
		shuffled := rapid.Permutation(members).Draw(t, "order")
		for _, self := range members {
			require.Equal(t, want, tableOf(self, shuffled).ownerNames(self, d))
		}
		// Without one that is no owner, nothing changes; without an owner, the other stays.
		if len(members) > 1 {
			g := rapid.SampledFrom(members[1:]).Draw(t, "gone")
			rest := slices.DeleteFunc(slices.Clone(members), func(m string) bool { return m == g })
			now := tableOf(members[0], rest).ownerNames(members[0], d)
			for _, o := range want {
				if o != g {
					require.Contains(t, now, o)
				}
			}
		}
	})
}

func TestOwnershipIsEven(t *testing.T) {
	members := []string{"a", "b", "c", "node-1", "node-2", "node-3", "node-4"}
	tab := tableOf("a", members)
	counts := map[string]int{}
	const names = 20000
	for i := range names {
		for _, o := range tab.ownerNames("a", name(i)) {
			counts[o]++
		}
	}
	want := float64(owners*names) / float64(len(members))
	for _, m := range members {
		require.Less(t, math.Abs(float64(counts[m])-want)/want, 0.05, "%s owns %d", m, counts[m])
	}
}

// TestOwnersAreThoseOfTheProtocol fixes the computation: members of one cluster
// must agree across versions.
func TestOwnersAreThoseOfTheProtocol(t *testing.T) {
	members := []string{"a", "b", "c", "d"}
	var got []string
	for i := range 8 {
		got = append(got, fmt.Sprint(tableOf("a", members).ownerNames("a", name(i))))
	}
	require.Equal(t, []string{"[b a]", "[d a]", "[b c]", "[b a]", "[c d]", "[a b]", "[b c]", "[d a]"}, got)
}

func TestDirectory(t *testing.T) {
	d := newDirectory(3)
	find := func(i int) []string { n := name(i); return d.find(&n) }
	d.add("a", []store.Digest{name(1), name(2)})
	d.add("b", []store.Digest{name(1)})
	require.Equal(t, []string{"b", "a"}, find(1), "the latest first")
	d.add("a", []store.Digest{name(1)})
	require.Equal(t, []string{"a", "b"}, find(1), "once each")
	for _, m := range []string{"c", "d", "e", "f"} {
		d.add(m, []store.Digest{name(2)})
	}
	require.Equal(t, []string{"f", "e", "d", "c"}, find(2), "four at most")
	require.Nil(t, find(3))

	d.add("a", []store.Digest{name(3), name(4)}) // 4 begins a new generation
	require.Equal(t, []string{"a", "b"}, find(1))
	d.add("g", []store.Digest{name(1)})
	require.Equal(t, []string{"g", "a", "b"}, find(1), "taken over into the new one")
	d.add("a", []store.Digest{name(5), name(6)})
	require.Nil(t, find(2), "forgotten")
	require.Equal(t, []string{"g", "a", "b"}, find(1))
	for i := range 1000 {
		d.add("a", []store.Digest{name(i)})
		require.LessOrEqual(t, d.len(), 6)
	}
}

func TestDeadlinesFollowAnswers(t *testing.T) {
	const most = 300 * time.Millisecond
	var l latency
	require.Equal(t, most, l.deadline(minDeadline, most), "nothing is known")
	require.Equal(t, most/4, l.hedge(most))
	for range enough - 1 {
		l.add(time.Millisecond)
	}
	require.Equal(t, most, l.deadline(minDeadline, most), "too little is known")
	for range 64 {
		l.add(time.Millisecond)
	}
	require.Equal(t, minDeadline, l.deadline(minDeadline, most))
	require.Equal(t, 2*time.Millisecond, l.hedge(most))
	for range 64 {
		l.add(40 * time.Millisecond)
	}
	require.Equal(t, 80*time.Millisecond, l.deadline(minDeadline, most))
	require.Equal(t, 40*time.Millisecond, l.hedge(most))
	// It becomes slower than it is given: the deadline follows, up to the limit.
	for range 64 {
		l.add(2 * l.deadline(minDeadline, most))
	}
	require.Equal(t, most, l.deadline(minDeadline, most))
	require.Equal(t, most/2, l.hedge(most))
}

func FuzzAnnouncement(f *testing.F) {
	f.Add(encodeAnnouncement([]store.Digest{name(1), name(2)}))
	f.Add([]byte(announceMagic))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		names, err := decodeAnnouncement(b)
		if err != nil {
			require.Nil(t, names)
			return
		}
		require.LessOrEqual(t, len(names), maxAnnounced)
		require.Equal(t, b, encodeAnnouncement(names))
	})
}

package digestmap

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func digest(n uint64) (d [32]byte) {
	binary.LittleEndian.PutUint64(d[:], n)
	return d
}

// A Map says what a map of lists says, whatever is added and removed.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m Map
		want := map[[32]byte][]uint32{}
		of := map[uint32][32]byte{}
		next := uint32(0)
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				d := digest(rapid.Uint64Range(0, 40).Draw(t, "digest"))
				for range rapid.IntRange(1, 20).Draw(t, "times") {
					m.Add(d, next)
					want[d], of[next] = append(want[d], next), d
					next++
				}
			},
			"remove": func(t *rapid.T) {
				if next == 0 {
					t.Skip()
				}
				n := rapid.Uint32Range(0, next-1).Draw(t, "number")
				d := of[n]
				i := slices.Index(want[d], n)
				require.Equal(t, i >= 0, m.Remove(d, n))
				if i >= 0 {
					want[d] = slices.Delete(want[d], i, i+1)
				}
			},
			"": func(t *rapid.T) {
				n := 0
				for d, l := range want {
					n += len(l)
					got := slices.Collect(m.Candidates(d))
					got = slices.DeleteFunc(got, func(v uint32) bool { return of[v] != d })
					require.ElementsMatch(t, l, got)
				}
				require.Equal(t, n, m.Len())
			},
		})
	})
}

func TestBytesPerNumber(t *testing.T) {
	var m Map
	for i := range uint32(100_000) {
		m.Add(digest(rand.Uint64()), i)
		if i > 1000 && 8*len(m.places) > 16*m.n {
			t.Fatalf("%d places for %d", len(m.places), m.n)
		}
	}
	m.Reserve(10)
	require.Len(t, slices.Collect(m.Candidates(digest(1))), 0)
}

func TestReserve(t *testing.T) {
	var m Map
	m.Reserve(1000)
	size := len(m.places)
	for i := range uint32(1000) {
		m.Add(digest(uint64(i)), i)
	}
	require.Len(t, m.places, size)
	for i := range uint32(1000) {
		require.True(t, m.Remove(digest(uint64(i)), i))
		require.False(t, m.Remove(digest(uint64(i)), i))
	}
	require.Len(t, m.places, smallest)
	require.Zero(t, m.Len())
}

func BenchmarkCandidates(b *testing.B) {
	var m Map
	for i := range uint32(600_000) {
		m.Add(digest(uint64(i)*0x9e3779b97f4a7c15), i)
	}
	for i := 0; b.Loop(); i++ {
		for range m.Candidates(digest(uint64(i%1_200_000) * 0x9e3779b97f4a7c15)) {
		}
	}
}

package slab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"brisk.dev/brisk/internal/store"
)

var quiet = slog.New(slog.DiscardHandler)

// bits are small chunks, so that much can be done with them quickly.
var bits = sync.OnceValues(func() (chunks []store.Chunk, datas [][]byte) {
	r := rand.New(rand.NewPCG(1, 1))
	for i := range 40 {
		data := make([]byte, []int{1, 4096, 4097, 9000}[i%4]+i)
		for j := range data {
			data[j] = byte(r.Uint32())
		}
		chunks = append(chunks, store.Chunk{Digest: store.Sum(data), Size: uint32(len(data))})
		datas = append(datas, data)
	}
	return chunks, datas
})

// crasher works on a slab until the disk crashes, again and again, and remembers what it was promised.
type crasher struct {
	t      require.TestingT
	disk   *memDisk
	slab   *Slab
	limit  int64
	placed map[string]promise
	r      *rand.Rand
	evicts bool // places were given to others: an index may name the old ones
}

type promise struct {
	chunks []int // of bits
	blocks []uint32
}

func (c *crasher) open() bool {
	s, err := openOn(c.disk, Options{Limit: c.limit, Log: quiet})
	if errors.Is(err, errCrashed) {
		return false
	}
	require.NoError(c.t, err)
	s.yield() // pins that the index knew nothing of may have brought too much
	c.slab = s
	return true
}

// step does something at random, and goes on as one does who got an error.
func (c *crasher) step() {
	chunks, datas := bits()
	some := func() (picked []int) {
		for range 1 + c.r.IntN(6) {
			picked = append(picked, c.r.IntN(len(chunks)))
		}
		return picked
	}
	owner := fmt.Sprint("owner", c.r.IntN(3))
	switch what := c.r.IntN(20); {
	case what < 10:
		for _, i := range some() {
			_ = c.slab.Write(chunks[i], datas[i])
		}
	case what < 12:
		_ = c.slab.Flush()
	case what < 14:
		c.read()
	case what < 16:
		picked := some()
		var want []store.Chunk
		for _, i := range picked {
			want = append(want, chunks[i])
			_ = c.slab.Write(chunks[i], datas[i])
		}
		p, err := c.slab.Place(owner, want)
		if err == nil {
			had := c.placed[owner]
			c.placed[owner] = promise{append(slices.Clone(had.chunks), picked...), append(slices.Clone(had.blocks), p.Blocks...)}
		}
	case what < 17:
		delete(c.placed, owner)
		c.slab.Unpin(owner)
	case what < 18:
		c.slab.Pin(owner, []store.Chunk{chunks[c.r.IntN(len(chunks))]})
	case what < 19:
		c.evicts = true
		_, _ = c.slab.Evict(context.Background(), 20_000)
	default:
		_ = c.slab.Close()
		c.open()
	}
}

// read fails if any chunk has wrong bytes.
func (c *crasher) read() {
	chunks, datas := bits()
	for i, chunk := range chunks {
		dst := make([]byte, chunk.Size)
		if ok, _ := c.slab.Read(chunk, dst); ok && !bytes.Equal(dst, datas[i]) {
			require.FailNow(c.t, "wrong bytes", "chunk %d", i)
		}
	}
}

// keepsPromises fails unless everything that was placed is there.
func (c *crasher) keepsPromises() {
	_, datas := bits()
	for owner, p := range c.placed {
		require.Contains(c.t, c.slab.Owners(), owner)
		for n, i := range p.chunks {
			got := make([]byte, len(datas[i]))
			_, err := c.slab.data.ReadAt(got, int64(p.blocks[n])*4096)
			require.NoError(c.t, err)
			require.True(c.t, bytes.Equal(got, datas[i]), "chunk %d of %s is not at block %d", i, owner, p.blocks[n])
		}
	}
}

// crash leaves a disk behind and looks whether the next slab is right.
func (c *crasher) crash(how loss) {
	chunks, _ := bits()
	c.disk = c.disk.afterCrash(how, c.r)
	require.True(c.t, c.open())
	c.keepsPromises()
	c.read()
	if !c.evicts {
		require.Zero(c.t, c.slab.Stats().Drops, "the index named what was not synced")
	}
	// Its promises hold for the next server, too, and nobody gets the places.
	for owner, p := range c.placed {
		var want []store.Chunk
		for _, i := range p.chunks {
			want = append(want, chunks[i])
		}
		again, err := c.slab.Place(owner, want)
		require.NoError(c.t, err)
		require.Equal(c.t, p.blocks, again.Blocks)
	}
	c.probe()
	if c.r.IntN(2) == 0 {
		c.evicts = true
		_, err := c.slab.Evict(context.Background(), 1<<40)
		require.NoError(c.t, err)
	}
	for range 10 {
		c.step()
	}
	c.keepsPromises()
	c.consistent()
}

// probe fails if a place is given for other bytes than the chunk's.
func (c *crasher) probe() {
	chunks, datas := bits()
	for i, chunk := range chunks {
		p, err := c.slab.Place("probe", []store.Chunk{chunk})
		if err != nil {
			continue
		}
		got := make([]byte, chunk.Size)
		_, err = c.slab.data.ReadAt(got, int64(p.Blocks[0])*4096)
		require.NoError(c.t, err)
		require.True(c.t, bytes.Equal(got, datas[i]), "chunk %d is not at block %d", i, p.Blocks[0])
	}
	c.slab.Unpin("probe")
}

// consistent fails unless what is in memory fits together.
func (c *crasher) consistent() {
	s := c.slab
	var taken []extent
	for _, e := range s.table.all() {
		if e.place.block != 0 {
			taken = append(taken, e.place.extent())
		}
		require.True(c.t, e.place.block != 0 || e.pinned(), "an entry for nothing")
	}
	taken = append(taken, s.retired...)
	slices.SortFunc(taken, func(x, y extent) int { return int(x.block) - int(y.block) })
	used := int64(0)
	for i, x := range taken {
		used += int64(x.count)
		if i > 0 {
			require.LessOrEqual(c.t, taken[i-1].end(), x.block)
		}
	}
	if s.counters.drops.Load() == 0 {
		require.Equal(c.t, used, s.extents.used)
	}
	require.LessOrEqual(c.t, s.extents.used*4096, c.limit)
}

func newCrasher(t require.TestingT, seed uint64, limit int64) *crasher {
	return &crasher{t: t, disk: newMemDisk(), limit: limit, evicts: limit < 100*4096, placed: map[string]promise{}, r: rand.New(rand.NewPCG(seed, 2))}
}

// The machine stops at each operation of a piece of work, and of what was not
// synced all is lost, or nothing.
func TestCrashAtEachOperation(t *testing.T) {
	step := 1
	if testing.Short() {
		step = 11
	}
	for _, how := range []loss{keepAll, dropAll, dropNames, anything} {
		for at := 1; ; at += step {
			c := newCrasher(t, 1, 120*4096)
			c.disk.crashAt = at
			if c.open() {
				for range 40 {
					c.step()
				}
			}
			crashed := c.disk.ops >= at
			c.crash(how)
			if !crashed {
				break
			}
		}
	}
}

// The machine stops several times, anywhere, and anything is left.
func TestCrash(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCrasher(t, rapid.Uint64().Draw(t, "seed"), int64(rapid.SampledFrom([]int{40, 120, 1000}).Draw(t, "blocks"))*4096)
		for range rapid.IntRange(1, 4).Draw(t, "crashes") {
			c.disk.crashAt = c.disk.ops + rapid.IntRange(1, 150).Draw(t, "at")
			if c.slab != nil || c.open() {
				for range 30 {
					c.step()
				}
			}
			c.disk.crashAt = 0
			c.crash(rapid.SampledFrom([]loss{keepAll, dropAll, dropNames, anything}).Draw(t, "how"))
		}
	})
}

// That the slab was closed in order counts for the next opening, not for one
// after a crash that followed.
func TestCleanIsBelievedOnce(t *testing.T) {
	for _, how := range []loss{keepAll, dropNames} {
		c := newCrasher(t, 1, 12*4096)
		require.True(t, c.open())
		chunks, datas := bits()
		for i := range 8 {
			require.NoError(t, c.slab.Write(chunks[i], datas[i]))
		}
		require.NoError(t, c.slab.Close())
		require.True(t, c.open())
		_, err := c.slab.Evict(t.Context(), 1<<40)
		require.NoError(t, err)
		for i := 20; i < 28; i++ {
			require.NoError(t, c.slab.Write(chunks[i], datas[i]))
		}
		c.disk = c.disk.afterCrash(how, c.r)
		require.True(t, c.open())
		require.True(t, c.slab.Has(chunks[0].Digest), "this test tests nothing any more")
		c.probe()
	}
}

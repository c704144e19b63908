package slab

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// block makes the nth chunk of one block.
func block(n int) (store.Chunk, []byte) {
	data := bytes.Repeat([]byte{byte(n), byte(n >> 8), 1, 2}, 1024)
	return store.Chunk{Digest: store.Sum(data), Size: 4096}, data
}

// shelf is a slab of blocks.
type shelf struct {
	*Slab
	t    testing.TB
	disk *memDisk
}

func newShelf(t testing.TB, blocks int64) *shelf {
	s := &shelf{t: t, disk: newMemDisk()}
	s.reopen(blocks)
	return s
}

func (s *shelf) reopen(blocks int64) {
	s.t.Helper()
	if s.Slab != nil {
		require.NoError(s.t, s.Close())
	}
	slab, err := openOn(s.disk, Options{Limit: blocks * 4096, Log: quiet})
	require.NoError(s.t, err)
	s.Slab = slab
	s.t.Cleanup(func() { slab.Close() })
}

// put writes chunks from..to-1, each synced, so that it may go.
func (s *shelf) put(from, to int) {
	s.t.Helper()
	for i := from; i < to; i++ {
		c, data := block(i)
		require.NoError(s.t, s.Write(c, data))
		require.NoError(s.t, s.Flush())
	}
}

// use reads chunks that are there.
func (s *shelf) use(from, to int) {
	s.t.Helper()
	for i := from; i < to; i++ {
		c, data := block(i)
		dst := make([]byte, 4096)
		ok, err := s.Read(c, dst)
		require.NoError(s.t, err)
		require.True(s.t, ok, "chunk %d", i)
		require.True(s.t, bytes.Equal(data, dst), "chunk %d", i)
	}
}

// there lists the chunks of 0..n-1 that are there, as ranges.
func (s *shelf) there(n int) string {
	var b []byte
	for i := 0; i < n; i++ {
		from := i
		for ; i < n; i++ {
			if c, _ := block(i); !s.Has(c.Digest) {
				break
			}
		}
		if i > from {
			b = fmt.Appendf(b, "%d-%d ", from, i-1)
		}
	}
	return string(bytes.TrimSpace(b))
}

func TestLeastRecentlyUsedGo(t *testing.T) {
	s := newShelf(t, 32) // an eviction frees two
	s.put(0, 32)
	require.Equal(t, "0-31", s.there(50))
	s.put(32, 36)
	require.Equal(t, "4-35", s.there(50))
	s.use(4, 8)
	s.put(36, 40)
	require.Equal(t, "4-7 12-39", s.there(50))
	require.EqualValues(t, 8, s.Stats().Evicted)
	require.EqualValues(t, 8*4096, s.Stats().EvictedBytes)
	require.EqualValues(t, 32*4096, s.Stats().Bytes)
	require.Zero(t, s.Stats().Refused)
}

// What is used again and again survives what is used once, however much that is.
func TestScanDrivesNothingOut(t *testing.T) {
	s := newShelf(t, 64)
	s.put(0, 20)
	s.use(0, 20)
	s.put(100, 300)
	require.Equal(t, "0-19", s.there(100))
	// But what was hot once does not stay for ever: no more than four fifths of all.
	for n := 300; n < 350; n += 10 {
		s.put(n, n+10)
		s.use(n, n+10)
	}
	s.put(400, 450)
	require.NotContains(t, s.there(100), "18", "one of the old may be left")
	s.use(300, 350)
}

func TestPinnedStay(t *testing.T) {
	s := newShelf(t, 32)
	a, _ := block(3)
	b, _ := block(5)
	s.Pin("lazily", []store.Chunk{a, a})
	s.put(0, 10)
	_, err := s.Place("natively", []store.Chunk{b})
	require.NoError(t, err)
	s.put(10, 100)
	require.Contains(t, s.there(100), "3-3 5-5 ")
	require.EqualValues(t, 2*4096, s.Stats().Pinned)
	freed, err := s.Evict(t.Context(), math.MaxInt64/2)
	require.NoError(t, err)
	require.EqualValues(t, 30*4096, freed)
	require.Equal(t, "3-3 5-5", s.there(100))

	s.Unpin("lazily")
	s.Unpin("natively")
	freed, err = s.Evict(t.Context(), math.MaxInt64/2)
	require.NoError(t, err)
	require.EqualValues(t, 2*4096, freed)
	require.Empty(t, s.there(100))
}

// If nothing may go, chunks are not kept, and that is no error.
func TestAllPinned(t *testing.T) {
	s := newShelf(t, 8)
	var all []store.Chunk
	for i := range 8 {
		c, _ := block(i)
		all = append(all, c)
	}
	s.Pin("a", all)
	s.put(0, 12)
	require.Equal(t, "0-7", s.there(12))
	require.EqualValues(t, 4, s.Stats().Refused)
	require.Zero(t, s.Room())
	s.Unpin("a")
	s.put(8, 12)
	require.Equal(t, "4-11", s.there(12))
}

func TestRecencySurvives(t *testing.T) {
	s := newShelf(t, 32)
	s.put(0, 32)
	s.use(0, 16)
	s.reopen(32)
	s.put(100, 116)
	require.Equal(t, "0-15", s.there(32))

	// A smaller limit is kept at once.
	s.reopen(24)
	s.yield()
	require.EqualValues(t, 24*4096, s.Stats().Bytes)
	require.Equal(t, "0-15", s.there(32))
}

// Others fill the disk too.
func TestReserve(t *testing.T) {
	s := newShelf(t, 1000)
	s.opts.Reserve = 100 * 4096
	s.put(0, 50)
	free, _, err := s.disk.free()
	require.NoError(t, err)
	s.disk.room -= free - 110*4096
	s.measure()
	require.EqualValues(t, 10*4096, s.Room())
	s.disk.room -= 40 * 4096
	s.measure()
	s.yield()
	require.EqualValues(t, 20*4096, s.Stats().Bytes)
	require.Equal(t, "30-49", s.there(50))
	s.put(50, 52)
	require.Contains(t, s.there(52), "50-51")
	require.LessOrEqual(t, s.Stats().Bytes, int64(20*4096))
}

// A place is given to another only after its last reader has gone.
func TestEvictionWaitsForReaders(t *testing.T) {
	s := newShelf(t, 4)
	s.put(0, 4)
	reading, goOn := make(chan struct{}), make(chan struct{})
	var reads atomic.Int32
	s.disk.before = func(op, name string) error {
		if op == "read" && name == "slab" && reads.Add(1) == 1 {
			close(reading)
			<-goOn
		}
		return nil
	}
	c, want := block(0)
	got := make([]byte, 4096)
	read := make(chan error, 1)
	go func() {
		_, err := s.Read(c, got)
		read <- err
	}()
	<-reading
	evicted := make(chan error, 1)
	go func() {
		_, err := s.Evict(context.Background(), 4*4096)
		evicted <- err
	}()
	// The chunk goes from the table while it is being read, and nobody who reads waits.
	for s.Has(c.Digest) {
		runtime.Gosched()
	}
	ok, err := s.Read(c, make([]byte, 4096))
	require.NoError(t, err)
	require.False(t, ok)
	require.EqualValues(t, 4*4096, s.Stats().Bytes, "a place was given back below a reader")
	close(goOn)
	require.NoError(t, <-read)
	require.True(t, bytes.Equal(want, got))
	require.NoError(t, <-evicted)
	require.Zero(t, s.Stats().Bytes)
}

// The disk really is given back, and the file does not grow for ever.
func TestDiskIsGivenBack(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(Options{Dir: dir, Limit: 8 << 20, Log: quiet})
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	taken := func() (size, disk int64) {
		require.NoError(t, s.Flush())
		st, err := os.Stat(filepath.Join(dir, "slab"))
		require.NoError(t, err)
		sys, ok := st.Sys().(*unix.Stat_t)
		if !ok {
			var raw unix.Stat_t
			require.NoError(t, unix.Stat(filepath.Join(dir, "slab"), &raw))
			sys = &raw
		}
		return st.Size(), sys.Blocks * 512
	}
	data := make([]byte, store.ChunkSize)
	write := func(n int) (chunks []store.Chunk) {
		for i := range n {
			binary.LittleEndian.PutUint64(data, uint64(i)+1)
			c := store.Chunk{Digest: store.Sum(data), Size: store.ChunkSize}
			require.NoError(t, s.Write(c, data))
			chunks = append(chunks, c)
			if i%8 == 7 {
				require.NoError(t, s.Flush())
			}
		}
		return chunks
	}
	chunks := write(320) // 40 MiB
	const slack = 128 << 10
	size, disk := taken()
	require.LessOrEqual(t, size, int64(12<<20))
	require.LessOrEqual(t, disk, int64(8<<20+slack))
	require.Greater(t, disk, int64(7<<20))
	require.InDelta(t, disk, s.Stats().Disk, slack)

	_, err = s.Place("mounted", chunks[310:])
	require.NoError(t, err)
	freed, err := s.Evict(t.Context(), 1<<40)
	require.NoError(t, err)
	require.Greater(t, freed, int64(5<<20))
	_, disk = taken()
	require.LessOrEqual(t, disk, int64(10*store.ChunkSize+slack))
	s.Unpin("mounted")
	_, err = s.Evict(t.Context(), 1<<40)
	require.NoError(t, err)
	size, disk = taken()
	require.EqualValues(t, 4096, size)
	require.LessOrEqual(t, disk, int64(slack))
}

// What a crash left in places that nobody knows of is given back at the next opening.
func TestLeakIsGivenBack(t *testing.T) {
	s := newShelf(t, 4096)
	s.put(0, 1)
	for i := 1; i < 800; i++ {
		c, data := block(i)
		require.NoError(t, s.Write(c, data)) // never recorded
	}
	s.put(800, 801)
	s.mu.Lock()
	s.pending.records = nil
	s.mu.Unlock()
	s.disk = s.disk.afterCrash(keepAll, nil)
	// Half of the records are lost, too.
	index := s.disk.files[indexName]
	index.content = index.content[:headerSize+2*recordSize]
	s.Slab = nil
	s.reopen(4096)
	require.EqualValues(t, 2*4096, s.Stats().Disk)
	require.Equal(t, "0-0", s.there(1000))
}

func TestFullDisk(t *testing.T) {
	s := newShelf(t, math.MaxInt64/4096)
	s.disk.room = 60 * 4096
	s.put(0, 200)
	require.Contains(t, s.there(200), "-199")
	require.Zero(t, s.Stats().Refused)
	s.use(199, 200)
}

// The disk is full, or fails, at each operation in turn: what is reported as
// done is, nothing that is read is wrong, and when there is room again all goes on.
func TestFaultAtEachOperation(t *testing.T) {
	step := int32(1)
	if testing.Short() {
		step = 5
	}
	for _, fails := range []error{unix.ENOSPC, unix.EIO} {
		for at := int32(1); ; at += step {
			c := newCrasher(t, 3, 120*4096)
			require.True(t, c.open())
			var ops atomic.Int32
			c.disk.before = func(op, _ string) error {
				if op != "read" && ops.Add(1) == at {
					return fails
				}
				return nil
			}
			chunks, datas := bits()
			for i := range 10 {
				if err := c.slab.Write(chunks[i], datas[i]); err != nil && fails == unix.ENOSPC {
					require.True(t, fault.Is(err, fault.DiskFull), "%v", err)
				}
			}
			_ = c.slab.Flush()
			if p, err := c.slab.Place("a", chunks[:5]); err == nil {
				c.placed["a"] = promise{[]int{0, 1, 2, 3, 4}, p.Blocks}
			}
			_, _ = c.slab.Evict(t.Context(), 10*4096)
			if p, err := c.slab.Place("b", chunks[3:7]); err == nil {
				c.placed["b"] = promise{[]int{3, 4, 5, 6}, p.Blocks}
			}
			delete(c.placed, "a")
			c.slab.Unpin("a")
			_ = c.slab.Flush()
			if c.slab.Close() != nil || at%2 == 0 {
				c.disk = c.disk.afterCrash(dropAll, c.r)
			}
			done := ops.Load() < at
			c.disk.before = nil
			require.True(t, c.open())
			c.keepsPromises()
			c.read()
			c.probe()
			for i := range 10 {
				require.NoError(t, c.slab.Write(chunks[i], datas[i]))
			}
			p, err := c.slab.Place("c", chunks[:10])
			require.NoError(t, err)
			c.placed["c"] = promise{[]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, p.Blocks}
			c.keepsPromises()
			require.NoError(t, c.slab.Close())
			if done {
				break
			}
		}
	}
}

// Opening fails, or gives a whole slab, whatever operation of it fails.
func TestFaultAtOpening(t *testing.T) {
	chunks, datas := bits()
	for at := int32(1); ; at++ {
		c := newCrasher(t, 3, 120*4096)
		require.True(t, c.open())
		for i := range 10 {
			require.NoError(t, c.slab.Write(chunks[i], datas[i]))
		}
		p, err := c.slab.Place("a", chunks[:5])
		require.NoError(t, err)
		c.placed["a"] = promise{[]int{0, 1, 2, 3, 4}, p.Blocks}
		c.disk = c.disk.afterCrash(keepAll, nil)
		c.disk.files[indexName].content[80]++ // it is written anew
		var ops atomic.Int32
		c.disk.before = func(string, string) error {
			if ops.Add(1) == at {
				return unix.EROFS
			}
			return nil
		}
		s, err := openOn(c.disk, Options{Log: quiet})
		if err != nil {
			require.ErrorIs(t, err, unix.EROFS)
		} else {
			s.Close()
		}
		done := ops.Load() < at
		c.disk.before = nil
		require.True(t, c.open())
		c.keepsPromises()
		c.read()
		if done {
			break
		}
	}
}

// A million chunks take less than 100 MB of memory, and are chosen from in no time.
func TestMillionChunks(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a second")
	}
	const n = 1_000_000
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	s := &Slab{extents: newExtents(nil), opts: Options{Limit: n * store.ChunkSize}}
	s.clock.start(s.opts.Limit, 0)
	var ids []uint32
	for i := range uint64(n) {
		var d store.Digest
		binary.LittleEndian.PutUint64(d[:], i*0x9e3779b97f4a7c15+1)
		id, e := s.table.add(d)
		e.place.block, _ = s.extents.take(32)
		e.place.size, e.state = store.ChunkSize, stateSynced
		e.used = s.clock.tick()
		if i%4 == 0 {
			s.clock.touch(&e.used)
			ids = append(ids, id)
		}
	}
	used := heap() - before
	t.Logf("%d bytes a chunk", used/n)
	require.Less(t, used, uint64(100_000_000))
	victims := s.choose(32 * 1000)
	require.GreaterOrEqual(t, len(victims), 1000)
	require.Less(t, len(victims), 3000)
	for _, v := range victims[:1000] {
		require.Less(t, v.id, uint32(10_000), "the oldest go first")
	}
	require.Len(t, ids, n/4)
	runtime.KeepAlive(s)
}

// choose is asked in any state, and never names what may not go.
func TestChooseOrder(t *testing.T) {
	s := newShelf(t, 100)
	s.put(0, 100)
	s.use(90, 100)
	victims := s.choose(1000)
	require.Len(t, victims, 100)
	last := victims[len(victims)-10:]
	slices.SortFunc(last, func(x, y victim) int { return int(x.id) - int(y.id) })
	for i, v := range last {
		c, _ := block(90 + i)
		require.Equal(t, c.Digest, s.table.at(v.id).digest)
	}
}

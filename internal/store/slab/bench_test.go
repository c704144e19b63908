package slab_test

import (
	"encoding/binary"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/slab"
)

// fresh gives whole chunks, each another.
func fresh() func() (store.Chunk, []byte) {
	r := rand.New(rand.NewPCG(1, 1))
	data := make([]byte, store.ChunkSize)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	n := uint64(0)
	return func() (store.Chunk, []byte) {
		n++
		binary.LittleEndian.PutUint64(data, n)
		// Not its digest: that is not what is measured, and Write is told that it is right.
		var d store.Digest
		binary.LittleEndian.PutUint64(d[:], n*0x9e3779b97f4a7c15)
		return store.Chunk{Digest: d, Size: store.ChunkSize}, data
	}
}

// BenchmarkWrite is of new chunks: into a slab with room, and into one where each
// takes the place of another.
func BenchmarkWrite(b *testing.B) {
	for name, limit := range map[string]int64{"room": 0, "full": 256 << 20} {
		b.Run(name, func(b *testing.B) {
			s := open(b, b.TempDir(), limit)
			next := fresh()
			write := func() {
				c, data := next()
				require.NoError(b, s.Write(c, data))
			}
			for range limit / store.ChunkSize {
				write()
			}
			b.SetBytes(store.ChunkSize)
			for n := 0; b.Loop(); n++ {
				write()
				if limit == 0 && n%2048 == 2047 { // the page cache and the disk are not to be filled
					b.StopTimer()
					_, err := s.Evict(b.Context(), 1<<40)
					require.NoError(b, err)
					b.StartTimer()
				}
			}
			b.ReportMetric(float64(s.Stats().Refused), "refused")
		})
	}
}

// BenchmarkReadBeside is of reads while another writes all the time, and evicts with that.
func BenchmarkReadBeside(b *testing.B) {
	s := open(b, b.TempDir(), 128<<20)
	next := fresh()
	var chunks []store.Chunk
	for i := range 64 {
		c, data := next()
		data = append([]byte(nil), data...)
		c.Digest = store.Sum(data)
		require.NoError(b, s.Write(c, data), i)
		chunks = append(chunks, c)
	}
	s.Pin("read", chunks)
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			c, data := next()
			_ = s.Write(c, data)
		}
	}()
	dst := make([]byte, store.ChunkSize)
	b.SetBytes(store.ChunkSize)
	for i := 0; b.Loop(); i++ {
		if ok, err := s.Read(chunks[i%len(chunks)], dst); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
	stop.Store(true)
	<-done
}

// BenchmarkPlace is of an image of 8,000 small chunks that need not be read: pinned, written down, and synced.
func BenchmarkPlace(b *testing.B) {
	s := open(b, b.TempDir(), 0)
	var chunks []store.Chunk
	data := make([]byte, 4096)
	for i := range 8000 {
		binary.LittleEndian.PutUint64(data, uint64(i)+1)
		c := store.Chunk{Digest: store.Sum(data), Size: 4096}
		require.NoError(b, s.Write(c, data))
		chunks = append(chunks, c)
	}
	require.NoError(b, s.Flush())
	for b.Loop() {
		p, err := s.Place("image", chunks)
		require.NoError(b, err)
		require.NotEqualValues(b, slab.Hole, p.Blocks[0])
		b.StopTimer()
		s.Unpin("image")
		b.StartTimer()
	}
}

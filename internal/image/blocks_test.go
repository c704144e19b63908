package image

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// device makes a device of chunks of the given sizes, its bytes, and its Blocks.
func testDevice(sizes []int) ([]byte, *Blocks) {
	m := memory{}
	var chunks []store.Chunk
	var all []byte
	for i, n := range sizes {
		data := bytes.Repeat([]byte{byte(i + 1), byte(i >> 8), 7}, n/3+1)[:n]
		c, _, _ := m.Add(data)
		chunks = append(chunks, c)
		all = append(all, data...)
		all = append(all, make([]byte, -len(all)&(store.BlockSize-1))...)
	}
	dev, err := newDevice(chunks)
	if err != nil {
		panic(err)
	}
	return all, newBlocks(dev, m)
}

// ReadChunk and ReadRun make memory a source of Blocks.
func (m memory) ReadChunk(_ context.Context, c store.Chunk, dst []byte) (store.Tier, error) {
	copy(dst, m[c.Digest])
	return store.FromCache, nil
}

// ReadRun gives runs of three quarters of the chunks; the others have to be read whole.
func (m memory) ReadRun(chunks []store.Chunk, dst []byte, off int64) bool {
	for _, c := range chunks {
		if c.Digest[0]%4 == 0 {
			return false
		}
	}
	clear(dst)
	at := -off
	for _, c := range chunks {
		if at < int64(len(dst)) {
			copy(dst[max(0, at):], m[c.Digest][min(max(0, -at), int64(c.Size)):])
		}
		at += int64(blocksOf(c.Size)) * store.BlockSize
	}
	return true
}

// brokenChunk is a source that fails for one chunk.
type brokenChunk struct {
	memory
	chunk store.Chunk
	err   error
}

func (b brokenChunk) ReadChunk(ctx context.Context, c store.Chunk, dst []byte) (store.Tier, error) {
	if c == b.chunk {
		return 0, b.err
	}
	return b.memory.ReadChunk(ctx, c, dst)
}

func (b brokenChunk) ReadRun([]store.Chunk, []byte, int64) bool { return false }

func TestBlocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.OneOf(
			rapid.IntRange(1, store.ChunkSize), rapid.Just(store.ChunkSize), rapid.IntRange(1, 5000)), 0, 40).Draw(t, "sizes")
		want, b := testDevice(sizes)
		if b.Size() != int64(len(want)) {
			t.Fatalf("size %d, want %d", b.Size(), len(want))
		}
		for range 10 {
			off := rapid.IntRange(0, len(want)).Draw(t, "offset")
			n := rapid.OneOf(rapid.IntRange(0, len(want)-off), rapid.IntRange(0, min(4096, len(want)-off))).Draw(t, "length")
			p := bytes.Repeat([]byte{0xee}, n)
			if err := b.ReadAt(context.Background(), p, int64(off)); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(want[off:off+n], p) {
				t.Fatalf("%d bytes at %d are wrong", n, off)
			}
		}
	})
}

func TestBlocksOutside(t *testing.T) {
	_, b := testDevice([]int{5000})
	for _, c := range []struct{ off, n int64 }{{-1, 1}, {8192, 1}, {0, 8193}, {8191, 2}, {1 << 62, 1 << 10}} {
		err := b.ReadAt(t.Context(), make([]byte, c.n), c.off)
		require.True(t, fault.Is(err, fault.Invalid), "%v: %v", c, err)
	}
	require.NoError(t, b.ReadAt(t.Context(), nil, 8192))
}

// TestBlocksStats checks what is counted, and that small reads of one chunk are one
// read of the store.
func TestBlocksStats(t *testing.T) {
	w := newWorld(t)
	img := w.must("web", file("a", string(bytes.Repeat([]byte("a"), store.ChunkSize))), file("b", "bbb"))
	blocks, err := img.Blocks(t.Context())
	require.NoError(t, err)
	again, err := img.Blocks(t.Context())
	require.NoError(t, err)
	require.Same(t, blocks, again)
	require.Equal(t, int64(store.ChunkSize+store.BlockSize), blocks.Size())
	p := make([]byte, 4096)
	for off := int64(0); off < blocks.Size(); off += 4096 {
		require.NoError(t, blocks.ReadAt(t.Context(), p, off))
	}
	require.Equal(t, "bbb\x00", string(p[:4]))
	require.Equal(t, BlockStats{OriginBytes: store.ChunkSize + 3, OriginChunks: 2}, blocks.Stats())
	all := make([]byte, blocks.Size())
	require.NoError(t, blocks.ReadAt(t.Context(), all, 0))
	require.Equal(t, BlockStats{OriginBytes: store.ChunkSize + 3, OriginChunks: 2, CacheBytes: store.ChunkSize + 3, CacheChunks: 2}, blocks.Stats())
}

func TestBlocksFailure(t *testing.T) {
	broken := errors.New("broken")
	_, b := testDevice([]int{store.ChunkSize, store.ChunkSize, store.ChunkSize})
	b.source = brokenChunk{b.source.(memory), b.dev.chunks[1], broken}
	require.ErrorIs(t, b.ReadAt(t.Context(), make([]byte, b.Size()), 0), broken)
	require.ErrorIs(t, b.ReadAt(t.Context(), make([]byte, 10), store.ChunkSize), broken)
	require.NoError(t, b.ReadAt(t.Context(), make([]byte, 10), 0))
}

// TestBlocksAllocations: a small read of a chunk that is remembered costs nothing.
func TestBlocksAllocations(t *testing.T) {
	_, b := testDevice([]int{store.ChunkSize, 5000})
	p := make([]byte, 4096)
	ctx := t.Context()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		for off := int64(0); off < b.Size(); off += 4096 {
			if err := b.ReadAt(ctx, p, off); err != nil {
				panic(err)
			}
		}
	}))
}

func BenchmarkBlocksRead4K(b *testing.B) {
	sizes := make([]int, 10_000)
	for i := range sizes {
		sizes[i] = 8000
	}
	_, blocks := testDevice(sizes)
	p := make([]byte, 4096)
	b.SetBytes(4096)
	i := int64(0)
	for b.Loop() {
		if err := blocks.ReadAt(b.Context(), p, i%(blocks.Size()/4096)*4096); err != nil {
			b.Fatal(err)
		}
		i++
	}
}

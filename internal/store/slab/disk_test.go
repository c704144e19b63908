package slab

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"brisk.dev/brisk/internal/store"
)

// TestRead reads what the page cache has, and what only the disk has, from and to
// any place.
func TestRead(t *testing.T) {
	const size = 300_000 // the last block is not whole
	want := make([]byte, size)
	rand.NewChaCha8([32]byte{1}).Read(want)
	f, err := directory(t.TempDir()).open("file")
	require.NoError(t, err)
	defer f.Close()
	_, err = f.WriteAt(want, 0)
	require.NoError(t, err)
	require.True(t, f.(*osFile).cached(0, size), "it has yet to be written")
	mem := alignedBuffer(size + store.ChunkSize + store.BlockSize)
	rapid.Check(t, func(r *rapid.T) {
		if rapid.Bool().Draw(r, "drop") {
			require.NoError(r, f.sync())
			require.NoError(r, unix.Fadvise(int(f.(*osFile).Fd()), 0, 0, unix.FADV_DONTNEED))
		}
		unit := rapid.SampledFrom([]int{1, store.BlockSize}).Draw(r, "unit")
		off := rapid.IntRange(0, size/unit+3).Draw(r, "offset") * unit
		n := rapid.IntRange(0, (size+store.BlockSize)/unit).Draw(r, "length") * unit
		p := mem[rapid.SampledFrom([]int{0, 1}).Draw(r, "skip"):]
		for i := range p {
			p[i] = 0xee
		}
		got, err := f.read(p[:n], int64(off))
		there := max(0, min(n, size-off))
		if got != there || !bytes.Equal(p[:got], want[min(off, size):min(off, size)+got]) || !bytes.Equal(p[n:n+100], bytes.Repeat([]byte{0xee}, 100)) {
			r.Fatalf("%d bytes at %d: got %d, want %d, or wrong ones", n, off, got, there)
		}
		if there < n && err != io.EOF || there == n && err != nil {
			r.Fatalf("%d bytes at %d: %v", n, off, err)
		}
	})
	require.NoError(t, f.Close())
	_, err = f.read(mem[:4096], 0)
	require.ErrorIs(t, err, os.ErrClosed)
}

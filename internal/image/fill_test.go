package image

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/slab"
	"brisk.dev/brisk/internal/store/storetest"
)

// slabWorld is a registry over a real slab of so many bytes.
func slabWorld(t *testing.T, limit int64) (*world, *slab.Slab) {
	w := newWorld(t)
	cache, err := slab.Open(slab.Options{Dir: filepath.Join(w.dir, "slab"), Limit: limit, Log: storetest.Log(t)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cache.Close()) })
	require.NoError(t, w.stores.Close())
	w.openStores(cache)
	w.open()
	return w, cache
}

func TestFillCompletesAnImage(t *testing.T) {
	const chunks = 200
	w, cache := slabWorld(t, 0)
	img := w.must("a", file("x", string(storetest.Data(1, chunks*store.ChunkSize))))
	_, err := cache.Evict(t.Context(), 1<<40) // importing has left its chunks
	require.NoError(t, err)
	l, err := img.Local(t.Context(), cache)
	require.NoError(t, err)
	require.Equal(t, Local{Total: chunks, TotalBytes: chunks * store.ChunkSize}, l)
	var missing *slab.MissingError
	_, err = img.Native(t.Context(), cache)
	require.ErrorAs(t, err, &missing)
	require.Equal(t, chunks, missing.Missing)

	complete, err := img.Fill(t.Context(), cache)
	require.NoError(t, err)
	require.True(t, complete)
	l, err = img.Local(t.Context(), cache)
	require.NoError(t, err)
	require.Equal(t, Local{chunks, chunks * store.ChunkSize, chunks, chunks * store.ChunkSize}, l)
	n, err := img.Native(t.Context(), cache)
	require.NoError(t, err)
	if os.Getuid() == 0 {
		require.Equal(t, survey(t, mountFlat(t, img)), survey(t, mountAt(t, n.Meta, n.Device)))
	}
	n.Release()
}

func TestFillEvictsNothing(t *testing.T) {
	w, cache := slabWorld(t, 32<<20)
	other := w.must("other", file("x", string(storetest.Data(1, 100*store.ChunkSize))))
	img := w.must("a", file("x", string(storetest.Data(2, 200*store.ChunkSize))))
	_, err := cache.Evict(t.Context(), 1<<40)
	require.NoError(t, err)
	complete, err := other.Fill(t.Context(), cache)
	require.NoError(t, err)
	require.True(t, complete)
	evicted := cache.Stats().Evicted
	complete, err = img.Fill(t.Context(), cache)
	require.NoError(t, err)
	require.False(t, complete)
	require.Equal(t, evicted, cache.Stats().Evicted)
	l, err := img.Local(t.Context(), cache)
	require.NoError(t, err)
	require.NotZero(t, l.Chunks)
	l, err = other.Local(t.Context(), cache)
	require.NoError(t, err)
	require.EqualValues(t, 100, l.Chunks)
}

func TestFillStops(t *testing.T) {
	w, cache := slabWorld(t, 0)
	img := w.must("a", file("x", string(storetest.Data(1, 100*store.ChunkSize))))
	_, err := cache.Evict(t.Context(), 1<<40)
	require.NoError(t, err)
	down := fault.New(fault.Unavailable, "the origin is down")
	w.origin.Before(func(context.Context, storetest.Op) error { return down })
	_, err = img.Fill(t.Context(), cache)
	require.ErrorIs(t, err, down)

	ctx, cancel := context.WithCancel(t.Context())
	w.origin.Before(func(context.Context, storetest.Op) error { cancel(); return nil })
	_, err = img.Fill(ctx, cache)
	require.ErrorIs(t, err, context.Canceled)
}

// TestEvictionSparesNativeImages fills a slab of 16 MiB many times over while an
// image is mounted over it.
func TestEvictionSparesNativeImages(t *testing.T) {
	needRoot(t)
	w, cache := slabWorld(t, 16<<20)
	img := w.must("a", file("x", string(storetest.Data(1, 40*store.ChunkSize))))
	_, err := img.Fill(t.Context(), cache)
	require.NoError(t, err)
	n := native(t, img, cache)
	mnt := mountAt(t, n.Meta, n.Device)
	n.Release()
	for i := range 10 {
		other := w.must("other", file("x", string(storetest.Data(uint64(10+i), 50*store.ChunkSize))))
		blocks, err := other.Blocks(t.Context())
		require.NoError(t, err)
		require.NoError(t, blocks.ReadAt(t.Context(), make([]byte, blocks.Size()), 0))
	}
	require.NotZero(t, cache.Stats().Evicted)
	b, err := os.ReadFile(filepath.Join(mnt, "x"))
	require.NoError(t, err)
	require.Equal(t, storetest.Data(1, 40*store.ChunkSize), b)
	l, err := img.Local(t.Context(), cache)
	require.NoError(t, err)
	require.Equal(t, l.Total, l.Chunks)
}

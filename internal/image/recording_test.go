package image

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/store"
)

// touch reads a byte of each of some chunks.
func touch(t *testing.T, b *Blocks, chunks ...int) {
	t.Helper()
	for _, i := range chunks {
		require.NoError(t, b.ReadAt(context.Background(), make([]byte, 1), b.Offset(i)))
	}
}

func TestRecording(t *testing.T) {
	_, b := testDevice([]int{store.ChunkSize, 5000, 1, 1, 1, 1, 1, 1})
	b.Mounted(true)
	touch(t, b, 3) // by whoever mounts it
	r := b.Record()
	touch(t, b, 1, 3)
	require.NoError(t, b.ReadAt(t.Context(), make([]byte, store.ChunkSize+1), 0)) // spans 0 and 1
	r.Ready()
	touch(t, b, 5, 3)
	r.Ready()
	touch(t, b, 4)
	require.Equal(t, Run{Chunks: []uint32{3, 1, 0, 5, 4}, Ready: 3, Complete: true}, r.Stop())
	require.Equal(t, Run{}, r.Stop())

	// The same mount: the page cache hides what the first has read.
	again := b.Record()
	touch(t, b, 3, 6)
	require.Equal(t, Run{Before: []uint32{3, 1, 0, 5, 4}, Chunks: []uint32{6}, Ready: 1}, again.Stop())

	// Mounted anew.
	b.Mounted(true)
	anew := b.Record()
	touch(t, b, 3, 6)
	require.Equal(t, Run{Chunks: []uint32{3, 6}, Ready: 2, Complete: true}, anew.Stop())

	// Mounted by an earlier server.
	b.Mounted(false)
	require.False(t, b.Record().Stop().Complete)
}

func TestTwoStartsAtOnce(t *testing.T) {
	_, b := testDevice([]int{1, 1, 1, 1, 1})
	b.Mounted(true)
	first := b.Record()
	touch(t, b, 4)
	b.Mounted(true) // as far as it knows
	second := b.Record()
	touch(t, b, 2)
	require.Equal(t, Run{Chunks: []uint32{4, 2}, Ready: 2}, first.Stop())
	touch(t, b, 1)
	require.Equal(t, Run{Before: []uint32{4}, Chunks: []uint32{2, 1}, Ready: 2}, second.Stop())
}

func TestReadersWhileRecordingsComeAndGo(t *testing.T) {
	_, b := testDevice(make100())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 100 {
				touch(t, b, i)
			}
		})
	}
	for range 20 {
		b.Mounted(true)
		r := b.Record()
		r.Ready()
		r.Stop()
	}
	wg.Wait()
}

func make100() (sizes []int) {
	for range 100 {
		sizes = append(sizes, 1)
	}
	return sizes
}

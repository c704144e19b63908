package image

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/storetest"
)

func TestSharing(t *testing.T) {
	w := newWorld(t)
	a := w.must("a", file("both", "12345"), file("three", "1234567"), file("own", "1"), file("again", "1"))
	b := w.must("b", file("both", "12345"), file("three", "1234567"))
	c := w.must("c", file("three", "1234567"), file("mine", "12"))
	alone := w.must("alone", file("x", "nobody else has it"))
	got, err := w.images.Sharing(t.Context(), []*Image{a, b, c, alone, a})
	require.NoError(t, err)
	require.Equal(t, map[store.Digest]Sharing{a.Digest: {1, 12}, b.Digest: {0, 12}, c.Digest: {2, 7}, alone.Digest: {18, 0}}, got)

	// The others are what counts, not what there is.
	got, err = w.images.Sharing(t.Context(), []*Image{a, c})
	require.NoError(t, err)
	require.Equal(t, map[store.Digest]Sharing{a.Digest: {6, 7}, c.Digest: {2, 7}}, got)
	got, err = w.images.Sharing(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, got)
}

// Tables that this machine does not have are fetched; one that is damaged everywhere is left out.
func TestSharingOfTablesElsewhere(t *testing.T) {
	w := newWorld(t)
	a, b, c := w.must("a", file("both", "12345")), w.must("b", file("both", "12345"), file("more", "12")), w.must("c", file("both", "12345"), file("x", "1"))
	local := w.images.blobPath(DefaultWorkspace, c.Manifest.Chunks.Digest)
	require.NoError(t, os.RemoveAll(filepath.Dir(local)))
	w.origin.Before(func(context.Context, storetest.Op) error { return fault.New(fault.Unavailable, "it is away") })
	_, err := w.images.Sharing(t.Context(), []*Image{a, b, c})
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	w.origin.Before(nil)
	for _, key := range w.keys("default/blobs/") {
		if strings.Contains(key, c.Manifest.Chunks.Digest.String()) {
			require.NoError(t, w.mem.Delete(t.Context(), key))
		}
	}
	got, err := w.images.Sharing(t.Context(), []*Image{a, b, c})
	require.NoError(t, err)
	require.Equal(t, map[store.Digest]Sharing{a.Digest: {0, 5}, b.Digest: {2, 5}}, got)
}

// tableImage is an image of which there is only a chunk table, on this machine.
func tableImage(t testing.TB, s *Images, n int, chunks []store.Chunk) *Image {
	table := encodeTable(chunks)
	d := store.Sum(table)
	path := s.blobPath(DefaultWorkspace, d)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, table, 0o600))
	return newImage(s, nil, DefaultWorkspace, store.Sum(fmt.Append(nil, n)), &Manifest{Chunks: TableRef{Digest: d, Count: int64(len(chunks))}})
}

func chunkNumber(n int) store.Chunk {
	return store.Chunk{Digest: store.Sum(binary.LittleEndian.AppendUint64(nil, uint64(n))), Size: uint32(1 + n%store.ChunkSize)}
}

// Whatever is in how many passes, it is what counting in the plainest way gives.
func TestSharingProperty(t *testing.T) {
	w := newWorld(t)
	rapid.Check(t, func(r *rapid.T) {
		sets := rapid.SliceOfN(rapid.SliceOfNDistinct(rapid.IntRange(0, 60), 0, 40, rapid.ID[int]), 0, 6).Draw(r, "images")
		users := map[int]int{}
		var images []*Image
		for n, set := range sets {
			var chunks []store.Chunk
			for _, c := range set {
				users[c]++
				chunks = append(chunks, chunkNumber(c))
			}
			images = append(images, tableImage(t, w.images, n, chunks))
		}
		want := map[store.Digest]Sharing{}
		for n, set := range sets {
			var s Sharing
			for _, c := range set {
				if users[c] > 1 {
					s.Shared += int64(chunkNumber(c).Size)
				} else {
					s.Own += int64(chunkNumber(c).Size)
				}
			}
			want[images[n].Digest] = s
		}
		got, err := w.images.compare(t.Context(), images, rapid.IntRange(10, 100).Draw(r, "at once"))
		require.NoError(r, err)
		require.Equal(r, want, got)
	})
}

// BenchmarkSharing is of 300 images of 30,000 chunks, a tenth of which is an image's own;
// the tables are in the page cache.
func BenchmarkSharing(b *testing.B) {
	dir := b.TempDir()
	s := &Images{opt: Options{Dir: dir}}
	var images []*Image
	for n := range 300 {
		chunks := make([]store.Chunk, 30_000)
		for i := range chunks {
			if i < 27_000 {
				chunks[i] = chunkNumber(n%10*30_000 + i)
			} else {
				chunks[i] = chunkNumber(1_000_000 + n*3000 + i)
			}
		}
		images = append(images, tableImage(b, s, n, chunks))
	}
	for b.Loop() {
		began := time.Now()
		_, err := s.compare(b.Context(), images, sharingLimit)
		require.NoError(b, err)
		b.ReportMetric(float64(time.Since(began).Milliseconds())/300, "ms/image")
	}
}

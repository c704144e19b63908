package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/storetest"
)

// What other workspaces' images need of the shared ones stays when these are
// removed, and goes with them.
func TestCollectSharedBase(t *testing.T) {
	w := newWorld(t)
	w.must("base", file("lib", "of the base"))
	_, _, err := w.images.Share(t.Context(), Ref{DefaultWorkspace, "base"}, "base", nil)
	require.NoError(t, err)
	team := storetest.Store(t, w.stores, "team")
	batch := team.Begin(t.Context())
	tree := NewTree()
	_, err = tree.ApplyTar(t.Context(), bytes.NewReader(archive(t, file("lib", "of the base"), file("own", "o"))), batch, LayerOptions{})
	require.NoError(t, err)
	img, res, err := w.images.Write(t.Context(), tree, Config{}, batch, "team", "app")
	require.NoError(t, err)
	require.EqualValues(t, 1, res.NewChunks, "the base's chunk is stored again")

	require.NoError(t, w.images.Remove(t.Context(), Ref{DefaultWorkspace, "base"}))
	require.NoError(t, w.images.Remove(t.Context(), Ref{DefaultWorkspace, "shared/base"}))
	w.cache.Clear()
	require.Equal(t, []string{"/lib=of the base", "/own=o"}, w.filesOf(team, img))
	require.Len(t, w.keys("shared/packs"), 1)
	require.Empty(t, w.keys("shared/blobs"))

	// A manifest that cannot be read may name anything.
	record := "team/records/manifests/" + img.Digest.String()
	var intact []byte
	w.mem.Change(record, func(b []byte) []byte { intact = bytes.Clone(b); return b[:len(b)/2] })
	require.NoError(t, os.RemoveAll(filepath.Join(w.dir, "images", "team", "manifests")))
	c, err := w.images.Collect(t.Context(), CollectOptions{})
	require.NoError(t, err)
	require.Len(t, c.Notes, 2, c.Notes)
	require.Contains(t, c.Notes[0], "nothing of workspace shared is deleted: ")
	require.Contains(t, c.Notes[0], "read what workspace team needs of")
	require.Contains(t, c.Notes[1], "nothing of workspace team is deleted: ")
	require.Len(t, w.keys("shared/packs"), 1)
	w.mem.Change(record, func([]byte) []byte { return intact })

	w.open()
	require.NoError(t, w.images.Remove(t.Context(), Ref{"team", "app"}))
	require.Empty(t, w.keys("team/packs"))
	c, err = w.images.Collect(t.Context(), CollectOptions{})
	require.NoError(t, err)
	require.Empty(t, c.Notes)
	require.Equal(t, 1, c.Packs)
	for _, k := range w.keys("") {
		require.NotContains(t, k, "packs/")
		require.NotContains(t, k, "blobs/")
	}
}

// Profiles go with their image, and the hot packs that they name.
func TestCollectProfiles(t *testing.T) {
	w := newWorld(t)
	img := w.must("web", file("a", "content"))
	blocks, err := img.Blocks(t.Context())
	require.NoError(t, err)
	hot, err := w.store.WriteHot(t.Context(), blocks.Chunks())
	require.NoError(t, err)
	p := &Profile{Image: img.Digest, Entry: NewEntry("command", "sh"), Runs: 1, Updated: time.Unix(1e9, 0), Hot: hot}
	name := img.Digest.String() + "/" + p.Entry.ID.String()
	_, err = w.store.PutRecord(t.Context(), profileKind, name, p.Encode(), nil)
	require.NoError(t, err)

	c, err := w.images.Collect(t.Context(), CollectOptions{})
	require.NoError(t, err)
	require.Zero(t, c.Packs+c.Blobs+c.Profiles)
	packs := len(w.keys("default/packs"))
	require.NoError(t, w.images.Remove(t.Context(), Ref{DefaultWorkspace, "web"}))
	require.NotZero(t, packs)
	require.Empty(t, w.keys("default/packs"))
	require.Empty(t, w.keys("default/records"))

	// One that a start has left behind that was faster than the removal.
	_, err = w.store.PutRecord(t.Context(), profileKind, name, p.Encode(), nil)
	require.NoError(t, err)
	for _, dry := range []bool{true, false} {
		c, err = w.images.Collect(t.Context(), CollectOptions{Dry: dry})
		require.NoError(t, err)
		require.Equal(t, 1, c.Profiles)
	}
	require.Empty(t, w.keys("default/records"))
}

func (w *world) age(img *Image, d time.Duration) {
	w.t.Helper()
	at := time.Now().Add(-d)
	require.NoError(w.t, os.Chtimes(w.images.manifestPath(DefaultWorkspace, img.Digest), at, at))
}

// old makes an image whose manifest says that it was made long ago.
func (w *world) old(name, content string, d time.Duration) *Image {
	w.t.Helper()
	img := w.must(name, file("a", content))
	m := img.Manifest
	m.Created = time.Now().Add(-d)
	_, err := w.store.PutRecord(w.t.Context(), kindManifests, img.Digest.String(), m.Encode(), nil)
	require.NoError(w.t, err)
	require.NoError(w.t, os.WriteFile(w.images.manifestPath(DefaultWorkspace, img.Digest), m.Encode(), 0o600))
	w.age(img, d)
	w.open()
	return img
}

func TestPrune(t *testing.T) {
	const day = 24 * time.Hour
	w := newWorld(t)
	content := func(c string) string { return strings.Repeat(c, 100) }
	named := w.old("web", content("w"), 100*day)
	young := w.old("", content("y"), day)
	stale := w.old("", content("s"), 30*day)
	kept := w.old("", content("k"), 30*day)
	running := w.old("", content("r"), 30*day)
	used := w.old("", content("u"), 30*day)
	_, err := w.get(used.Digest.String())
	require.NoError(t, err)
	w.inUse[running.Digest] = true

	o := PruneOptions{Before: time.Now().Add(-7 * day), Keep: func(_ string, d store.Digest) bool { return d == kept.Digest }}
	for _, dry := range []bool{true, false} {
		o.Dry = dry
		p, err := w.images.Prune(t.Context(), o)
		require.NoError(t, err)
		require.Equal(t, []store.Digest{stale.Digest}, p.Images)
		require.NotZero(t, p.Bytes)
	}
	_, err = w.get(stale.Digest.String())
	require.True(t, fault.Is(err, fault.NotFound), err)
	c, err := w.images.Collect(t.Context(), CollectOptions{})
	require.NoError(t, err)
	require.Equal(t, 1, c.Packs)
	require.Equal(t, 1, c.Blobs, "the chunk table; all have the same metadata")

	// Over the limit the one goes that was not used for longest, unless it is young.
	delete(w.inUse, running.Digest)
	o = PruneOptions{Limit: 1, Young: time.Now().Add(-2 * time.Hour), Keep: o.Keep}
	p, err := w.images.Prune(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, []store.Digest{running.Digest, young.Digest}, p.Images)
	for _, img := range []*Image{named, kept, used} {
		got, err := w.get(img.Digest.String())
		require.NoError(t, err)
		require.Equal(t, img.Digest, got.Digest)
	}
}

// On a shared origin it counts when other machines used an image.
func TestPruneKnowsOtherMachines(t *testing.T) {
	w := newWorld(t)
	w.stores = storetest.Workspaces(t, store.WorkspacesOptions{Origin: w.origin, Shared: true})
	w.store = storetest.Store(t, w.stores, DefaultWorkspace)
	w.open()
	img := w.old("", "content", 30*24*time.Hour)
	_, err := w.store.PutRecord(t.Context(), kindUses, img.Digest.String(), []byte(time.Now().UTC().Format(time.RFC3339)), nil)
	require.NoError(t, err)
	o := PruneOptions{Before: time.Now().Add(-7 * 24 * time.Hour)}
	p, err := w.images.Prune(t.Context(), o)
	require.NoError(t, err)
	require.Empty(t, p.Images)
	require.NoError(t, w.store.DeleteRecord(t.Context(), kindUses, img.Digest.String()))
	p, err = w.images.Prune(t.Context(), o)
	require.NoError(t, err)
	require.Len(t, p.Images, 1)
	require.Empty(t, w.keys("default/records"))
	require.NotEmpty(t, w.keys("default/packs"), "it has its grace period")
}

func TestWanted(t *testing.T) {
	w := newWorld(t)
	img := w.must("web", file("a", "content"))
	wanted, err := w.images.Wanted()
	require.NoError(t, err)
	require.True(t, wanted(store.Sum([]byte("content"))))
	require.False(t, wanted(store.Sum([]byte("other"))))
	exists, err := w.images.Exists(t.Context())
	require.NoError(t, err)
	require.True(t, exists(img.Digest))
	require.False(t, exists(store.Sum(nil)))
	require.NoError(t, w.images.Remove(t.Context(), Ref{DefaultWorkspace, "web"}))
	wanted, err = w.images.Wanted()
	require.NoError(t, err)
	require.False(t, wanted(store.Sum([]byte("content"))))
}

// Of images each of which was made of the one before the last needs little of the packs of the
// others. When they are gone, so is what it does not need, and it is whole.
func TestRepack(t *testing.T) {
	const mib = 1 << 20
	w := newWorld(t)
	content := func(i int) string { return string(storetest.Data(uint64(i), 2*mib)) }
	var last *Image
	for i := range 4 {
		// A quarter of each is what the next keeps.
		entries := []tar.Header{file("own", content(100+i)), file("more", content(200+i))}
		for k := range i + 1 {
			entries = append(entries, file(fmt.Sprint("kept", k), content(k)))
		}
		last = w.must(fmt.Sprint("image", i), entries...)
	}
	want := w.files(last)
	r, err := w.images.Repack(t.Context(), false)
	require.NoError(t, err)
	require.Equal(t, Repacked{}, r, "all is needed")
	for i := range 3 {
		require.NoError(t, w.images.Remove(t.Context(), Ref{DefaultWorkspace, fmt.Sprint("image", i)}))
	}
	before := w.stored("default/packs")
	other := w.must("other", file("a", content(0))) // needs one of the packs, too
	for _, dry := range []bool{true, false} {
		r, err = w.images.Repack(t.Context(), dry)
		require.NoError(t, err)
		require.Equal(t, 3, r.Packs)
		require.Greater(t, r.Bytes, int64(5*mib))
	}
	c, err := w.images.Collect(t.Context(), CollectOptions{})
	require.NoError(t, err)
	require.Equal(t, 3, c.Packs)
	require.Less(t, w.stored("default/packs"), before-r.Bytes+mib)

	// Nothing but what the origin has says so.
	w.cache.Clear()
	require.NoError(t, os.RemoveAll(w.dir))
	w.openStores(w.cache)
	w.open()
	for name, files := range map[string][]string{"image3": want, "other": {"/a=" + content(0)}} {
		img, err := w.get(name)
		require.NoError(t, err)
		require.Equal(t, files, w.files(img), name)
	}
	again, err := w.get("other")
	require.NoError(t, err)
	require.Equal(t, other.Digest, again.Digest)
	require.Len(t, again.Manifest.Packs, 1)
	report, err := w.images.Check(t.Context(), CheckOptions{Full: true})
	require.NoError(t, err)
	require.Empty(t, report.Damaged)
	r, err = w.images.Repack(t.Context(), false)
	require.NoError(t, err)
	require.Equal(t, Repacked{}, r)
}

// stored is the size of objects.
func (w *world) stored(prefix string) (n int64) {
	require.NoError(w.t, w.mem.List(w.t.Context(), prefix, func(o store.Object) error {
		n += o.Size
		return nil
	}))
	return n
}

// The origin dies at every operation of repacking and collecting: the image is whole, always, and the next
// attempt finishes.
func TestRepackDies(t *testing.T) {
	const mib = 1 << 20
	died := errors.New("died")
	for step := 0; ; step++ {
		w := newWorld(t)
		kept, gone := string(storetest.Data(1, 2*mib)), string(storetest.Data(2, 4*mib))
		w.must("old", file("kept", kept), file("gone", gone))
		w.must("new", file("kept", kept))
		require.NoError(t, w.images.Remove(t.Context(), Ref{DefaultWorkspace, "old"}))
		var left atomic.Int64
		left.Store(int64(step))
		w.origin.Before(func(context.Context, storetest.Op) error {
			if left.Add(-1) < 0 {
				return died
			}
			return nil
		})
		_, err := w.images.Repack(t.Context(), false)
		if err == nil {
			_, err = w.images.Collect(t.Context(), CollectOptions{})
		}
		over := err == nil && left.Load() >= 0
		w.origin.Before(nil)
		w.cache.Clear()
		w.openStores(w.cache)
		w.open()
		for range 2 {
			img, err := w.get("new")
			require.NoError(t, err, "step %d", step)
			require.Equal(t, []string{"/kept=" + kept}, w.files(img), "step %d", step)
			_, err = w.images.Repack(t.Context(), false)
			require.NoError(t, err)
			_, err = w.images.Collect(t.Context(), CollectOptions{})
			require.NoError(t, err)
		}
		require.Len(t, w.keys("default/packs"), 1)
		require.Less(t, w.stored("default/packs"), int64(2*mib))
		if over {
			require.Greater(t, step, 8)
			return
		}
	}
}

package image

import (
	"bytes"
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/seal"
	"brisk.dev/brisk/internal/store/storetest"
)

// town is a machine of several workspaces, at a bucket that is sealed.
type town struct {
	t      *testing.T
	mem    *storetest.MemOrigin
	origin *storetest.Faults
	cache  *storetest.MemCache
	ring   *seal.Keyring
	dir    string
	images *Images
}

func newTown(t *testing.T) *town {
	w := &town{t: t, mem: storetest.NewMemOrigin(), cache: storetest.NewMemCache()}
	w.origin = &storetest.Faults{Origin: w.mem}
	ring, err := seal.OpenKeyring(t.TempDir())
	require.NoError(t, err)
	w.ring = ring
	w.machine()
	return w
}

// machine is a new one, with nothing local but the keys.
func (w *town) machine() {
	w.cache.Clear()
	w.dir = w.t.TempDir()
	w.reopen()
}

func (w *town) reopen() {
	stores := storetest.Workspaces(w.t, store.WorkspacesOptions{
		Dir: filepath.Join(w.dir, "local"), Origin: w.origin, Cache: w.cache, Keyring: w.ring, Sealed: true, Shared: true,
	})
	images, err := Open(w.t.Context(), Options{Dir: filepath.Join(w.dir, "images"), Stores: stores, Log: storetest.Log(w.t)})
	require.NoError(w.t, err)
	w.images = images
}

func (w *town) write(workspace, name, content string) (*Image, Result) {
	w.t.Helper()
	s, err := w.images.Store(workspace)
	require.NoError(w.t, err)
	batch := s.Begin(w.t.Context())
	defer batch.Abort()
	tree := NewTree()
	_, err = tree.ApplyTar(w.t.Context(), bytes.NewReader(archive(w.t, file("a", content))), batch, LayerOptions{})
	require.NoError(w.t, err)
	img, res, err := w.images.Write(w.t.Context(), tree, Config{}, batch, workspace, name)
	require.NoError(w.t, err)
	return img, res
}

func (w *town) content(workspace, name string) (string, error) {
	img, err := w.images.Get(w.t.Context(), Ref{workspace, name})
	if err != nil {
		return "", err
	}
	tree, err := img.Tree(w.t.Context())
	if err != nil {
		return "", err
	}
	b, err := img.Content(w.t.Context(), tree.Root.Children["a"])
	return string(b), err
}

func (w *town) wantContent(workspace, name, want string) {
	w.t.Helper()
	got, err := w.content(workspace, name)
	require.NoError(w.t, err)
	require.Equal(w.t, want, got)
}

// TestWorkspacesApart has two workspaces with the same image, and nothing that one
// can see of the other's.
func TestWorkspacesApart(t *testing.T) {
	w := newTown(t)
	img, _ := w.write("a", "web", "secret")
	w.wantContent("a", "web", "secret")
	for _, ref := range []string{"web", img.Digest.String(), img.Digest.String()[:8]} {
		_, err := w.content("b", ref)
		require.True(t, fault.Is(err, fault.NotFound), "%s: %v", ref, err)
	}
	l, err := w.images.List(t.Context(), "b")
	require.NoError(t, err)
	require.Empty(t, l)

	same, res := w.write("b", "mine", "secret")
	require.Equal(t, img.Digest, same.Digest)
	require.Equal(t, int64(1), res.NewChunks, "that a has it must not show")
	require.NoError(t, w.images.Remove(t.Context(), Ref{"a", "web"}))
	w.machine()
	w.wantContent("b", "mine", "secret")
	_, err = w.images.Collect(t.Context(), CollectOptions{})
	require.NoError(t, err)
	w.machine()
	w.wantContent("b", "mine", "secret")
}

// TestForgedManifest puts a manifest where a workspace looks for its own: by who has
// the bucket, and by who has another workspace's key.
func TestForgedManifest(t *testing.T) {
	w := newTown(t)
	img, _ := w.write("a", "web", "secret")
	record := func(workspace string) string {
		k, err := w.ring.Keys(workspace)
		require.NoError(t, err)
		return workspace + "/records/manifests/" + k.SealName("manifests", img.Digest.String())
	}
	var sealed []byte
	w.mem.Change(record("a"), func(b []byte) []byte { sealed = b; return b })
	_, err := w.images.Store("b")
	require.NoError(t, err)
	for name, forged := range map[string][]byte{"a's": sealed, "plain": img.Manifest.Encode(), "nothing": nil} {
		require.NoError(t, w.mem.Delete(t.Context(), record("b")))
		require.NoError(t, w.mem.Put(t.Context(), record("b"), bytes.NewReader(forged)))
		_, err := w.content("b", img.Digest.String())
		require.True(t, fault.Is(err, fault.Corrupt), "%s: %v", name, err)
		require.NotEmpty(t, fault.HintOf(err))
		if name == "a's" {
			require.ErrorContains(t, err, `workspace "b"`)
		}
	}
}

// TestSharedImages are everybody's to read and build on, and whose they may be to write.
func TestSharedImages(t *testing.T) {
	w := newTown(t)
	w.write(DefaultWorkspace, "python", "the base")
	_, _, err := w.images.Share(t.Context(), Ref{"b", "python"}, "python", nil)
	require.True(t, fault.Is(err, fault.Invalid), "b may not share: %v", err)
	shared, res, err := w.images.Share(t.Context(), Ref{DefaultWorkspace, "python"}, "python", nil)
	require.NoError(t, err)
	require.Equal(t, int64(1), res.NewChunks)
	w.wantContent("b", "shared/python", "the base")
	w.wantContent("b", shared.Digest.String(), "the base")
	w.wantContent(store.SharedWorkspace, "python", "the base")

	_, res = w.write("b", "own", "the base")
	require.Equal(t, int64(0), res.NewChunks, "it is shared")
	// Both go on when the shared image is removed: by who may, and not its packs.
	_, err = w.content("b", "shared/nothing")
	require.True(t, fault.Is(err, fault.NotFound), err)
	require.Equal(t, "There are: own, shared/python.", fault.HintOf(err))
	err = w.images.Remove(t.Context(), Ref{"b", "shared/python"})
	require.True(t, fault.Is(err, fault.Invalid), err)
	require.NoError(t, w.images.Remove(t.Context(), Ref{DefaultWorkspace, "shared/python"}))
	w.machine()
	w.wantContent("b", "own", "the base")

	// No other way leads into the shared workspace, and no name looks like one of it.
	s, err := w.images.Store(store.SharedWorkspace)
	require.NoError(t, err)
	batch := s.Begin(t.Context())
	_, _, err = w.images.Write(t.Context(), NewTree(), Config{}, batch, store.SharedWorkspace, "x")
	require.True(t, fault.Is(err, fault.Invalid), err)
	require.True(t, fault.Is(w.images.Tag(t.Context(), Ref{store.SharedWorkspace, "python"}, "x"), fault.Invalid))
	require.True(t, fault.Is(CheckRef("b", "shared/x"), fault.Invalid))
	// Nor does a batch of one workspace make an image of another's.
	batch = s.Begin(t.Context())
	_, _, err = w.images.Write(t.Context(), NewTree(), Config{}, batch, "b", "x")
	require.Error(t, err)
}

// TestBuildOnShared puts a layer on a shared image: only the layer is stored.
func TestBuildOnShared(t *testing.T) {
	w := newTown(t)
	w.write(DefaultWorkspace, "python", "the base")
	_, _, err := w.images.Share(t.Context(), Ref{DefaultWorkspace, "python"}, "python", nil)
	require.NoError(t, err)
	parent, err := w.images.Get(t.Context(), Ref{"b", "shared/python"})
	require.NoError(t, err)
	require.Equal(t, store.SharedWorkspace, parent.Workspace)
	img, res, err := w.images.Commit(t.Context(), parent, bytes.NewReader(archive(t, file("b", "own"))), nil, nil, "b", "mine")
	require.NoError(t, err)
	require.Equal(t, "b", img.Workspace)
	require.Equal(t, int64(2), res.Chunks)
	require.Equal(t, int64(1), res.NewChunks)
	w.machine()
	w.wantContent("b", "mine", "the base")
}

// TestOriginIsAway uses what is local while the origin does not answer, and names what
// is missing.
func TestOriginIsAway(t *testing.T) {
	w := newTown(t)
	w.write("a", "used", "here")
	w.write("a", "unused", "there")
	w.machine()
	w.wantContent("a", "used", "here")
	require.Eventually(t, func() bool { return w.cache.Stats().Chunks == 1 }, time.Minute, time.Millisecond)
	// A new process on the same machine.
	w.origin.Before(func(context.Context, storetest.Op) error {
		return fault.New(fault.Unavailable, "no route to the bucket")
	})
	w.reopen()
	w.wantContent("a", "used", "here")
	l, err := w.images.List(t.Context(), "a")
	require.NoError(t, err)
	require.Len(t, l, 1)
	_, err = w.content("a", "unused")
	require.True(t, fault.Is(err, fault.Unavailable), err)
	require.ErrorContains(t, err, "image unused")
	w.cache.Clear()
	_, err = w.content("a", "used")
	require.True(t, fault.Is(err, fault.Unavailable), err)
	require.ErrorContains(t, err, "read a file of image ")
	w.origin.Before(nil)
	w.wantContent("a", "unused", "there")
}

// TestSealedBucket looks at what of an image is in the bucket.
func TestSealedBucket(t *testing.T) {
	w := newTown(t)
	img, _ := w.write("a", "team/webserver", strings.Repeat("some text of a file ", 100))
	var all []byte
	require.NoError(t, w.mem.List(t.Context(), "", func(o store.Object) error {
		all = append(all, o.Key...)
		return nil
	}))
	var keys []string
	require.NoError(t, w.mem.List(t.Context(), "a/", func(o store.Object) error { keys = append(keys, o.Key); return nil }))
	lasting := slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return strings.HasPrefix(k, "a/holds/") }) // these come and go
	require.Len(t, lasting, 5)                                                                                        // a pack, metadata, table, manifest, name
	for _, k := range keys {
		w.mem.Change(k, func(b []byte) []byte { all = append(all, b...); return b })
	}
	for _, secret := range []string{"webserver", "some text", "config", img.Digest.String()[:12], string(img.Digest[:8]), img.Manifest.Meta.Digest.String()[:12]} {
		require.NotContains(t, string(all), secret)
	}
}

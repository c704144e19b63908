package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/seal"
	"brisk.dev/brisk/internal/store/storetest"
)

// world is a registry with its store and origin, which can be opened again.
type world struct {
	t      *testing.T
	dir    string
	mem    *storetest.MemOrigin
	origin *storetest.Faults
	cache  *storetest.MemCache
	stores *store.Workspaces
	store  *store.Store // the default workspace's
	images *Images
	inUse  map[store.Digest]bool
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, dir: t.TempDir(), mem: storetest.NewMemOrigin(), cache: storetest.NewMemCache(), inUse: map[store.Digest]bool{}}
	w.origin = &storetest.Faults{Origin: w.mem}
	w.openStores(w.cache)
	w.open()
	return w
}

// openStores opens the stores again, over a cache.
func (w *world) openStores(cache store.Cache) {
	w.stores = storetest.Workspaces(w.t, store.WorkspacesOptions{Dir: filepath.Join(w.dir, "cache"), Origin: w.origin, Cache: cache})
	w.store = storetest.Store(w.t, w.stores, DefaultWorkspace)
}

func (w *world) open() {
	images, err := Open(w.t.Context(), Options{
		Dir: filepath.Join(w.dir, "images"), Stores: w.stores, Log: storetest.Log(w.t),
		InUse: func(d store.Digest) bool { return w.inUse[d] },
	})
	require.NoError(w.t, err)
	w.images = images
}

func (w *world) write(name string, entries ...tar.Header) (*Image, Result, error) {
	batch := w.store.Begin(w.t.Context())
	defer batch.Abort()
	tree := NewTree()
	_, err := tree.ApplyTar(w.t.Context(), bytes.NewReader(archive(w.t, entries...)), batch, LayerOptions{})
	if err != nil {
		return nil, Result{}, err
	}
	return w.images.Write(w.t.Context(), tree, Config{Env: []string{"A=" + name}, Cmd: []string{"sh"}}, batch, DefaultWorkspace, name)
}

func (w *world) must(name string, entries ...tar.Header) *Image {
	w.t.Helper()
	img, _, err := w.write(name, entries...)
	require.NoError(w.t, err)
	return img
}

func (w *world) get(name string) (*Image, error) {
	return w.images.Get(w.t.Context(), Ref{DefaultWorkspace, name})
}

// files is an image's content as list writes it down, read through its blocks.
func (w *world) files(img *Image) []string { return w.filesOf(w.store, img) }

// filesOf reads them from a store.
func (w *world) filesOf(from *store.Store, img *Image) []string {
	w.t.Helper()
	tree, err := img.Tree(w.t.Context())
	require.NoError(w.t, err)
	m := memory{}
	require.NoError(w.t, tree.Walk(func(_ string, n *Node) error {
		for _, c := range n.Chunks {
			if c.Digest.IsZero() {
				continue
			}
			b := make([]byte, c.Size)
			if _, err := from.ReadChunk(w.t.Context(), c, b); err != nil {
				return err
			}
			m[c.Digest] = b
		}
		return nil
	}))
	return list(tree, m)
}

func (w *world) keys(prefix string) []string {
	var l []string
	require.NoError(w.t, w.mem.List(w.t.Context(), prefix, func(o store.Object) error {
		l = append(l, o.Key)
		return nil
	}))
	slices.Sort(l)
	return l
}

func TestWriteAndGet(t *testing.T) {
	w := newWorld(t)
	img, res, err := w.write("web", file("a", "content"), file("b", "content"), hardlink("c", "a"), dirEntry("d"))
	require.NoError(t, err)
	require.Equal(t, int64(4), res.Files) // with the root; c is a's
	require.Equal(t, int64(14), res.Bytes)
	require.Equal(t, int64(1), res.Chunks)
	require.Equal(t, int64(1), res.NewChunks)
	require.Equal(t, int64(7), res.NewBytes)
	require.Equal(t, int64(8192), res.MetaBytes)

	for _, name := range []string{"web", img.Digest.String(), img.Digest.String()[:8]} {
		got, err := w.get(name)
		require.NoError(t, err)
		require.Same(t, img, got)
	}
	require.Equal(t, []string{"/a=content", "/b=content", "/c==/a", "/d/"}, w.files(img))
	require.Equal(t, []string{"A=web"}, img.Config().Env)
	require.Equal(t, []string{"default/records/manifests/" + img.Digest.String(), "default/records/names/web"}, w.keys("default/records/"))

	w.open()
	again, err := w.get("web")
	require.NoError(t, err)
	require.NotSame(t, img, again)
	require.Equal(t, img.Manifest, again.Manifest)
	require.Equal(t, w.files(img), w.files(again))

	same, res, err := w.write("web", file("a", "content"), file("b", "content"), hardlink("c", "a"), dirEntry("d"))
	require.NoError(t, err)
	require.Equal(t, img.Digest, same.Digest, "equal content is one image")
	require.Equal(t, int64(0), res.NewChunks)
}

// TestDigest pins what makes an image's digest: content, and nothing of its storage.
func TestDigest(t *testing.T) {
	w := newWorld(t)
	img := w.must("pinned", file("etc/hostname", "brisk\n"))
	require.Equal(t, "7e56ac58f9c0a2ab8aeff5d25946f1b8384fbd8857789fd71878df24a7ff073e", img.Digest.String())
	m := img.Manifest
	m.Packs, m.Created = nil, m.Created.AddDate(1, 0, 0)
	require.Equal(t, img.Digest, m.Digest())
	m.Config.Workdir = "/srv"
	require.NotEqual(t, img.Digest, m.Digest())
}

func TestNotFound(t *testing.T) {
	w := newWorld(t)
	_, err := w.get("web")
	require.True(t, fault.Is(err, fault.NotFound), err)
	require.Contains(t, fault.HintOf(err), "No image has a name yet")
	w.must("web", file("a", "1"))
	w.must("python-3.11", file("a", "2"))
	for name, hint := range map[string]string{
		"wbe":                         "Did you mean web?",
		"python":                      "Did you mean python-3.11?",
		"something else":              "There are: python-3.11, web.",
		"../../etc/passwd":            "There are: python-3.11, web.",
		"0123456789":                  "There are: python-3.11, web.",
		strings.Repeat("01234567", 8): "There are: python-3.11, web.",
	} {
		_, err := w.get(name)
		require.True(t, fault.Is(err, fault.NotFound), "%s: %v", name, err)
		require.Equal(t, hint, fault.HintOf(err), name)
	}
	_, err = w.images.Get(t.Context(), Ref{"../default", "web"})
	require.True(t, fault.Is(err, fault.Invalid), err)
	for _, name := range []string{"-x", "a b", "a\x00", strings.Repeat("a", 201), strings.Repeat("a", 64)} {
		_, _, err := w.write(name, file("a", "1"))
		require.True(t, fault.Is(err, fault.Invalid), "%q: %v", name, err)
	}
}

func TestListTagRemove(t *testing.T) {
	w := newWorld(t)
	web := w.must("registry.example:5000/team/web:v1", file("a", "shared"), file("b", "web only"))
	api := w.must("api", file("a", "shared"), file("c", "api only"))
	unnamed := w.must("", file("d", "nobody's"))
	require.NoError(t, w.images.Tag(t.Context(), Ref{DefaultWorkspace, "api"}, "latest"))

	names := func() (l []string) {
		images, err := w.images.List(t.Context(), DefaultWorkspace)
		require.NoError(t, err)
		for _, n := range images {
			l = append(l, n.Name+"="+n.Digest.Short())
		}
		return l
	}
	require.Equal(t, []string{"api=" + api.Digest.Short(), "latest=" + api.Digest.Short(),
		"registry.example:5000/team/web:v1=" + web.Digest.Short(), "=" + unnamed.Digest.Short()}, names())

	remove := func(name string) error { return w.images.Remove(t.Context(), Ref{DefaultWorkspace, name}) }
	w.inUse[api.Digest] = true
	require.NoError(t, remove("latest"), "the image keeps another name")
	err := remove("api")
	require.True(t, fault.Is(err, fault.Exists), err)
	require.ErrorContains(t, err, "remove image api: the image is in use")
	require.NotEmpty(t, fault.HintOf(err))
	_, err = w.get("api")
	require.NoError(t, err)

	w.inUse[api.Digest] = false
	require.NoError(t, remove("api"))
	_, err = w.get(api.Digest.String())
	require.True(t, fault.Is(err, fault.NotFound), err)
	require.Equal(t, []string{"/a=shared", "/b=web only"}, w.files(web))
	require.True(t, fault.Is(remove("api"), fault.NotFound))
	require.True(t, fault.Is(remove(api.Digest.String()), fault.NotFound))

	require.NoError(t, remove(unnamed.Digest.String()[:10]))
	require.NoError(t, remove(web.Digest.String()), "by digest all names go")
	require.Empty(t, names())
	require.Empty(t, w.keys("default/"), "nothing may stay at the origin")
	require.Empty(t, mustGlob(t, filepath.Join(w.dir, "images/*/*/*")))
}

func mustGlob(t *testing.T, pattern string) []string {
	l, err := filepath.Glob(pattern)
	require.NoError(t, err)
	return l
}

// TestDamage damages each local file of an image in several ways: it heals from
// the origin.
func TestDamage(t *testing.T) {
	w := newWorld(t)
	img := w.must("web", file("a", "content"))
	want := w.files(img)
	ways := map[string]func(path string) error{
		"flip": func(p string) error {
			b, err := os.ReadFile(p)
			b[len(b)/2] ^= 1
			return errors.Join(err, os.WriteFile(p, b, 0o600))
		},
		"cut":     func(p string) error { return os.Truncate(p, 3) },
		"empty":   func(p string) error { return os.Truncate(p, 0) },
		"missing": os.Remove,
	}
	for _, path := range mustGlob(t, filepath.Join(w.dir, "images/default/m*/*")) {
		for name, way := range ways {
			t.Run(filepath.Base(filepath.Dir(path))+" "+name, func(t *testing.T) {
				before, err := os.ReadFile(path)
				require.NoError(t, err)
				require.NoError(t, way(path))
				w.open()
				img, err := w.get("web")
				require.NoError(t, err)
				require.Equal(t, want, w.files(img))
				meta, err := img.MetaPath(t.Context())
				require.NoError(t, err)
				b, err := os.ReadFile(meta)
				require.NoError(t, err)
				require.Equal(t, img.Manifest.Meta.Digest, store.Sum(b))
				after, err := os.ReadFile(path)
				require.NoError(t, err)
				require.Equal(t, before, after, "the local copy must be whole again")
			})
		}
	}
}

// TestDamageEverywhere leaves no good copy: that is an error that says so.
func TestDamageEverywhere(t *testing.T) {
	for _, part := range []string{"manifests", "meta", "names"} {
		t.Run(part, func(t *testing.T) {
			w := newWorld(t)
			w.must("web", file("a", "content"))
			for _, path := range mustGlob(t, filepath.Join(w.dir, "images/default", part, "*")) {
				require.NoError(t, os.WriteFile(path, []byte("damaged"), 0o600))
			}
			for _, key := range w.keys("") {
				if !strings.Contains(key, "/packs/") && strings.HasPrefix(key, "default/") {
					w.mem.Change(key, func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
				}
			}
			w.open()
			img, err := w.get("web")
			if err == nil {
				_, err = img.MetaPath(t.Context())
			}
			require.True(t, fault.Is(err, fault.Corrupt), err)
			require.NotEmpty(t, fault.HintOf(err))
			// And the cure that the hint names works.
			if part != "manifests" {
				_, _, err = w.write("web", file("a", "content"))
				require.NoError(t, err)
				img, err = w.get("web")
				require.NoError(t, err)
				require.Equal(t, []string{"/a=content"}, w.files(img))
			}
		})
	}
}

// TestFaults lets the n-th operation on the origin fail, for every n, and then
// whatever follows, as if the process had died there. Another process finds the image
// whole or not at all, writes it again, and can remove it without a trace.
func TestFaults(t *testing.T) {
	died := errors.New("died")
	for n := 0; ; n++ {
		w := newWorld(t)
		old := w.must("old", file("a", "shared"), file("b", "old"))
		count := -1
		w.origin.Before(func(_ context.Context, op storetest.Op) error {
			if count++; count >= n {
				return died
			}
			return nil
		})
		_, _, failed := w.write("new", file("a", "shared"), file("c", "new"))
		w.origin.Before(nil)
		if failed == nil {
			require.Greater(t, n, 3)
			return
		}
		require.ErrorIs(t, failed, died)
		w.open()
		if img, err := w.get("new"); err == nil {
			require.Equal(t, []string{"/a=shared", "/c=new"}, w.files(img))
		} else {
			require.True(t, fault.Is(err, fault.NotFound), err)
		}
		img := w.must("new", file("a", "shared"), file("c", "new"))
		require.Equal(t, []string{"/a=shared", "/c=new"}, w.files(img))
		require.NoError(t, w.images.Remove(t.Context(), Ref{DefaultWorkspace, "new"}))
		require.Equal(t, []string{"/a=shared", "/b=old"}, w.files(old))
		require.NoError(t, w.images.Remove(t.Context(), Ref{DefaultWorkspace, "old"}))
		require.Empty(t, w.keys("default/"), "after a fault at operation %d", n)
	}
}

// TestRemoveWhileWriting removes images while others that share chunks with them
// are written: no image may lose a chunk.
func TestRemoveWhileWriting(t *testing.T) {
	w := newWorld(t)
	write := func(i int) {
		img, _, err := w.write(fmt.Sprintf("image%d", i), file("shared", "by all"), file("own", fmt.Sprint(i)))
		require.NoError(t, err)
		require.Equal(t, []string{fmt.Sprintf("/own=%d", i), "/shared=by all"}, w.files(img))
	}
	write(0)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 20 {
			write(100 + i)
		}
	}()
	for i := range 20 {
		write(i + 1)
		require.NoError(t, w.images.Remove(t.Context(), Ref{DefaultWorkspace, fmt.Sprintf("image%d", i)}))
	}
	<-done
	w.cache.Clear()
	l, err := w.images.List(t.Context(), DefaultWorkspace)
	require.NoError(t, err)
	require.Len(t, l, 21)
	for _, img := range l {
		w.files(img.Image)
	}
}

// TestCollect finds what a Write left that died before its manifest, and leaves what
// another machine has written to the same origin.
func TestCollect(t *testing.T) {
	w := newWorld(t)
	w.must("web", file("a", "content"))
	keys := w.keys("")
	w.origin.Before(func(_ context.Context, op storetest.Op) error {
		if op.Name == "put" && strings.HasPrefix(op.Key, "default/blobs/") {
			return errors.New("died")
		}
		return nil
	})
	_, _, err := w.write("half", file("b", "half"))
	require.Error(t, err)
	w.origin.Before(nil)
	require.Len(t, w.keys(""), len(keys)+1)
	freed, err := w.images.Collect(t.Context(), CollectOptions{})
	require.NoError(t, err)
	require.Equal(t, 1, freed.Packs)
	require.Equal(t, keys, w.keys(""))

	// Another machine at the same origin.
	ring, err := seal.OpenKeyring(filepath.Join(w.dir, "cache", "keys"))
	require.NoError(t, err)
	stores := storetest.Workspaces(t, store.WorkspacesOptions{Origin: w.origin, Keyring: ring})
	other, err := Open(t.Context(), Options{Dir: t.TempDir(), Stores: stores, Log: storetest.Log(t)})
	require.NoError(t, err)
	_, err = other.Collect(t.Context(), CollectOptions{})
	require.NoError(t, err)
	require.Equal(t, keys, w.keys(""))
	l, err := other.List(t.Context(), DefaultWorkspace)
	require.NoError(t, err)
	require.Len(t, l, 1)
	require.Equal(t, "web", l[0].Name)

	img, err := w.get("web")
	require.NoError(t, err)
	for _, name := range []string{"web", img.Digest.String(), img.Digest.String()[:10]} {
		there, err := other.Get(t.Context(), Ref{DefaultWorkspace, name})
		require.NoError(t, err)
		require.Equal(t, img.Manifest, there.Manifest)
		require.Equal(t, []string{"/a=content"}, w.files(there))
	}

	// What one removes is gone for the other, its copies included.
	require.NoError(t, w.images.Remove(t.Context(), Ref{DefaultWorkspace, "web"}))
	_, err = other.Get(t.Context(), Ref{DefaultWorkspace, "web"})
	require.True(t, fault.Is(err, fault.NotFound), err)
	_, err = other.Collect(t.Context(), CollectOptions{})
	require.NoError(t, err)
	require.Empty(t, mustGlob(t, filepath.Join(other.opt.Dir, "*/*/*")))
}

func TestCommit(t *testing.T) {
	w := newWorld(t)
	parent := w.must("base", file("keep", "kept"), file("gone", "gone"), file("d/a", "a"), hardlink("hard", "keep"))
	layer := archive(t, whiteoutDevice("gone"), opaqueDir("d"), file("d/b", "b"), file("run/brisk/junk", "j"), file("keep2", "kept"))
	img, res, err := w.images.Commit(t.Context(), parent, bytes.NewReader(layer),
		func(c *Config) { c.Env = append(c.Env, "B=1") },
		func(p string) bool { return strings.HasPrefix(p, "/run/brisk") }, DefaultWorkspace, "")
	require.NoError(t, err)
	require.Equal(t, []string{"/d/", "/d/b=b", "/hard=kept", "/keep2=kept", "/keep==/hard"}, w.files(img))
	require.Equal(t, int64(2), res.Chunks)
	require.Equal(t, int64(1), res.NewChunks)
	require.Equal(t, []string{"A=base", "B=1"}, img.Config().Env)
	require.Equal(t, []string{"A=base"}, parent.Config().Env)

	// The child lives on its parent's packs.
	require.NoError(t, w.images.Remove(t.Context(), Ref{DefaultWorkspace, "base"}))
	w.cache.Clear()
	w.open()
	img, err = w.get(img.Digest.String())
	require.NoError(t, err)
	require.Equal(t, []string{"/d/", "/d/b=b", "/hard=kept", "/keep2=kept", "/keep==/hard"}, w.files(img))

	_, _, err = w.images.Commit(t.Context(), parent, bytes.NewReader(layer[:700]), nil, nil, DefaultWorkspace, "")
	require.Error(t, err)
}

func TestParseManifest(t *testing.T) {
	w := newWorld(t)
	img := w.must("web", file("a", "content"))
	b := img.Manifest.Encode()
	m, err := ParseManifest(b)
	require.NoError(t, err)
	require.Equal(t, img.Manifest, *m)
	for i := range b {
		c := bytes.Clone(b)
		c[i] ^= 1
		_, err := ParseManifest(c)
		require.True(t, fault.Is(err, fault.Corrupt), "byte %d of %s: %v", i, b, err)
	}
	odd := Config{Env: []string{"X=\xff\xfe"}, Labels: map[string]string{"<&>": "\u2028"}}.clean()
	m.Config = odd
	again, err := ParseManifest(m.Encode())
	require.NoError(t, err)
	require.Equal(t, odd, again.Config)
}

func FuzzParseManifest(f *testing.F) {
	m := Manifest{Version: 1, Config: Config{Env: []string{"A=b"}, Labels: map[string]string{"a": "b"}}, Files: 1}
	m.Meta.Size = 8192
	f.Add(m.Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseManifest(b)
		if err != nil {
			require.True(t, fault.Is(err, fault.Corrupt), err)
			return
		}
		require.Equal(t, b, m.Encode())
	})
}

func FuzzDecodeTable(f *testing.F) {
	f.Add(encodeTable(nil))
	f.Add(encodeTable([]store.Chunk{{Digest: store.Sum([]byte("a")), Size: 1}, {Digest: store.Sum([]byte("b")), Size: store.ChunkSize}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		dev, err := decodeTable(b)
		if err != nil {
			require.True(t, fault.Is(err, fault.Corrupt), err)
			return
		}
		require.Equal(t, b, encodeTable(dev.chunks))
	})
}

// Sizes that no file has, in a manifest and a table whose checks are right.
func TestImpossibleSizes(t *testing.T) {
	good := Manifest{Version: ManifestVersion, Files: 1}
	good.Meta.Size = 8192
	_, err := ParseManifest(good.Encode())
	require.NoError(t, err)
	for name, change := range map[string]func(*Manifest){
		"metadata, 2^63":   func(m *Manifest) { m.Meta.Size = math.MinInt64 },
		"metadata, 2^63-1": func(m *Manifest) { m.Meta.Size = math.MaxInt64 },
		"metadata, none":   func(m *Manifest) { m.Meta.Size = 0 },
		"bytes, 2^63":      func(m *Manifest) { m.Bytes = math.MinInt64 },
		"files, 2^63":      func(m *Manifest) { m.Files = math.MinInt64 },
		"chunks, 2^63":     func(m *Manifest) { m.Chunks.Count = math.MinInt64 },
		"chunks, 2^63-1":   func(m *Manifest) { m.Chunks.Count = math.MaxInt64 },
	} {
		m := good
		change(&m)
		_, err := ParseManifest(m.Encode())
		require.Equal(t, fault.Corrupt, fault.ClassOf(err), "%s: %v", name, err)
	}
	_, err = ParseManifest(bytes.Replace(good.Encode(), []byte(`"files":1`), []byte(`"files":9223372036854775808`), 1))
	require.Equal(t, fault.Corrupt, fault.ClassOf(err), "%v", err)
	for _, size := range []uint32{0, store.ChunkSize + 1, 1 << 31, math.MaxUint32} {
		_, err := decodeTable(encodeTable([]store.Chunk{{Digest: store.Sum([]byte("a")), Size: size}}))
		require.Equal(t, fault.Corrupt, fault.ClassOf(err), "%d: %v", size, err)
	}
}

package server

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/api/blobs"
	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/function"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/image/memo"
	"brisk.dev/brisk/internal/node"
	"brisk.dev/brisk/internal/scheduler"
	"brisk.dev/brisk/internal/snapshot"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/slab"
	"brisk.dev/brisk/internal/store/storetest"
)

// household is a data directory with all parts that keep something, and a housekeeper.
type household struct {
	*housekeeper
	t    *testing.T
	data string
}

// idleNode has no instances.
type idleNode struct{}

func (idleNode) ID() string { return "test" }
func (idleNode) Prepare(context.Context, *function.Function) (scheduler.Instance, error) {
	return nil, fault.New(fault.Unavailable, "nothing starts here")
}
func (idleNode) StartContainer(context.Context, node.ContainerSpec, node.Sink) (*node.Container, error) {
	return nil, fault.New(fault.Unavailable, "nothing starts here")
}

var sdkNow = store.Sum([]byte("sdk"))

func newHousehold(t *testing.T) *household {
	t.Helper()
	data := t.TempDir()
	in := func(n string) string { return filepath.Join(data, n) }
	log := storetest.Log(t)
	origin, err := store.OpenDir(in("store"))
	require.NoError(t, err)
	cache, err := slab.Open(slab.Options{Dir: in("cache"), Limit: 64 << 20, Log: log})
	require.NoError(t, err)
	t.Cleanup(func() { cache.Close() })
	stores := storetest.Workspaces(t, store.WorkspacesOptions{Dir: in("packs"), Origin: origin, Cache: cache, Log: log})
	images, err := image.Open(t.Context(), image.Options{Dir: in("images"), Stores: stores, Log: log})
	require.NoError(t, err)
	uploads, err := blobs.Open(in("blobs"))
	require.NoError(t, err)
	code, err := function.OpenCode(in("code"), uploads)
	require.NoError(t, err)
	imports, err := memo.Open(in("imports"))
	require.NoError(t, err)
	snapshots, err := snapshot.Open(in("snapshots"), log)
	require.NoError(t, err)
	h := &household{t: t, data: data, housekeeper: &housekeeper{
		images: images, snapshots: snapshots, code: code, uploads: uploads, cache: cache,
		memos: []*memo.Memo{imports}, sdks: in("sdk"), sdk: filepath.Join(in("sdk"), "now"), limit: 1 << 30, log: slog.New(slog.DiscardHandler),
	}}
	h.restart()
	require.NoError(t, os.MkdirAll(h.sdk, 0o700))
	h.begin()
	t.Cleanup(h.close)
	return h
}

// restart makes the scheduler forget what was registered with it.
func (h *household) restart() {
	calls, err := scheduler.Open(scheduler.Options{Dir: h.data, Node: idleNode{}, Snapshots: h.snapshots, SDK: sdkNow, Log: h.log})
	require.NoError(h.t, err)
	h.t.Cleanup(func() { require.NoError(h.t, calls.Close(context.Background())) })
	h.calls = calls
}

// image writes one with a file of this content.
func (h *household) image(name, content string) *image.Image {
	h.t.Helper()
	st, err := h.images.Store(image.DefaultWorkspace)
	require.NoError(h.t, err)
	batch := st.Begin(h.t.Context())
	tree := image.NewTree()
	_, err = tree.ApplyTar(h.t.Context(), tarOf(h.t, content), batch, image.LayerOptions{})
	require.NoError(h.t, err)
	img, _, err := h.images.Write(h.t.Context(), tree, image.Config{}, batch, image.DefaultWorkspace, name)
	require.NoError(h.t, err)
	return img
}

func tarOf(t *testing.T, content string) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	require.NoError(t, w.WriteHeader(&tar.Header{Name: "file", Size: int64(len(content)), Mode: 0o644}))
	_, err := w.Write([]byte(content))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return &b
}

func (h *household) upload(content string) (ref string) {
	h.t.Helper()
	b := tarOf(h.t, content).Bytes()
	ref = fmt.Sprintf("sha256:%x", sha256.Sum256(b))
	require.NoError(h.t, h.uploads.Put(h.t.Context(), "default", ref, bytes.NewReader(b)))
	_, err := h.code.Dir("default", ref)
	require.NoError(h.t, err)
	return ref
}

func (h *household) register(name, code string, img *image.Image) store.Digest {
	h.t.Helper()
	d, err := h.calls.Register(h.t.Context(), function.Function{
		Workspace: "default", App: "app", Name: name, Module: "m", Qualname: name, Code: code, Image: img.Digest,
	})
	require.NoError(h.t, err)
	key := snapshot.Key{Workspace: "default", Function: d, Image: img.Digest}
	_, err = h.snapshots.Make(h.t.Context(), key, "app."+name, func(dir string) error {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "memory"), []byte(name), 0o600)
	})
	require.NoError(h.t, err)
	return d
}

// later lets time pass in which nobody uses anything.
func (h *household) later(d time.Duration) {
	h.now = func() time.Time { return time.Now().Add(d) }
}

func (h *household) collectAll(dry bool) map[string]int64 {
	h.t.Helper()
	c, err := h.Collect(h.t.Context(), api.CollectRequest{DryRun: dry}, func(string, int64, int64) {})
	require.NoError(h.t, err)
	require.Empty(h.t, c.Notes)
	require.Equal(h.t, dry, c.DryRun)
	got := map[string]int64{}
	for _, g := range c.Freed {
		got[g.Kind] = g.Count
	}
	return got
}

// What one function needs stays, whatever is collected around it.
func TestHousekeeping(t *testing.T) {
	h := newHousehold(t)
	used, unused := h.image("", "used"), h.image("web", "unused")
	h.register("kept", h.upload("kept"), used)
	doomed := h.register("doomed", h.upload("doomed"), unused)
	h.upload("orphan")
	require.NoError(t, h.memos[0].Put(store.Sum([]byte("work 1")), used.Digest))
	require.NoError(t, h.memos[0].Put(store.Sum([]byte("work 2")), unused.Digest))
	require.NoError(t, os.MkdirAll(filepath.Join(h.sdks, "before"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(h.sdks, "before", "x.py"), []byte("x"), 0o600))
	for _, img := range []*image.Image{used, unused} { // into the cache
		blocks, err := img.Blocks(t.Context())
		require.NoError(t, err)
		err = blocks.ReadAt(t.Context(), make([]byte, 4), 0)
		require.NoError(t, err)
	}
	require.Empty(t, h.collectAll(false), "all is young, or needed")

	h.later(8 * 24 * time.Hour)
	require.NoError(t, h.images.Remove(t.Context(), image.Ref{Workspace: "default", Name: "web"}))
	h.restart()
	want := map[string]int64{
		"functions": 1, "snapshots": 1, "code": 2, "uploads": 2, "SDKs": 1, "results of builds and imports": 1, "cached chunks": 1,
	}
	require.Equal(t, want, h.collectAll(true))
	require.Equal(t, want, h.collectAll(false))
	require.Empty(t, h.collectAll(false))
	require.NoFileExists(t, filepath.Join(h.data, "functions", doomed.String()+".json"))
	require.DirExists(t, h.sdk)

	// The function's image has no name, and is old; so it goes with the function.
	h.later(31 * 24 * time.Hour)
	h.restart()
	got := h.collectAll(false)
	require.EqualValues(t, 1, got["functions"])
	require.EqualValues(t, 1, got["images without a name"], "%v", got)
	require.EqualValues(t, 3, got["packs and metadata"], "%v", got)
	require.EqualValues(t, 1, got["cached chunks"])
	for _, dir := range []string{"store/default/packs", "store/default/blobs", "store/default/records", "blobs", "snapshots", "functions"} {
		require.Empty(t, filesBelow(t, filepath.Join(h.data, dir)), dir)
	}
}

func filesBelow(t *testing.T, dir string) (l []string) {
	t.Helper()
	_ = filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			l = append(l, p)
		}
		return nil
	})
	return l
}

// Nothing that functions may need is deleted when it is not known which there are.
func TestHousekeepingKnowsNothing(t *testing.T) {
	h := newHousehold(t)
	h.upload("orphan")
	h.later(100 * 24 * time.Hour)
	require.NoError(t, os.RemoveAll(filepath.Join(h.data, "functions")))
	c, err := h.Collect(t.Context(), api.CollectRequest{}, func(string, int64, int64) {})
	require.NoError(t, err)
	require.Len(t, c.Notes, 3, c.Notes)
	require.Len(t, filesBelow(t, filepath.Join(h.data, "blobs")), 1)
}

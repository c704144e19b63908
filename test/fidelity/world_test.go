package fidelity

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/image/importer"
	"brisk.dev/brisk/internal/lazyfs"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/slab"
	"brisk.dev/brisk/internal/store/storetest"
)

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts, and makes files of any owner")
	}
}

// world is a machine's image system.
type world struct {
	t        testing.TB
	store    *store.Store
	slab     *slab.Slab
	images   *image.Images
	importer *importer.Importer
	fs       *lazyfs.FS
	loaded   atomic.Int64 // gives each image a name of its own
}

func newWorld(t testing.TB) *world {
	needRoot(t)
	ctx, dir := context.Background(), t.TempDir()
	w := &world{t: t}
	origin, err := store.OpenDir(filepath.Join(dir, "store"))
	require.NoError(t, err)
	w.slab, err = slab.Open(slab.Options{Dir: filepath.Join(dir, "cache")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.slab.Close()) })
	stores := storetest.Workspaces(t, store.WorkspacesOptions{Dir: filepath.Join(dir, "local"), Origin: origin, Cache: w.slab})
	w.store = storetest.Store(t, stores, image.DefaultWorkspace)
	w.images, err = image.Open(ctx, image.Options{Dir: filepath.Join(dir, "images"), Stores: stores})
	require.NoError(t, err)
	temp := filepath.Join(dir, "temp")
	require.NoError(t, os.Mkdir(temp, 0o700))
	w.importer = &importer.Importer{Images: w.images, TempDir: temp}
	run := filepath.Join(dir, "run")
	require.NoError(t, os.Mkdir(run, 0o700))
	w.fs, err = lazyfs.Open(ctx, lazyfs.Options{Dir: run})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.fs.Close()) })
	return w
}

// load imports what lies at a path.
func (w *world) load(path string) *image.Image {
	w.t.Helper()
	r, err := w.importer.Import(context.Background(), importer.Request{Path: path, Workspace: image.DefaultWorkspace, Name: fmt.Sprint("test", w.loaded.Add(1))}, nil)
	require.NoError(w.t, err)
	img, err := w.images.Get(context.Background(), image.Ref{Workspace: image.DefaultWorkspace, Name: r.Digest.String()})
	require.NoError(w.t, err)
	return img
}

// lazily mounts an image so that its data comes through FUSE.
func (w *world) lazily(img *image.Image) string {
	w.t.Helper()
	ctx := context.Background()
	meta, err := img.MetaPath(ctx)
	require.NoError(w.t, err)
	blocks, err := img.Blocks(ctx)
	require.NoError(w.t, err)
	m, err := w.fs.Mount(ctx, lazyfs.Image{ID: img.Digest.String(), Meta: meta, Blocks: blocks})
	require.NoError(w.t, err)
	w.t.Cleanup(m.Release)
	return m.Path
}

// natively mounts an image over the slab.
func (w *world) natively(img *image.Image) string {
	w.t.Helper()
	ctx := context.Background()
	complete, err := img.Fill(ctx, w.slab)
	require.NoError(w.t, err)
	require.True(w.t, complete)
	native, err := img.Native(ctx, w.slab)
	require.NoError(w.t, err)
	w.t.Cleanup(native.Release)
	m, err := w.fs.Mount(ctx, lazyfs.Image{ID: native.ID, Meta: native.Meta, Device: native.Device})
	require.NoError(w.t, err)
	w.t.Cleanup(m.Release)
	return m.Path
}

// mounts calls fn with each kind of mount of an image.
func (w *world) mounts(t *testing.T, img *image.Image, fn func(t *testing.T, root string)) {
	t.Run("lazily", func(t *testing.T) { fn(t, w.lazily(img)) })
	t.Run("natively", func(t *testing.T) { fn(t, w.natively(img)) })
}

// umoci runs the reference, or skips the test.
func umoci(t testing.TB, args ...string) {
	t.Helper()
	program, err := exec.LookPath("umoci")
	if err != nil {
		t.Skip("umoci is not installed")
	}
	out, err := exec.Command(program, args...).CombinedOutput()
	require.NoError(t, err, "umoci %v: %s", args, out)
}

// unpacked is the root filesystem that the reference makes of the image with a
// tag in an OCI layout.
func unpacked(t testing.TB, layout, tag string) string {
	t.Helper()
	bundle := filepath.Join(t.TempDir(), "bundle")
	umoci(t, "unpack", "--image", layout+":"+tag, bundle)
	return filepath.Join(bundle, "rootfs")
}

// same compares a mounted image with the reference.
func same(t *testing.T, want map[string]file, root string) {
	t.Helper()
	got, err := survey(root)
	require.NoError(t, err)
	for _, d := range differences(want, got) {
		t.Error(d)
	}
}

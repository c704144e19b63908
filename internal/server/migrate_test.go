package server

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/storetest"
)

// oldData makes a directory as "brisk data 1" was, with an image "team/web:v1" of
// one file.
func oldData(t *testing.T) (Paths, store.Digest) {
	p := Paths{Data: filepath.Join(t.TempDir(), "data")}
	origin, err := store.OpenDir(filepath.Join(p.Data, "store"))
	require.NoError(t, err)
	stores := storetest.Workspaces(t, store.WorkspacesOptions{Origin: origin})
	images, err := image.Open(t.Context(), image.Options{Dir: filepath.Join(p.Data, "images"), Stores: stores})
	require.NoError(t, err)
	s := storetest.Store(t, stores, "default")
	batch, tree := s.Begin(t.Context()), image.NewTree()
	c, _, err := batch.Add([]byte("content"))
	require.NoError(t, err)
	tree.Root.Put(&image.Node{Name: "file", Mode: 0o100644, Size: 7, Chunks: []store.Chunk{c}})
	img, _, err := images.Write(t.Context(), tree, image.Config{}, batch, "default", "team/web:v1")
	require.NoError(t, err)
	require.NoError(t, stores.Close())

	in := func(names ...string) string { return filepath.Join(append([]string{p.Data, "store"}, names...)...) }
	require.NoError(t, os.MkdirAll(in("manifests"), 0o700))
	require.NoError(t, os.Rename(in("default", "records", "manifests"), in("manifests", "default")))
	require.NoError(t, os.Rename(in("default", "packs"), in("packs")))
	require.NoError(t, os.Rename(in("default", "blobs"), in("blobs")))
	for _, left := range []string{"default", "WORKSPACES", "VERSION"} {
		require.NoError(t, os.RemoveAll(in(left)))
	}
	write(t, p.Data+"/version", dataVersion1)
	write(t, p.Data+"/cache/packs/packs.idx", "old")
	return p, img.Digest
}

func TestMigration(t *testing.T) {
	p, digest := oldData(t)
	require.NoError(t, prepareData(p))
	for range 2 { // the second has nothing to do
		require.NoError(t, migrateData(t.Context(), p))
		b, err := os.ReadFile(p.Data + "/version")
		require.NoError(t, err)
		require.Equal(t, "brisk data 2\n", string(b))
	}
	require.NoError(t, os.RemoveAll(filepath.Join(p.Data, "images"))) // as on another machine
	origin, err := store.OpenDir(filepath.Join(p.Data, "store"))
	require.NoError(t, err)
	stores := storetest.Workspaces(t, store.WorkspacesOptions{Origin: origin})
	images, err := image.Open(t.Context(), image.Options{Dir: filepath.Join(p.Data, "images"), Stores: stores})
	require.NoError(t, err)
	img, err := images.Get(t.Context(), image.Ref{Workspace: "default", Name: "team/web:v1"})
	require.NoError(t, err)
	require.Equal(t, digest, img.Digest)
	tree, err := img.Tree(t.Context())
	require.NoError(t, err)
	content, err := img.Content(t.Context(), tree.Root.Children["file"])
	require.NoError(t, err)
	require.Equal(t, "content", string(content))
	entries, err := os.ReadDir(p.Data + "/store")
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	require.Equal(t, []string{".tmp", "VERSION", "default"}, names)
}

// TestMigrationGoesOn dies between any two of its steps.
func TestMigrationGoesOn(t *testing.T) {
	p, digest := oldData(t)
	require.NoError(t, os.MkdirAll(p.Data+"/store/default", 0o700))
	require.NoError(t, os.Rename(p.Data+"/store/packs", p.Data+"/store/default/packs"))
	require.NoError(t, migrateData(t.Context(), p))
	for _, path := range []string{"packs", "blobs", "records/manifests/" + digest.String(), "records/names/team%2Fweb%3Av1"} {
		_, err := os.Stat(filepath.Join(p.Data, "store", "default", path))
		require.NoError(t, err)
	}
}

func TestMigrationRefusesWhatItDoesNotKnow(t *testing.T) {
	p, _ := oldData(t)
	write(t, p.Data+"/store/manifests/other/x", "")
	err := migrateData(t.Context(), p)
	require.True(t, fault.Is(err, fault.Machine), err)
	require.NotEmpty(t, fault.HintOf(err))
	_, err = os.Stat(p.Data + "/store/packs")
	require.NoError(t, err, "nothing has been touched")
}

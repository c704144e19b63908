package fidelity

import (
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	ocilayout "github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/stretchr/testify/require"
)

// TestReal compares whole images with their packages' hundreds of directories.
func TestReal(t *testing.T) {
	t.Parallel()
	needRoot(t)
	images := os.Getenv("BRISK_FIDELITY_IMAGES")
	if images == "" {
		t.Skip("BRISK_FIDELITY_IMAGES names no layout with images; scripts/fidelity-images.sh makes one")
	}
	index, err := ocilayout.ImageIndexFromPath(images)
	require.NoError(t, err)
	manifest, err := index.IndexManifest()
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(manifest.Manifests), 10)
	w := newWorld(t) // one for all: what images share has one place
	for _, d := range manifest.Manifests {
		name := d.Annotations["org.opencontainers.image.ref.name"]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := filepath.Join(t.TempDir(), "bundle")
			umoci(t, "unpack", "--image", images+":"+name, at)
			want, err := survey(filepath.Join(at, "rootfs"))
			require.NoError(t, err)
			require.Greater(t, len(want), 3000)
			require.NoError(t, os.RemoveAll(at))
			img := w.load(only(t, images, d))
			w.mounts(t, img, func(t *testing.T, root string) { same(t, want, root) })
		})
	}
}

// only is a layout with one image of another layout, whose blobs it shares.
func only(t *testing.T, images string, d v1.Descriptor) string {
	t.Helper()
	p, err := ocilayout.Write(filepath.Join(t.TempDir(), "layout"), empty.Index)
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(filepath.Join(string(p), "blobs")))
	require.NoError(t, os.Symlink(filepath.Join(images, "blobs"), filepath.Join(string(p), "blobs")))
	require.NoError(t, p.AppendDescriptor(d))
	return string(p)
}

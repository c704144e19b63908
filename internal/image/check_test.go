package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/storetest"
)

func TestCheck(t *testing.T) {
	find := func(w *world, prefix string) string {
		for _, k := range w.keys(prefix) {
			return k
		}
		t.Fatal("no key below ", prefix)
		return ""
	}
	flip := func(at int) func([]byte) []byte {
		return func(b []byte) []byte { b[at] ^= 1; return b }
	}
	for name, tt := range map[string]struct {
		damage func(w *world, img *Image)
		quick  string // what is said of the image without Full; "" = nothing
		full   string
	}{
		"nothing": {func(*world, *Image) {}, "", ""},
		"pack deleted": {func(w *world, _ *Image) {
			require.NoError(t, w.mem.Delete(t.Context(), find(w, "default/packs")))
		}, "is missing", "is missing"},
		"pack cut": {func(w *world, _ *Image) {
			w.mem.Change(find(w, "default/packs"), func(b []byte) []byte { return b[:len(b)-1] })
		}, "1 of 1 chunks have no good copy", "1 of 1 chunks have no good copy"},
		"bit rot in a pack": {func(w *world, _ *Image) {
			w.mem.Change(find(w, "default/packs"), flip(17))
		}, "", "1 of 1 chunks have no good copy"},
		"metadata deleted": {func(w *world, img *Image) {
			d := img.Manifest.Meta.Digest.String()
			require.NoError(t, w.mem.Delete(t.Context(), "default/blobs/"+d[:2]+"/"+d))
		}, "a part of its metadata", "a part of its metadata"},
		"bit rot in the metadata": {func(w *world, img *Image) {
			d := img.Manifest.Meta.Digest.String()
			w.mem.Change("default/blobs/"+d[:2]+"/"+d, flip(20))
		}, "", "its metadata is damaged: "},
		"manifest damaged": {func(w *world, img *Image) {
			w.mem.Change("default/records/manifests/"+img.Digest.String(), flip(30))
		}, "its manifest is damaged: ", "its manifest is damaged: "},
		"name damaged": {func(w *world, img *Image) {
			w.mem.Change("default/records/names/web", flip(3))
			require.NoError(t, os.Remove(filepath.Join(w.dir, "images/default/names/web.json")))
		}, "the name cannot be read", "the name cannot be read"},
		"manifest deleted": {func(w *world, img *Image) {
			require.NoError(t, w.mem.Delete(t.Context(), "default/records/manifests/"+img.Digest.String()))
		}, "its manifest is missing", "its manifest is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			img := w.must("web", file("a", strings.Repeat("content", 100)))
			tt.damage(w, img)
			for _, full := range []bool{false, true} { // in this order: what a full one finds, the next knows
				want := tt.quick
				if full {
					want = tt.full
				}
				w.openStores(w.cache)
				w.open()
				r, err := w.images.Check(t.Context(), CheckOptions{Full: full})
				require.NoError(t, err)
				require.Equal(t, 1, r.Images)
				require.Empty(t, r.Notes)
				if want == "" {
					require.Empty(t, r.Damaged, "full: %v", full)
					continue
				}
				require.Len(t, r.Damaged, 1, "full: %v", full)
				require.Contains(t, r.Damaged[0].Problem, want)
				digest := img.Digest
				if name == "name damaged" {
					digest = store.Digest{}
				}
				require.Equal(t, Damage{DefaultWorkspace, []string{"web"}, digest, r.Damaged[0].Problem}, r.Damaged[0])
			}
			// Importing it again mends whatever it was.
			again := w.must("web", file("a", strings.Repeat("content", 100)))
			require.Equal(t, img.Digest, again.Digest)
			r, err := w.images.Check(t.Context(), CheckOptions{Full: true})
			require.NoError(t, err)
			require.Empty(t, r.Damaged)
		})
	}
}

// What nobody can read of the ledger is named, and removed only on request.
func TestCheckLedger(t *testing.T) {
	w := newWorld(t)
	w.must("web", file("a", "content"))
	stores := storetest.Workspaces(t, store.WorkspacesOptions{Origin: w.origin, Shared: true})
	images, err := Open(t.Context(), Options{Dir: t.TempDir(), Stores: stores})
	require.NoError(t, err)
	require.NoError(t, w.mem.Put(t.Context(), "default/condemned/x", strings.NewReader("junk")))
	for _, repair := range []bool{false, true} {
		r, err := images.Check(t.Context(), CheckOptions{Repair: repair})
		require.NoError(t, err)
		require.Equal(t, []string{"default/condemned/x"}, r.Ledger)
	}
	r, err := images.Check(t.Context(), CheckOptions{})
	require.NoError(t, err)
	require.Equal(t, CheckReport{Images: 1, Packs: 1, Bytes: r.Bytes}, r)
}

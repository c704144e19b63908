package importer

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/fault"
)

// FuzzArchive: whatever a file holds, finding an image in it ends with the image or with
// an error about the file, and never with one of Brisk's own.
func FuzzArchive(f *testing.F) {
	f.Add(makeTar(f, entry{name: "oci-layout", data: `{}`}, entry{name: "index.json", data: `{"manifests":[]}`}, entry{name: "blobs/"}))
	f.Add(makeTar(f, entry{name: "manifest.json", data: `[{"Config":"x.json","Layers":["a"]}]`}, entry{name: "repositories", link: "manifest.json"}))
	f.Add(makeTar(f, entry{name: "etc/passwd", data: "x"}))
	f.Add(sparseTar(1 << 40))
	f.Add([]byte("\x1f\x8b\x08"))
	f.Fuzz(func(t *testing.T, data []byte) {
		known := func(err error) {
			if err != nil {
				require.Contains(t, []fault.Class{fault.Invalid, fault.Corrupt, fault.NotFound}, fault.ClassOf(err), "%v", err)
			}
		}
		r, _, err := plain(bytes.NewReader(data))
		if err != nil {
			known(err)
			return
		}
		defer r.Close()
		is, err := holdsImage(r)
		known(err)
		if err != nil || !is {
			return
		}
		file, err := os.CreateTemp(t.TempDir(), "")
		require.NoError(t, err)
		defer file.Close()
		_, err = file.Write(data)
		require.NoError(t, err)
		a, err := openArchive(file)
		known(err)
		if err != nil {
			return
		}
		_, err = dockerContainer(a, "")
		known(err)
		_, err = archiveLayout(a).container(t.Context(), "")
		known(err)
	})
}

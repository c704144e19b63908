package e2e

import (
	"archive/tar"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// An import holds neither a file nor a layer in memory: 600 MB go through a server that never has
// more than a third as much. bench/images has it with 3 GB, and with 300,000 files.
func TestImportNeedsLittleMemory(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	path := filepath.Join(s.files, "large.tar.gz")
	f, err := os.Create(path)
	require.NoError(t, err)
	z, err := gzip.NewWriterLevel(f, gzip.BestSpeed)
	require.NoError(t, err)
	w := tar.NewWriter(z)
	piece := []byte(strings.Repeat("what is in a large image ", 200)[:4096])
	add := func(name string, number, size int) {
		require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(size)}))
		for at := 0; at < size; at += len(piece) {
			binary.LittleEndian.PutUint64(piece, uint64(number)<<32|uint64(at))
			_, err := w.Write(piece[:min(len(piece), size-at)])
			require.NoError(t, err)
		}
	}
	for i := range 30_000 {
		add(fmt.Sprintf("small/%d/%d", i/300, i), i+1, 700)
	}
	add("large", 0, 600_000_000)
	require.NoError(t, w.Close())
	require.NoError(t, z.Close())
	require.NoError(t, f.Close())

	s.ok(t, "image", "import", path, "--name", "large")
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.serverPID(t)))
	require.NoError(t, err)
	var kib int
	for line := range strings.Lines(string(b)) {
		_, _ = fmt.Sscanf(line, "VmHWM: %d kB", &kib)
	}
	t.Logf("at most %d MB", kib>>10)
	require.Positive(t, kib)
	require.Less(t, kib, 200_000_000>>10)
}

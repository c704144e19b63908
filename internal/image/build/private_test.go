package build

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestWhatIsMountedIsNeverRemoved(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	b := newBench(t)
	outside := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "file"), nil, 0o600))
	dir, remove, err := b.private("x")
	require.NoError(t, err)
	for _, name := range []string{"sys", "sys/in side"} {
		at := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(at, 0o700))
		require.NoError(t, unix.Mount(outside, at, "", unix.MS_BIND, ""))
		t.Cleanup(func() { unix.Unmount(at, unix.MNT_DETACH) })
		require.NoError(t, os.MkdirAll(filepath.Join(outside, "in side"), 0o700))
	}
	remove()
	require.NoDirExists(t, dir)
	require.FileExists(t, filepath.Join(outside, "file"))
	require.DirExists(t, filepath.Join(outside, "in side"))
}

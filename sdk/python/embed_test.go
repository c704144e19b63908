package sdk

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// onDisk lists what belongs to the package in a directory that holds it.
func onDisk(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	require.NoError(t, fs.WalkDir(os.DirFS(dir), "brisk", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.Contains(path, "__pycache__") {
			return err
		}
		b, err := os.ReadFile(filepath.Join(dir, path))
		out[path] = string(b)
		return err
	}))
	b, err := os.ReadFile(filepath.Join(dir, "__main__.py"))
	require.NoError(t, err)
	out["__main__.py"] = string(b)
	return out
}

func TestEverySourceFileIsEmbedded(t *testing.T) {
	embedded := map[string]string{}
	for _, f := range content() {
		embedded[f.path] = string(f.data)
	}
	require.Equal(t, onDisk(t, "."), embedded)
}

func TestExtract(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "sdk")
	require.NoError(t, Extract(dir))
	require.Equal(t, onDisk(t, "."), onDisk(t, dir))
	st, err := os.Stat(filepath.Join(dir, "brisk", "_runner.py"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o644), st.Mode())
	for _, d := range []string{dir, filepath.Join(dir, "brisk", "_vendor", "cloudpickle")} {
		st, err := os.Stat(d)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o755), st.Mode().Perm(), d)
	}

	again, err := os.Stat(dir)
	require.NoError(t, err)
	require.NoError(t, Extract(dir))
	same, err := os.Stat(dir)
	require.NoError(t, err)
	require.True(t, os.SameFile(again, same), "a complete directory stays as it is")
}

func TestExtractMendsWhatIsIncomplete(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sdk")
	require.NoError(t, Extract(dir))
	require.NoError(t, os.Truncate(filepath.Join(dir, "brisk", "_runner.py"), 10))
	require.NoError(t, os.Remove(filepath.Join(dir, "brisk", "py.typed")))
	require.NoError(t, Extract(dir))
	require.Equal(t, onDisk(t, "."), onDisk(t, dir))
	left, err := os.ReadDir(filepath.Dir(dir))
	require.NoError(t, err)
	require.Len(t, left, 1, "nothing temporary is left")
}

func TestDigestIsStable(t *testing.T) {
	require.Equal(t, Digest(), Digest())
	require.False(t, Digest().IsZero())
}

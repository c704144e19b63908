package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A Dockerfile is built by buildah, whose store is the test's own.
func TestDockerfile(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("buildah"); err != nil {
		t.Skip("buildah is not installed")
	}
	storage := t.TempDir()
	conf := filepath.Join(storage, "storage.conf")
	require.NoError(t, os.WriteFile(conf, fmt.Appendf(nil, "[storage]\ndriver = \"vfs\"\ngraphroot = %q\nrunroot = %q\n",
		filepath.Join(storage, "root"), filepath.Join(storage, "run")), 0o600))
	s := newSite(t, "CONTAINERS_STORAGE_CONF="+conf)
	dir := t.TempDir()
	program, err := os.ReadFile(guest(t))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "probe"), program, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM scratch\nARG WHAT=nothing\nENV WHAT=$WHAT\nCOPY probe /probe\nRUN [\"/probe\", \"echo\", \"hello from $WHAT\"]\nENTRYPOINT [\"/probe\"]\nCMD [\"echo\", \"built\"]\n"), 0o600))

	var built imported
	s.ask(t, &built, "image", "build", "-t", "app", "--builder", "buildah", "--build-arg", "WHAT=something", dir)
	require.Equal(t, "app", built.Name)
	require.Equal(t, "built", s.ok(t, "run", "--image", "app", "--block-network"))
	require.Contains(t, s.ok(t, "image", "inspect", "app"), "WHAT=something")

	require.NoError(t, os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM scratch\nCOPY missing /\n"), 0o600))
	r := s.brisk(t, "image", "build", "--builder", "buildah", dir)
	require.Equal(t, 5, r.code, "%s", r)
	require.Contains(t, r.err, "buildah failed to build")
	require.Equal(t, "invalid", s.refused(t, 2, "image", "build", "--builder", "cook", dir).Class)
	require.NoError(t, os.Remove(filepath.Join(dir, "Dockerfile")))
	require.Equal(t, "invalid", s.refused(t, 2, "image", "build", dir).Class)
}

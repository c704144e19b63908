package dockerfile

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"brisk.dev/brisk/internal/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestCommands says what is asked of the programs.
func TestCommands(t *testing.T) {
	t.Setenv("BUILDAH_ISOLATION", "oci")
	fake(t, map[string]string{"docker": `test "$1" = buildx`})
	b := Build{Context: "/c", File: "/f/Dockerfile.x", Args: map[string]string{"B": "2", "A": "x y"}}
	want := map[string]string{
		"buildah": "buildah build --layers --force-rm --iidfile /t/id --file /f/Dockerfile.x --build-arg A=x y --build-arg B=2 /c",
		"docker":  "docker buildx build --load --iidfile /t/id --file /f/Dockerfile.x --build-arg A=x y --build-arg B=2 /c",
		"buildctl": "buildctl build --frontend dockerfile.v0 --local context=/c --local dockerfile=/f --opt filename=Dockerfile.x " +
			"--output type=oci,dest=/t/o --opt build-arg:A=x y --opt build-arg:B=2",
	}
	for _, tool := range tools {
		require.Equal(t, want[tool.Name], strings.Join(tool.commands(b, "/t", "/t/o")[0], " "))
	}
	t.Setenv("DOCKER_BUILDKIT", "0")
	require.Equal(t, []string{"docker", "build", "--force-rm"}, dockerBuild())
	t.Setenv("DOCKER_BUILDKIT", "1")
	fake(t, map[string]string{"docker": "exit 1"})
	require.Equal(t, []string{"docker", "build", "--force-rm"}, dockerBuild(), "there is no buildx")
}

// fake puts programs of these names, shell scripts, into a PATH that has nothing else but sh, cat and mount.
func fake(t *testing.T, programs map[string]string) {
	dir := t.TempDir()
	for _, name := range []string{"sh", "cat", "mount"} {
		path, err := exec.LookPath(name)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(dir, name)))
	}
	for name, script := range programs {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755))
	}
	t.Setenv("PATH", dir)
}

func TestFind(t *testing.T) {
	fake(t, map[string]string{"docker": "", "buildctl": ""})
	for asked, want := range map[string]string{"": "docker", "docker": "docker", "buildctl": "buildctl"} {
		tool, err := Find(asked)
		require.NoError(t, err)
		require.Equal(t, want, tool.Name)
	}
	_, err := Find("buildah")
	require.ErrorContains(t, err, "buildah is not installed")
	require.True(t, fault.Is(err, fault.Machine))
	_, err = Find("cook")
	require.ErrorContains(t, err, `the builder "cook" is not known: want buildah, docker, buildctl`)
	require.True(t, fault.Is(err, fault.Invalid))
	fake(t, map[string]string{"docker": "echo Client:; echo no daemon >&2; exit 1", "buildctl": ""})
	tool, err := Find("")
	require.NoError(t, err)
	require.Equal(t, "buildctl", tool.Name, "docker has no daemon")
	for _, asked := range []string{"docker", ""} {
		fake(t, map[string]string{"docker": "echo Client:; echo no daemon >&2; exit 1", "buildctl": "exit 3"})
		_, err = Find(asked)
		require.ErrorContains(t, err, "docker is installed and does not work: no daemon")
		require.True(t, fault.Is(err, fault.Machine))
	}
	fake(t, nil)
	_, err = Find("")
	require.ErrorContains(t, err, "nothing that builds Dockerfiles is installed: buildah, docker, buildctl")
	require.True(t, fault.Is(err, fault.Machine))
}

func TestWhereTheDockerfileIs(t *testing.T) {
	dir := t.TempDir()
	b := Build{Context: dir}
	require.ErrorContains(t, b.Find(), "there is no "+dir+"/Dockerfile")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "Containerfile"), nil, 0o600))
	require.NoError(t, b.Find())
	require.Equal(t, filepath.Join(dir, "Containerfile"), b.File)
	b = Build{Context: filepath.Join(dir, "Containerfile")}
	require.ErrorContains(t, b.Find(), "is not a directory")
}

func TestWhatTheProgramSays(t *testing.T) {
	fake(t, map[string]string{"docker": `
echo "$1 said" >&2
case $1 in
buildx) exit 1 ;;
build) printf sha256:1 > "$4"; test "$BREAK" = "" ;;
save) printf "%s" "$4" > "$3" ;;
esac`})
	tool, err := Find("")
	require.NoError(t, err)
	dir, log := t.TempDir(), &bytes.Buffer{}
	path, err := tool.Build(t.Context(), Build{Context: dir, File: "/f"}, dir, log)
	require.NoError(t, err)
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "sha256:1", string(content))
	require.Equal(t, "build said\nsave said\n", log.String())

	t.Setenv("BREAK", "yes")
	_, err = tool.Build(t.Context(), Build{Context: dir, File: "/f"}, t.TempDir(), log)
	require.ErrorContains(t, err, "docker failed to build the Dockerfile: exit status 1")
	require.True(t, fault.Is(err, fault.BuildFailed))
}

// started ends what waits for a line of a log.
type started struct{ done context.CancelFunc }

func (s started) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("waiting")) {
		s.done()
	}
	return len(p), nil
}

// A build that is cancelled is over: no process of it is left, and no container.
func TestCancel(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if _, err := exec.LookPath("buildah"); err != nil {
		t.Skip("buildah is not installed")
	}
	storage := t.TempDir()
	conf := filepath.Join(storage, "storage.conf")
	require.NoError(t, os.WriteFile(conf, fmt.Appendf(nil, "[storage]\ndriver = \"vfs\"\ngraphroot = %q\nrunroot = %q\n",
		filepath.Join(storage, "root"), filepath.Join(storage, "run")), 0o600))
	t.Setenv("CONTAINERS_STORAGE_CONF", conf)
	dir := t.TempDir()
	program := filepath.Join(dir, "test")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./testdata/wait")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	b := Build{Context: dir, File: filepath.Join(t.TempDir(), "Dockerfile")}
	require.NoError(t, os.WriteFile(b.File, []byte("FROM scratch\nCOPY test /test\nRUN [\"/test\"]\n"), 0o600))
	tool, err := Find("buildah")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err = tool.Build(ctx, b, t.TempDir(), started{cancel})
	require.ErrorIs(t, err, context.Canceled)
	left, err := exec.CommandContext(t.Context(), "buildah", "containers", "--quiet").Output()
	require.NoError(t, err)
	require.Empty(t, string(left))
}

package e2e

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// builders are the ways to build a Dockerfile. Each gives the environment in which the
// builder has all that it needs, or skips the test; what it keeps is the test's own.
var builders = []struct {
	name, builder string
	env           func(t *testing.T) []string
}{
	{"buildah", "buildah", buildah},
	{"docker", "docker", func(t *testing.T) []string {
		return append(dockerd(t), "DOCKER_CONFIG="+t.TempDir(), "DOCKER_BUILDKIT=0")
	}},
	{"docker with buildx", "docker", func(t *testing.T) []string {
		return append(dockerd(t), "DOCKER_CONFIG="+buildx(t))
	}},
	{"docker with buildx and another builder", "docker", func(t *testing.T) []string {
		env := append(dockerd(t), "DOCKER_CONFIG="+buildx(t))
		at, _ := strings.CutPrefix(buildkitd(t)[0], "BUILDKIT_HOST=")
		create := exec.Command("docker", "buildx", "create", "--driver", "remote", "--use", at)
		create.Env = append(os.Environ(), env...)
		out, err := create.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return env
	}},
	{"buildctl", "buildctl", buildkitd},
}

func buildah(t *testing.T) []string {
	t.Helper()
	needs(t, "buildah")
	storage := t.TempDir()
	conf := filepath.Join(storage, "storage.conf")
	require.NoError(t, os.WriteFile(conf, fmt.Appendf(nil, "[storage]\ndriver = \"vfs\"\ngraphroot = %q\nrunroot = %q\n",
		filepath.Join(storage, "root"), filepath.Join(storage, "run")), 0o600))
	return []string{"CONTAINERS_STORAGE_CONF=" + conf}
}

func dockerd(t *testing.T) []string {
	t.Helper()
	needs(t, "docker", "dockerd", "containerd", "runc")
	dir := shortDir(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config"), []byte("{}"), 0o600)) // not the machine's
	daemon(t, filepath.Join(dir, "sock"), "dockerd", "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--pidfile", filepath.Join(dir, "pid"), "--host", "unix://"+filepath.Join(dir, "sock"), "--cgroup-parent", cgroup(t, dir),
		"--exec-opt", "native.cgroupdriver=cgroupfs", "--iptables=false", "--config-file", filepath.Join(dir, "config"))
	return []string{"DOCKER_HOST=unix://" + filepath.Join(dir, "sock")}
}

func buildx(t *testing.T) string {
	t.Helper()
	needs(t, "docker-buildx")
	plugin, err := exec.LookPath("docker-buildx")
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "cli-plugins"), 0o755))
	require.NoError(t, os.Symlink(plugin, filepath.Join(dir, "cli-plugins", "docker-buildx")))
	return dir
}

func buildkitd(t *testing.T) []string {
	t.Helper()
	needs(t, "buildctl", "buildkitd", "runc")
	dir := shortDir(t)
	config := filepath.Join(dir, "config.toml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, "[worker.oci]\ndefaultCgroupParent = %q\n[worker.containerd]\nenabled = false\n", cgroup(t, dir)), 0o600))
	daemon(t, filepath.Join(dir, "sock"), "buildkitd", "--config", config, "--root", filepath.Join(dir, "root"),
		"--addr", "unix://"+filepath.Join(dir, "sock"), "--oci-worker-net", "host")
	return []string{"BUILDKIT_HOST=unix://" + filepath.Join(dir, "sock")}
}

// needs skips the test if a program is not installed.
func needs(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip(p + " is not installed")
		}
	}
}

// shortDir is a directory whose name leaves room for names of sockets.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "brisk-e2e-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// cgroup names a parent for the cgroups of the daemon in a directory. They go with the test.
func cgroup(t *testing.T, dir string) string {
	t.Helper()
	name := "/" + filepath.Base(dir)
	t.Cleanup(func() {
		for _, top := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
			found, err := filepath.Glob(filepath.Join(top, name))
			require.NoError(t, err)
			for _, root := range found {
				var dirs []string
				require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
					if err == nil && d.IsDir() {
						dirs = append(dirs, path)
					}
					return err
				}))
				for _, dir := range slices.Backward(dirs) {
					eventually(t, "nothing runs in "+dir, func() bool { return os.Remove(dir) == nil }) // the daemon's end takes its processes along
				}
			}
		}
	})
	return name
}

// daemon starts a daemon in namespaces of its own: what it mounts, starts and configures goes with it.
func daemon(t *testing.T, socket string, args ...string) {
	t.Helper()
	cmd := exec.Command("unshare", append([]string{
		"--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
		"sh", "-ec", `for d in /run /opt; do mount -t tmpfs none $d; done; exec "$@"`, "sh", // where they leave things
	}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p := (&site{}).launch(t, cmd, nil)
	eventually(t, args[0]+" answers", func() bool {
		select {
		case <-p.ended:
			require.FailNow(t, "it ended", "%s", p.result())
		default:
		}
		c, err := net.Dial("unix", socket)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// A Dockerfile is built by any builder: the image runs, and one that fails says why and leaves nothing.
func TestDockerfile(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	dir := t.TempDir()
	program, err := os.ReadFile(guest(t))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "probe"), program, 0o755))
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	write("Dockerfile", "FROM scratch\nARG WHAT=nothing\nENV WHAT=$WHAT\nCOPY probe /probe\nRUN [\"/probe\", \"write\", \"/made\", \"by RUN\"]\nENTRYPOINT [\"/probe\"]\nCMD [\"echo\", \"built\"]\n")
	fails := write("fails", "FROM scratch\nCOPY probe /probe\nRUN [\"/probe\", \"nonsense\"]\n")
	missing := write("lacks", "FROM scratch\nCOPY missing /\n")
	waits := write("waits", "FROM scratch\nCOPY probe /probe\nRUN [\"/probe\", \"sleep\", \"1h\"]\n")

	for _, b := range builders {
		t.Run(b.name, func(t *testing.T) {
			own := *s
			own.env = append(slices.Clone(s.env), b.env(t)...)
			build := func(args ...string) []string {
				return append([]string{"image", "build", "--builder", b.builder}, args...)
			}
			name := strings.ReplaceAll(b.name, " ", "-")
			var built imported
			own.ask(t, &built, build("-t", name, "--build-arg", "WHAT=something", dir)...)
			require.Equal(t, name, built.Name)
			require.Equal(t, "built", s.ok(t, "run", "--image", name, "--block-network"))
			require.Equal(t, "by RUN", s.ok(t, "run", "--image", name, "--block-network", "--", "/probe", "read", "/made"))
			require.Contains(t, s.ok(t, "image", "inspect", name), "WHAT=something")
			var again imported
			own.ask(t, &again, build("-t", name, "--build-arg", "WHAT=something", dir)...)
			require.Equal(t, built.Digest, again.Digest)

			r := own.brisk(t, build("-f", fails, dir)...)
			require.Equal(t, 5, r.code, "%s", r)
			require.Contains(t, r.err, `probe does not know "nonsense"`)
			require.Contains(t, r.err, "\nbrisk: "+b.builder+" failed to build the Dockerfile: exit status ")
			r = own.brisk(t, build("-f", missing, dir)...)
			require.Equal(t, 5, r.code, "%s", r)
			require.Contains(t, r.err, "missing")

			cmd := own.command(build("-f", waits, dir)...)
			said, err := os.Create(filepath.Join(t.TempDir(), "said"))
			require.NoError(t, err)
			defer said.Close()
			cmd.Stdout, cmd.Stderr = said, said
			require.NoError(t, cmd.Start())
			eventually(t, "it runs the step", func() bool {
				b, err := os.ReadFile(said.Name())
				require.NoError(t, err)
				return strings.Count(string(b), "sleep") > 0
			})
			require.NoError(t, cmd.Process.Signal(os.Interrupt))
			require.Error(t, cmd.Wait())
			require.Equal(t, 130, cmd.ProcessState.ExitCode())
			if b.builder == "docker" {
				eventually(t, "no container is left", func() bool {
					ps := exec.Command("docker", "ps", "--all", "--quiet")
					ps.Env = append(os.Environ(), own.env...)
					out, err := ps.Output()
					require.NoError(t, err)
					return len(out) == 0
				})
			}
		})
	}

	require.Equal(t, "invalid", s.refused(t, 2, "image", "build", "--builder", "cook", dir).Class)
	require.NoError(t, os.Remove(filepath.Join(dir, "Dockerfile")))
	require.Equal(t, "invalid", s.refused(t, 2, "image", "build", dir).Class)
}

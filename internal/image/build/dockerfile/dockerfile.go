// Package dockerfile builds Dockerfiles through a program that the machine has for
// it: buildah, docker or buildctl.
//
// # What it promises
//
// The result is a container image in a file or directory that the caller names, and
// nothing else but the program's own cache: its layers, without a name, and the base
// images that it fetched. When Build returns, after a failure and a cancellation too,
// no process of it is left.
//
// # What it does not promise
//
// The program runs as whoever asks, outside of any sandbox, and so do the commands of
// the Dockerfile as far as the program lets them. Whoever may build a Dockerfile may do
// what the program may.
//
// # Who may block whom
//
// Build blocks until the program has ended, and no longer than a few seconds after its
// context. Builds run beside each other; the program has locks of its own.
package dockerfile

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// Build is what is to be built.
type Build struct {
	Context string            // directory that COPY copies from
	File    string            // the Dockerfile; it may lie outside of Context
	Args    map[string]string // for ARG
}

// Find completes a build whose File is "" with the Dockerfile, or Containerfile, in
// its Context, and checks that both are there.
func (b *Build) Find() error {
	if st, err := os.Stat(b.Context); err != nil || !st.IsDir() {
		return fault.New(fault.Invalid, "%s is not a directory", b.Context).WithHint("Name the directory that the Dockerfile copies from.")
	}
	candidates := []string{b.File}
	if b.File == "" {
		candidates = []string{filepath.Join(b.Context, "Dockerfile"), filepath.Join(b.Context, "Containerfile")}
	}
	for _, path := range candidates {
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() {
			b.File = path
			return nil
		}
	}
	return fault.New(fault.Invalid, "there is no %s", candidates[0]).WithHint("Name the Dockerfile with -f.")
}

// Tool is a program that builds Dockerfiles. The zero value is none.
type Tool struct {
	Name string
	// works is a command that succeeds if the program has all that it needs, which may be a
	// daemon; nil: it needs nothing.
	works []string
	// commands are the command lines that put the image into out. They may keep
	// files in the directory temp.
	commands func(b Build, temp, out string) [][]string
}

// tools are tried in this order. An image that buildah or docker has built stays in
// the program's store without a name: it is the cache for the next time.
var tools = []Tool{
	{"buildah", nil, func(b Build, temp, out string) [][]string {
		id := filepath.Join(temp, "id")
		build := []string{"buildah", "build", "--layers", "--force-rm", "--iidfile", id, "--file", b.File}
		if !hasRuntime() {
			build = append(build, "--isolation", "chroot")
		}
		for _, arg := range b.args() {
			build = append(build, "--build-arg", arg)
		}
		return [][]string{
			append(build, b.Context),
			{"sh", "-ec", `exec buildah push --quiet "$(cat "$1")" "oci:$2"`, "sh", id, out},
		}
	}},
	{"docker", []string{"docker", "version"}, func(b Build, temp, out string) [][]string {
		id := filepath.Join(temp, "id")
		build := append(dockerBuild(), "--iidfile", id, "--file", b.File)
		for _, arg := range b.args() {
			build = append(build, "--build-arg", arg)
		}
		return [][]string{
			append(build, b.Context),
			{"sh", "-ec", `exec docker save --output "$2" "$(cat "$1")"`, "sh", id, out},
		}
	}},
	{"buildctl", []string{"buildctl", "debug", "workers"}, func(b Build, _, out string) [][]string {
		build := []string{
			"buildctl", "build", "--frontend", "dockerfile.v0", "--local", "context=" + b.Context,
			"--local", "dockerfile=" + filepath.Dir(b.File), "--opt", "filename=" + filepath.Base(b.File), "--output", "type=oci,dest=" + out,
		}
		for _, arg := range b.args() {
			build = append(build, "--opt", "build-arg:"+arg)
		}
		return [][]string{build}
	}},
}

// dockerBuild is docker's way to build. Its plugin buildx may work with a builder that is
// not the daemon, and then has to be told that we want the image there. Without it docker has a builder
// of its own, which knows nothing of that, and keeps the containers of steps that fail.
func dockerBuild() []string {
	if os.Getenv("DOCKER_BUILDKIT") != "0" && answers([]string{"docker", "buildx", "version"}) == nil {
		return []string{"docker", "buildx", "build", "--load"}
	}
	return []string{"docker", "build", "--force-rm"}
}

// hasRuntime reports whether buildah can run commands in containers of their own. If
// not, it runs them in a changed root.
func hasRuntime() bool {
	if os.Getenv("BUILDAH_ISOLATION") != "" {
		return true // somebody has decided
	}
	return slices.ContainsFunc([]string{"crun", "runc"}, installed)
}

func installed(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}

func (b Build) args() (l []string) {
	for _, name := range slices.Sorted(maps.Keys(b.Args)) {
		l = append(l, name+"="+b.Args[name])
	}
	return l
}

// Find gives the tool of that name, or if it is "" the first that is installed and works.
func Find(name string) (Tool, error) {
	var names []string
	var broken error
	for _, t := range tools {
		names = append(names, t.Name)
		if name != "" && name != t.Name || name == "" && !installed(t.Name) {
			continue
		}
		if !installed(t.Name) {
			return Tool{}, fault.New(fault.Machine, "%s is not installed", name).WithHint("Install it, or leave --builder out.")
		}
		err := answers(t.works)
		if err == nil {
			return t, nil
		}
		err = fault.New(fault.Machine, "%s is installed and does not work: %w", t.Name, err).
			WithHint("Start its daemon, or install buildah, which needs none.")
		if broken = cmp.Or(broken, err); name != "" {
			return Tool{}, err
		}
	}
	switch {
	case name != "":
		return Tool{}, fault.New(fault.Invalid, "the builder %q is not known: want %s", name, strings.Join(names, ", "))
	case broken != nil:
		return Tool{}, broken
	}
	return Tool{}, fault.New(fault.Machine, "nothing that builds Dockerfiles is installed: %s", strings.Join(names, ", ")).
		WithHint("On Debian and Ubuntu: apt-get install buildah.")
}

// answers runs a command that should succeed at once. Its error is the last line that it printed.
func answers(command []string) error {
	if command == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
	if ctx.Err() != nil {
		return errors.New("it does not answer")
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if last := lines[len(lines)-1]; err != nil && last != "" {
		return errors.New(last)
	}
	return err
}

// Build makes the image and puts it into a directory that must be there and should be
// empty; image is its path in it, for an importer to read. What the program prints goes
// to log as it comes. Errors: BuildFailed if the program says so.
func (t Tool) Build(ctx context.Context, b Build, dir string, log io.Writer) (image string, err error) {
	image = filepath.Join(dir, "image")
	for _, command := range t.commands(b, dir, image) {
		err := run(ctx, command, log)
		var exit *exec.ExitError
		switch {
		case ctx.Err() != nil:
			return "", fault.Wrap(ctx.Err(), "build", "a Dockerfile")
		case errors.As(err, &exit):
			return "", fault.New(fault.BuildFailed, "%s failed to build the Dockerfile: %v", t.Name, err).WithHint("What it printed above says why.")
		case err != nil:
			return "", fault.Wrap(err, "run", command[0])
		}
	}
	return image, nil
}

// patience is how long a program that is told to end may take to put things in order.
const patience = 5 * time.Second

// run runs a command to its end. With ctx it is told to end, and after that killed with
// all that it started: it has a process group of its own and, where we may make them,
// namespaces for processes and mounts, so that nothing outlives it. Container runtimes look
// for their processes in /proc, which is that of the namespace then.
func run(ctx context.Context, args []string, log io.Writer) error {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		args = append([]string{"sh", "-ec", `mount -t proc proc /proc; exec "$@"`, "sh"}, args...)
		attr.Cloneflags, attr.Unshareflags = unix.CLONE_NEWPID, unix.CLONE_NEWNS
		attr.Pdeathsig = unix.SIGKILL
		runtime.LockOSThread() // whose end is what the signal is for
		defer runtime.UnlockOSThread()
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = attr
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGTERM) }
	cmd.WaitDelay = patience
	return cmd.Run()
}

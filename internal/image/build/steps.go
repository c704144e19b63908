package build

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/image/build/hostconfig"
)

// The scripts of steps. Their lists are arguments, so that nothing in them is
// ever read by a shell; the commands of a run step are shell by definition.
// Without the error mode, apt goes on without the lists that it could not fetch, and
// blames the packages.
const (
	aptScript = `set -e
apt-get update -o APT::Update::Error-Mode=any
apt-get install -y --no-install-recommends -o Dpkg::Use-Pty=0 -- "$@"`

	runScript = `set -e
for c do
	printf '+ %s\n' "$c"
	/bin/sh -e -c "$c"
done`
)

// args are the command of a step.
func (s Instruction) args() []string {
	switch s.Kind {
	case AptInstall:
		return append([]string{"/bin/sh", "-c", aptScript, "apt_install"}, s.Packages...)
	case PipInstall:
		// Compiled modules stay in the image: importing them is what starts are made of.
		args := append([]string{"python3", "-m", "pip", "install", "--no-cache-dir"}, s.Options...)
		if len(s.Packages) > 0 {
			args = append(append(args, "--"), s.Packages...)
		}
		return args
	case Run:
		return append([]string{"/bin/sh", "-c", runScript, "run"}, s.Commands...)
	}
	panic("build: a " + string(s.Kind) + " step has no command")
}

// defaultEnv is what every step has, unless the host or the image say otherwise.
var defaultEnv = []string{
	"PATH=" + defaultPath,
	"HOME=/root",
	"DEBIAN_FRONTEND=noninteractive",
	// By variables and not by options, for pips that are too old to know them ignore those.
	"PIP_BREAK_SYSTEM_PACKAGES=1",
	"PIP_DISABLE_PIP_VERSION_CHECK=1",
	"PIP_NO_INPUT=1",
	"PIP_PROGRESS_BAR=off",
	"PIP_ROOT_USER_ACTION=ignore",
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// mergeEnv joins lists of NAME=VALUE; of equal names the last counts. Sorted by name.
func mergeEnv(lists ...[]string) []string {
	values := map[string]string{}
	for _, l := range lists {
		for _, kv := range l {
			if name, value, ok := strings.Cut(kv, "="); ok {
				values[name] = value
			}
		}
	}
	var out []string
	for _, name := range sortedKeys(values) {
		out = append(out, name+"="+values[name])
	}
	return out
}

// failedLines is how much of a failed step's output its error repeats.
const failedLines = 40

// command runs a step in a sandbox and commits what it changed.
func (b *Builder) command(ctx context.Context, workspace string, parent *image.Image, config image.Config, s Instruction, out *output) (*image.Image, error) {
	host, err := b.host(ctx, workspace)
	if err != nil {
		return nil, err
	}
	defer host.Close()
	if err := b.mirrors(ctx, parent, host); err != nil {
		return nil, err
	}
	step := Step{
		Workspace: workspace, Parent: parent, Args: s.args(),
		Env: mergeEnv(defaultEnv, host.Env, config.Env), Cwd: config.Workdir,
		Output: out, Timeout: b.opts.StepTimeout,
	}
	if step.Cwd == "" {
		step.Cwd = "/"
	}
	for _, bind := range host.Binds {
		step.Binds = append(step.Binds, Bind{Source: bind.Source, Target: bind.Target, ReadOnly: true})
	}
	layer, err := b.opts.Executor.RunStep(ctx, step)
	if err != nil {
		return nil, err
	}
	if layer.Tar != nil {
		defer layer.Tar.Close()
	}
	switch {
	case layer.OOMKilled:
		return nil, failed(exited(layer.ExitCode), out).WithHint("It ran out of memory.")
	case layer.ExitCode == 127:
		return nil, failed(exited(layer.ExitCode), out).WithHint("A command that it needs is not in the image.")
	case layer.ExitCode != 0:
		return nil, failed(exited(layer.ExitCode), out)
	case layer.Tar == nil:
		return nil, errNoLayer
	}
	bound := binds(step.Binds)
	opt := image.LayerOptions{Whiteouts: image.Overlay, Drop: func(p string) bool { return leftOut(p) || bound[p] }}
	img, err := b.extend(ctx, workspace, parent, layer.Tar, opt, config)
	if err == nil {
		err = drained(layer.Tar) // what follows the end of the tar: the sandbox may still be writing
	}
	return img, err
}

// binds are the places that the sandbox may have made to mount something there.
func binds(l []Bind) map[string]bool {
	m := map[string]bool{}
	for _, b := range l {
		m[path.Clean(b.Target)] = true
	}
	return m
}

func exited(code int) string { return fmt.Sprintf("it failed with exit code %d", code) }

// failed says how a step failed, and what it printed last.
func failed(how string, out *output) *fault.Error {
	tail := out.tail(failedLines)
	if tail == "" {
		return fault.New(fault.BuildFailed, "%s and printed nothing", how)
	}
	return fault.New(fault.BuildFailed, "%s; the end of its output:\n%s", how, tail)
}

// host takes a snapshot of the host's network configuration for steps of a workspace.
func (b *Builder) host(ctx context.Context, workspace string) (*hostconfig.Snapshot, error) {
	o := b.machine
	o.Parent, o.Credentials = b.work, workspace == image.DefaultWorkspace
	return hostconfig.Take(ctx, o)
}

// maxSources bounds a sources list of an image that is rewritten, in bytes.
const maxSources = 1 << 20

// mirrors makes apt in an image of Debian's use the host's mirrors: the step sees
// the image's own sources lists, with their URLs in the place of the official ones.
func (b *Builder) mirrors(ctx context.Context, parent *image.Image, host *hostconfig.Snapshot) error {
	if host.Mirrors == hostconfig.Official {
		return nil
	}
	t, err := parent.Tree(ctx)
	if err != nil {
		return err
	}
	files := []string{"/etc/apt/sources.list"}
	if dir, err := t.Follow("/etc/apt/sources.list.d"); err == nil {
		for _, n := range dir.Sorted() {
			if ext := path.Ext(n.Name); ext == ".list" || ext == ".sources" {
				files = append(files, "/etc/apt/sources.list.d/"+n.Name)
			}
		}
	}
	for _, name := range files {
		n, err := t.Lookup(name)
		if missing(err) || err == nil && (!n.IsRegular() || n.Size > maxSources) {
			continue
		}
		if err != nil {
			return err
		}
		content, err := parent.Content(ctx, n)
		if err != nil {
			return err
		}
		if changed, differs := host.Mirrors.Rewrite(content); differs {
			if err := host.Bind(name, changed); err != nil {
				return err
			}
		}
	}
	return nil
}

// add puts an uploaded tar on top of an image. It is read twice: its digest has
// to be right before anything of it counts.
func (b *Builder) add(ctx context.Context, workspace string, parent *image.Image, config image.Config, s Instruction) (*image.Image, error) {
	err := b.readBlob(ctx, workspace, s.Blob, func(r io.Reader) error {
		sum := &checked{ctx, r, sha256.New()}
		if err := drained(sum); err != nil {
			return err
		}
		return sum.is(s.Blob)
	})
	if err != nil {
		return nil, err
	}
	var img *image.Image
	err = b.readBlob(ctx, workspace, s.Blob, func(r io.Reader) (err error) {
		img, err = b.extend(ctx, workspace, parent, r, image.LayerOptions{Whiteouts: image.NoWhiteouts}, config)
		return err
	})
	return img, err
}

func (b *Builder) readBlob(ctx context.Context, workspace, id string, read func(io.Reader) error) error {
	blob, err := b.opts.Blobs(ctx, workspace, id)
	if err != nil {
		return err
	}
	defer blob.Close()
	return fault.Wrap(read(blob), "read", id)
}

// missingDirs is a layer of those directories that a tree does not have.
func missingDirs(ctx context.Context, parent *image.Image, dirs []string) (io.Reader, error) {
	if len(dirs) == 0 {
		return emptyLayer(), nil
	}
	t, err := parent.Tree(ctx)
	if err != nil {
		return nil, err
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, dir := range slices.Compact(slices.Sorted(slices.Values(dirs))) {
		n, err := t.Follow(dir)
		if err == nil && n.IsDir() {
			continue
		}
		if err == nil {
			return nil, fault.New(fault.Invalid, "the working directory %s is a file of another kind in the image", dir)
		}
		if !missing(err) {
			return nil, err
		}
		h := tar.Header{Name: dir + "/", Typeflag: tar.TypeDir, Mode: 0o755, ModTime: time.Unix(0, 0)}
		if err := w.WriteHeader(&h); err != nil {
			return nil, fmt.Errorf("working directory %s: %w", dir, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return &layer, nil
}

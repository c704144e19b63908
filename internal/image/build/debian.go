package build

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/image/build/hostconfig"
	"brisk.dev/brisk/internal/store"
)

// debianPackages are in a Debian base beside what is essential and apt.
var debianPackages = []string{"ca-certificates", "python3", "python3-pip"}

// debianExcludes keeps what nobody reads in a container out of the image, and out
// of what is installed on it later. Copyright notices stay: they have to.
const debianExcludes = `path-exclude=/usr/share/doc/*
path-include=/usr/share/doc/*/copyright
path-exclude=/usr/share/groff/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/lintian/*
path-exclude=/usr/share/linda/*
path-exclude=/usr/share/locale/*
path-include=/usr/share/locale/locale.alias
path-exclude=/usr/share/man/*
`

const (
	debianKeyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
	// bootstrapTimeout bounds the making of a Debian: a minute on a good network.
	bootstrapTimeout = 30 * time.Minute
)

// mountPoints are where a function's instance mounts things (docs/design/architecture.md):
// an image that has them is mounted as it is, without a layer that adds them.
var mountPoints = []string{"/run/brisk", "/opt/brisk/sdk", "/opt/brisk/code"}

func (b *Builder) baseKey(workspace string, rel release) store.Digest {
	return workKey("debian", workspace, rel.suite, debianPackages, debianExcludes, strings.Join(mountPoints, " "))
}

// debian makes an image of a Debian with Python.
func (b *Builder) debian(ctx context.Context, workspace string, rel release, out *output) (*image.Image, error) {
	tool, err := exec.LookPath("mmdebstrap")
	if err != nil {
		return nil, fault.New(fault.Machine, "mmdebstrap is not installed, and it makes the Debian base").
			WithHint("Install it with `apt-get install mmdebstrap debian-archive-keyring`, or use an imported image as the base.")
	}
	if _, err := os.Stat(debianKeyring); err != nil {
		return nil, fault.New(fault.Machine, "Debian's keys (%s) are not installed, and its packages cannot be checked without them", debianKeyring).
			WithHint("Install them with `apt-get install debian-archive-keyring`.")
	}
	host, err := b.host(ctx, workspace)
	if err != nil {
		return nil, err
	}
	defer host.Close()
	dir, remove, err := b.private("debian")
	if err != nil {
		return nil, err
	}
	defer remove()
	ctx, cancel := context.WithTimeout(ctx, bootstrapTimeout)
	defer cancel()

	began := time.Now()
	cmd, err := mmdebstrap(tool, dir, rel, host)
	if err != nil {
		return nil, err
	}
	cmd.Stderr = out
	t := image.NewTree()
	st, err := b.opts.Images.Store(workspace)
	if err != nil {
		return nil, err
	}
	batch := st.Begin(ctx)
	defer batch.Abort() // of no effect after Write
	if err := stream(ctx, cmd, func(r io.Reader) error {
		_, err := t.ApplyTar(ctx, r, batch, image.LayerOptions{Whiteouts: image.NoWhiteouts, Drop: notOfDebian})
		return err
	}); err != nil {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			e := failed(exited(exit.ExitCode()), out)
			if strings.Contains(strings.ToLower(e.Error()), unix.ENOSPC.Error()) { // apt and dpkg work in dir
				e.Class = fault.DiskFull
				return nil, store.DiskError(e, "unpack packages in", b.opts.Dir)
			}
			return nil, e.WithHint("Its packages come from %s.", redact(host.Mirrors.Archive))
		}
		return nil, err
	}
	if err := furnish(ctx, t, image.NewAdder(batch), rel, began); err != nil {
		return nil, err
	}
	config := image.Config{Env: []string{"PATH=" + defaultPath, "LANG=C.UTF-8"}, Cmd: []string{"python3"}}
	img, _, err := b.opts.Images.Write(ctx, t, config, batch, workspace, "")
	return img, err
}

// mmdebstrap is the command that writes a Debian as a tar to its standard output.
// It keeps to dir.
func mmdebstrap(tool, dir string, rel release, host *hostconfig.Snapshot) (*exec.Cmd, error) {
	excludes := filepath.Join(dir, "dpkg.cfg")
	if err := os.WriteFile(excludes, []byte(debianExcludes), 0o644); err != nil {
		return nil, err
	}
	tmp := filepath.Join(dir, "tmp")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return nil, err
	}
	args := []string{
		"--format=tar", "--variant=minbase", "--architectures=amd64",
		"--include=" + strings.Join(debianPackages, ","),
		"--aptopt=" + host.AptConf(), "--dpkgopt=" + excludes,
		rel.suite, "-",
	}
	cmd := exec.Command(tool, append(args, sourceLines(rel, host.Mirrors, "[signed-by="+debianKeyring+"] ")...)...)
	cmd.Dir = tmp
	// Only what it needs: SOURCE_DATE_EPOCH, for one, would make pip's compiled
	// modules check their sources' content at every import.
	cmd.Env = []string{"PATH=" + defaultPath, "HOME=/root", "LC_ALL=C.UTF-8", "TMPDIR=" + tmp}
	for _, kv := range host.Env {
		if name, _, _ := strings.Cut(kv, "="); strings.HasSuffix(strings.ToLower(name), "_proxy") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	return cmd, nil
}

// sourceLines are apt's sources for a release.
func sourceLines(rel release, m hostconfig.Mirrors, options string) []string {
	return []string{
		"deb " + options + m.Archive + " " + rel.suite + " main",
		"deb " + options + m.Archive + " " + rel.suite + "-updates main",
		"deb " + options + m.Security + " " + rel.suite + "-security main",
	}
}

// stream runs a command and reads what it writes. If that does not read because
// the command failed, the command's failure is the error.
//
// The command has a process and a mount namespace of its own. So when stream
// returns, and be it that everything had to be killed with ctx, no process of it
// is left, and no mount: mmdebstrap mounts the machine's /sys and /dev/shm into its
// chroot, and whoever removed that with the mounts in it would remove the machine's files.
func stream(ctx context.Context, cmd *exec.Cmd, read func(io.Reader) error) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fault.Wrap(err, "start", cmd.Path)
	}
	kill := func() { _ = cmd.Process.Kill() } // the first process of its namespace: all others end with it
	stop := context.AfterFunc(ctx, kill)
	defer stop()
	readErr := read(stdout)
	broken := fault.Is(readErr, fault.Invalid)
	if readErr != nil && !broken {
		kill() // nobody needs the rest
	}
	drainErr := drained(stdout) // ends with the last process that has it
	waitErr := cmd.Wait()
	switch {
	case readErr != nil && !broken:
		return readErr
	case waitErr != nil:
		return waitErr
	case readErr != nil:
		return readErr
	}
	return drainErr
}

// notOfDebian reports what mmdebstrap leaves that does not belong into an image.
func notOfDebian(p string) bool {
	if isBelow(p, []string{"/dev", "/proc", "/sys", "/run", "/tmp", "/var/log", "/root/.cache", "/var/cache/ldconfig"}) {
		return true
	}
	switch p {
	case "/var/cache/apt/archives/lock", "/var/lib/apt/lists/lock", "/var/lib/dpkg/lock", "/var/lib/dpkg/lock-frontend",
		"/var/lib/dpkg/triggers/Lock", "/var/cache/debconf/config.dat-old", "/var/cache/debconf/templates.dat-old",
		"/var/lib/dpkg/status-old", "/var/lib/dpkg/diversions-old", "/var/lib/dpkg/statoverride-old", "/var/lib/dpkg/available-old",
		"/etc/passwd-", "/etc/group-", "/etc/shadow-", "/etc/gshadow-":
		return true
	}
	return false
}

// furnish makes of what mmdebstrap wrote an image that does not know where, and as far
// as possible when, it was made.
func furnish(ctx context.Context, t *image.Tree, adder *image.Adder, rel release, began time.Time) error {
	if n, err := t.Follow("/usr/bin/python3"); err != nil || path.Base(n.Name) != "python"+rel.python {
		return fault.New(fault.BuildFailed, "Debian %s came without Python %s", rel.suite, rel.python)
	}
	replace := func(name string, content string) error {
		dir, err := t.Follow(path.Dir(name))
		if err != nil {
			return err
		}
		n := &image.Node{Name: path.Base(name), Mode: unix.S_IFREG | 0o644, MtimeS: rel.date.Unix()}
		if err := adder.Add(ctx, n, strings.NewReader(content), int64(len(content))); err != nil {
			return err
		}
		dir.Put(n)
		return nil
	}
	sources := strings.Join(sourceLines(rel, hostconfig.Official, ""), "\n") + "\n"
	for name, content := range map[string]string{
		"/etc/apt/sources.list":           sources,
		"/etc/resolv.conf":                "", // what runs on the image gets its own; the places have to be there
		"/etc/hostname":                   "",
		"/etc/hosts":                      "127.0.0.1 localhost\n::1 localhost\n",
		"/etc/machine-id":                 "",
		"/etc/dpkg/dpkg.cfg.d/brisk-slim": debianExcludes,
	} {
		if err := replace(name, content); err != nil {
			return err
		}
	}
	for _, name := range mountPoints {
		at := t.Root
		for _, part := range strings.Split(name, "/")[1:] {
			if at.Children[part] == nil {
				d := image.NewDir(part)
				d.MtimeS = rel.date.Unix()
				at.Put(d)
			}
			at = at.Children[part]
		}
	}
	for _, name := range []string{"/etc/apt/apt.conf.d/99mmdebstrap", "/etc/dpkg/dpkg.cfg.d/99mmdebstrap"} {
		if dir, err := t.Follow(path.Dir(name)); err == nil {
			delete(dir.Children, path.Base(name))
		}
	}
	bin, err := t.Follow("/usr/bin")
	if err != nil {
		return err
	}
	if bin.Children["python"] == nil {
		bin.Put(&image.Node{Name: "python", Mode: unix.S_IFLNK | 0o777, Link: "python3", MtimeS: rel.date.Unix()})
	}
	// What was written just now, and not by a package's author, has the release's time.
	return t.Walk(func(_ string, n *image.Node) error {
		if f := n.File(); time.Unix(f.MtimeS, int64(f.MtimeNS)).After(began.Add(-time.Second)) {
			f.MtimeS, f.MtimeNS = rel.date.Unix(), 0
		}
		return nil
	})
}

// redact takes credentials out of a URL.
func redact(url string) string {
	scheme, rest, ok := strings.Cut(url, "://")
	if !ok {
		return url
	}
	host, _, _ := strings.Cut(rest, "/")
	if at := strings.LastIndex(host, "@"); at >= 0 {
		rest = rest[at+1:]
	}
	return scheme + "://" + rest
}

package gvisor

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/sandbox"
	"brisk.dev/brisk/internal/sandbox/cgroup"
)

// Options say where a runtime works. Runsc, Dir and CgroupParent are required.
type Options struct {
	Runsc        string       // the runsc binary, built by `make runsc`
	Dir          string       // state and bundles; one runtime per directory; need not survive a boot
	Scratch      string       // where specs with Upper keep their changes; on a disk. Default: DIR/scratch
	CgroupParent string       // absolute path of the group above all sandboxes' groups, e.g. /brisk/default
	Log          *slog.Logger // nil: nothing is logged
	Debug        string       // directory for runsc's debug logs, one directory per sandbox; "": none
}

// Runtime implements sandbox.Runtime.
type Runtime struct {
	options   Options
	cgroups   *cgroup.Tree
	swapLimit bool // the kernel can limit swap
	version   string
	features  []string

	mu struct {
		sync.Mutex
		live map[string]*Sandbox // created and not yet destroyed
	}
}

var _ sandbox.Runtime = (*Runtime)(nil)

// Deadlines of the steps, when the caller's context has none that is shorter.
const (
	infoTimeout       = 10 * time.Second
	createTimeout     = 30 * time.Second
	startTimeout      = 30 * time.Second
	restoreTimeout    = 2 * time.Minute
	checkpointTimeout = 5 * time.Minute
	signalTimeout     = 10 * time.Second
	destroyTimeout    = 15 * time.Second
)

// New looks at the binary and the machine. It starts nothing and keeps nothing
// running; sandboxes of an earlier runtime in the same directory stay until Sweep.
func New(o Options) (*Runtime, error) {
	if !filepath.IsAbs(o.Dir) || !filepath.IsAbs(o.CgroupParent) || o.CgroupParent == "/" {
		return nil, fault.New(fault.Invalid, "gvisor: directory %q and control group %q must be absolute", o.Dir, o.CgroupParent)
	}
	if o.Scratch == "" {
		o.Scratch = filepath.Join(o.Dir, "scratch")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	r := &Runtime{options: o}
	r.mu.live = map[string]*Sandbox{}
	var err error
	if r.cgroups, err = cgroup.Open(cgroup.Root); err != nil {
		return nil, err
	}
	r.swapLimit = r.canLimitSwap()
	for _, d := range []string{r.stateDir(), r.bundlesDir()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fault.Wrap(err, "prepare", "sandbox directory")
		}
	}
	if err := r.inspect(); err != nil {
		return nil, err
	}
	return r, nil
}

// inspect asks the binary what it is and what it needs of the CPU.
func (r *Runtime) inspect() error {
	ctx, cancel := context.WithTimeout(context.Background(), infoTimeout)
	defer cancel()
	sum, err := fileSum(r.options.Runsc)
	if err != nil {
		return fault.New(fault.Machine, "no gVisor at %s: %w", r.options.Runsc, err).
			WithHint("Build it with `make runsc`, or name another binary.")
	}
	out, err := r.ask(ctx, "--version")
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(out, "\n")
	r.version = strings.TrimPrefix(strings.TrimSpace(first), "runsc version ") + "+" + sum[:12]
	out, err = r.ask(ctx, "cpu-features")
	if err != nil {
		return err
	}
	r.features = strings.FieldsFunc(out, func(c rune) bool { return c == ',' || c == '\n' || c == ' ' })
	sort.Strings(r.features)
	return nil
}

func fileSum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	h := blake3.New()
	if _, err := io.CopyBuffer(struct{ io.Writer }{h}, f, make([]byte, 1<<20)); err != nil {
		return "", err
	}
	const hex = "0123456789abcdef"
	var s strings.Builder
	for _, b := range h.Sum(nil) {
		s.WriteByte(hex[b>>4])
		s.WriteByte(hex[b&15])
	}
	return s.String(), nil
}

// canLimitSwap looks for the kernel's file, which some kernels are built without.
func (r *Runtime) canLimitSwap() bool {
	if !r.cgroups.Unified() {
		return r.cgroups.Group("/").Has("memory", "memory.memsw.limit_in_bytes")
	}
	// The root group of version 2 has no limits: any other tells.
	for _, c := range r.cgroups.Group("/").Children() {
		if r.cgroups.Group(c).Has("memory", "memory.swap.max") {
			return true
		}
	}
	return false
}

// Version implements sandbox.Runtime: what the binary calls itself, and the first
// digits of its digest.
func (r *Runtime) Version() string { return r.version }

// Features implements sandbox.Runtime.
func (r *Runtime) Features() []string { return append([]string(nil), r.features...) }

// Close removes the parent control group, if no sandbox is left in it. It does not
// touch sandboxes.
func (r *Runtime) Close() error {
	r.cgroups.Group(r.options.CgroupParent).RemoveEmpty()
	if up := filepath.Dir(r.options.CgroupParent); up != "/" {
		r.cgroups.Group(up).RemoveEmpty()
	}
	return nil
}

func (r *Runtime) stateDir() string           { return filepath.Join(r.options.Dir, "runsc") }
func (r *Runtime) bundlesDir() string         { return filepath.Join(r.options.Dir, "bundles") }
func (r *Runtime) bundleDir(id string) string { return filepath.Join(r.bundlesDir(), id) }
func (r *Runtime) group(id string) *cgroup.Group {
	return r.cgroups.Group(filepath.Join(r.options.CgroupParent, id))
}

// stateFiles are runsc's own about one sandbox.
func (r *Runtime) stateFiles(id string) []string {
	base := filepath.Join(r.stateDir(), id+"_sandbox:"+id)
	return []string{base + ".state", base + ".lock", r.socket(id)}
}

func (r *Runtime) socket(id string) string {
	return filepath.Join(r.stateDir(), "runsc-"+id+".sock")
}

var validID = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,39}$`)

func validate(s sandbox.Spec) error {
	switch {
	case !validID.MatchString(s.ID):
		return fault.New(fault.Invalid, "%q is no sandbox id: want 1 to 40 of a-z, 0-9 and -", s.ID)
	case len(s.Args) == 0:
		return fault.New(fault.Invalid, "sandbox %s has no command", s.ID)
	case !filepath.IsAbs(s.Rootfs):
		return fault.New(fault.Invalid, "sandbox %s: root %q is not an absolute path", s.ID, s.Rootfs)
	case s.Cwd != "" && !filepath.IsAbs(s.Cwd):
		return fault.New(fault.Invalid, "sandbox %s: working directory %q is not absolute", s.ID, s.Cwd)
	case s.Limits.CPU < 0 || s.Limits.Memory < 0 || s.Limits.Pids < 0:
		return fault.New(fault.Invalid, "sandbox %s: a limit is negative", s.ID)
	}
	for _, m := range s.Mounts {
		if !filepath.IsAbs(m.Source) || !filepath.IsAbs(m.Target) {
			return fault.New(fault.Invalid, "sandbox %s: mount of %q on %q: both must be absolute", s.ID, m.Source, m.Target)
		}
	}
	for _, f := range []*os.File{s.Stdout, s.Stderr} {
		if f == nil {
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return fault.Wrap(err, "look at", "output of sandbox "+s.ID)
		}
		if st.Mode&unix.S_IFMT == unix.S_IFREG {
			return fault.New(fault.Invalid, "sandbox %s: output into a regular file; use a pipe", s.ID)
		}
	}
	return nil
}

// Create implements sandbox.Runtime.
func (r *Runtime) Create(ctx context.Context, s sandbox.Spec) (_ sandbox.Sandbox, err error) {
	if err := validate(s); err != nil {
		return nil, err
	}
	if s.Cwd == "" {
		s.Cwd = "/"
	}
	sb := newSandbox(r, s)
	r.mu.Lock()
	_, busy := r.mu.live[s.ID]
	if !busy {
		r.mu.live[s.ID] = sb
	}
	r.mu.Unlock()
	if busy {
		return nil, fault.New(fault.Exists, "sandbox %s exists", s.ID)
	}
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	if err := sb.create(ctx); err != nil {
		// The caller's context may be what failed: clean up in spite of it.
		if derr := sb.Destroy(context.WithoutCancel(ctx)); derr != nil {
			err = errors.Join(err, derr)
		}
		return nil, err
	}
	return sb, nil
}

// forget takes a destroyed sandbox off the list.
func (r *Runtime) forget(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.mu.live, id)
}

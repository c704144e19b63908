package cgroup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// Root is where Linux distributions mount control groups.
const Root = "/sys/fs/cgroup"

// Tree is the control group filesystem of a machine.
type Tree struct {
	root    string
	unified bool
}

// Open looks at the filesystem mounted at root and finds out whether it is
// version 2 or the directories of version 1 (hybrid counts as 1).
func Open(root string) (*Tree, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(root, &st); err != nil {
		return nil, fault.New(fault.Machine, "no control groups at %s: %w", root, err).
			WithHint("Mount cgroup2 at %s, as every systemd distribution does.", root)
	}
	return At(root, st.Type == unix.CGROUP2_SUPER_MAGIC), nil
}

// At is a tree whose version is known.
func At(root string, unified bool) *Tree { return &Tree{root: root, unified: unified} }

// Unified reports version 2.
func (t *Tree) Unified() bool { return t.unified }

// Group names the group with an absolute path such as /brisk/one/x. It need not exist.
func (t *Tree) Group(path string) *Group {
	return &Group{tree: t, path: filepath.Join("/", path)}
}

// hierarchies lists the mount points: one of version 2, a dozen of version 1.
// Names like "cpu" that are links to "cpu,cpuacct" are left out.
func (t *Tree) hierarchies() []string {
	if t.unified {
		return []string{t.root}
	}
	entries, err := os.ReadDir(t.root)
	if err != nil {
		return nil
	}
	var dirs []string
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, filepath.Join(t.root, e.Name()))
		}
	}
	return dirs
}

// Group is one control group, in all hierarchies.
type Group struct {
	tree *Tree
	path string
}

// Path is the group's path below the mount points.
func (g *Group) Path() string { return g.path }

// dir is the group's directory as the controller's files are concerned.
func (g *Group) dir(controller string) string {
	if g.tree.unified {
		return filepath.Join(g.tree.root, g.path)
	}
	return filepath.Join(g.tree.root, controller, g.path)
}

func (g *Group) dirs() []string {
	h := g.tree.hierarchies()
	for i := range h {
		h[i] = filepath.Join(h[i], g.path)
	}
	return h
}

// Has reports whether the group has a file of a controller.
func (g *Group) Has(controller, name string) bool {
	_, err := os.Stat(filepath.Join(g.dir(controller), name))
	return err == nil
}

// CPUPeriod is the period of CPU quotas in microseconds: the kernel's default.
const CPUPeriod = 100_000

// SetCPU changes how many microseconds of CPU the group may use in each
// CPUPeriod; 0 lifts the limit. A group without the controller is NotFound.
func (g *Group) SetCPU(quota int64) error {
	file, text := "cpu.cfs_quota_us", strconv.FormatInt(quota, 10)
	switch {
	case g.tree.unified && quota == 0:
		file, text = "cpu.max", fmt.Sprintf("max %d", CPUPeriod)
	case g.tree.unified:
		file, text = "cpu.max", fmt.Sprintf("%d %d", quota, CPUPeriod)
	case quota == 0:
		text = "-1"
	}
	err := os.WriteFile(filepath.Join(g.dir("cpu"), file), []byte(text), 0)
	return fault.Wrap(err, "set the CPU quota of", "control group "+g.path)
}

// Exists reports whether any hierarchy has the group.
func (g *Group) Exists() bool {
	for _, d := range g.dirs() {
		if _, err := os.Stat(d); err == nil {
			return true
		}
	}
	return false
}

// Children names the groups below this one, sorted.
func (g *Group) Children() []string {
	set := map[string]bool{}
	for _, d := range g.dirs() {
		entries, err := os.ReadDir(d)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if e.IsDir() {
				set[e.Name()] = true
			}
		}
	}
	names := make([]string, 0, len(set))
	for n := range set {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

// Child is the group of that name below this one.
func (g *Group) Child(name string) *Group { return g.tree.Group(filepath.Join(g.path, name)) }

// Usage is what the counters say. A kernel without a counter gives 0 for it.
type Usage struct {
	CPU       time.Duration
	Memory    int64 // bytes now
	MemoryMax int64 // bytes at most since the group was made
}

// Usage reads the counters; a group that is gone is NotFound.
func (g *Group) Usage() (Usage, error) {
	var u Usage
	if g.tree.unified {
		usec, err := g.keyed("cpu", "cpu.stat", "usage_usec")
		if err != nil {
			return u, err
		}
		u.CPU = time.Duration(usec) * time.Microsecond
		u.Memory, _ = g.number("memory", "memory.current")
		u.MemoryMax, _ = g.number("memory", "memory.peak") // since Linux 5.19
		return u, nil
	}
	ns, err := g.number("cpuacct", "cpuacct.usage")
	if err != nil {
		return u, err
	}
	u.CPU = time.Duration(ns)
	u.Memory, _ = g.number("memory", "memory.usage_in_bytes")
	u.MemoryMax, _ = g.number("memory", "memory.max_usage_in_bytes")
	return u, nil
}

// OOMKills counts the processes that the kernel killed because the group hit its
// memory limit; 0 if it cannot be told.
func (g *Group) OOMKills() int64 {
	file := "memory.oom_control"
	if g.tree.unified {
		file = "memory.events"
	}
	n, err := g.keyed("memory", file, "oom_kill")
	if err != nil {
		return 0
	}
	return n
}

// ForksRefused counts the processes and threads that the limit of pids refused;
// 0 if it cannot be told.
func (g *Group) ForksRefused() int64 {
	n, err := g.keyed("pids", "pids.events", "max")
	if err != nil {
		return 0
	}
	return n
}

// Processes lists the live processes in the group, of any hierarchy.
func (g *Group) Processes() []int {
	set := map[int]bool{}
	for _, d := range g.dirs() {
		b, err := os.ReadFile(filepath.Join(d, "cgroup.procs"))
		if err != nil {
			continue
		}
		for f := range strings.FieldsSeq(string(b)) {
			// 0 is a process of a namespace that we cannot see.
			if pid, err := strconv.Atoi(f); err == nil && pid > 0 {
				set[pid] = true
			}
		}
	}
	pids := make([]int, 0, len(set))
	for p := range set {
		pids = append(pids, p)
	}
	sort.Ints(pids)
	return pids
}

// Kill kills all processes in the group and returns when they have ended, which
// the kernel may take some milliseconds for: their memory goes first. New ones
// that a dying process makes meanwhile are killed as well.
func (g *Group) Kill(ctx context.Context) error {
	for {
		if g.tree.unified {
			// All at once, since Linux 5.14; without it, one by one.
			_ = os.WriteFile(filepath.Join(g.dir(""), "cgroup.kill"), []byte("1"), 0)
		}
		pids := g.Processes()
		if len(pids) == 0 {
			return nil
		}
		n, err := killAll(ctx, pids)
		if err != nil {
			return fault.Wrap(err, "kill processes of", "cgroup "+g.path)
		}
		if n > 0 {
			continue
		}
		// All of them had gone between two looks, and the group shows it late.
		select {
		case <-ctx.Done():
			return fault.Wrap(ctx.Err(), "kill processes of", "cgroup "+g.path)
		case <-time.After(time.Millisecond):
		}
	}
}

// killAll kills processes, waits for their end, and gives how many there were.
func killAll(ctx context.Context, pids []int) (int, error) {
	var fds []unix.PollFd
	defer func() {
		for _, f := range fds {
			_ = unix.Close(int(f.Fd))
		}
	}()
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it is gone already
		}
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
	for _, f := range fds {
		one := []unix.PollFd{f}
		for {
			if err := ctx.Err(); err != nil {
				return 0, err
			}
			// Short, so that a cancelled context is seen.
			n, err := unix.Poll(one, 100)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return 0, err
			}
			if n > 0 {
				break
			}
		}
	}
	return len(fds), nil
}

// Remove removes the group from all hierarchies; it must hold no process and no
// group. The kernel may say busy for a moment after the last process has ended:
// Remove tries again until ctx ends.
func (g *Group) Remove(ctx context.Context) error {
	for _, d := range g.dirs() {
		pause := time.Millisecond
		for {
			err := unix.Rmdir(d)
			if err == nil || errors.Is(err, unix.ENOENT) {
				break
			}
			if !errors.Is(err, unix.EBUSY) {
				return fault.Wrap(err, "remove", "cgroup "+d)
			}
			select {
			case <-ctx.Done():
				return fault.Wrap(ctx.Err(), "remove", "cgroup "+d)
			case <-time.After(pause):
			}
			pause = min(2*pause, 50*time.Millisecond)
		}
	}
	return nil
}

// RemoveEmpty removes the group where nothing is in it, and leaves it where
// something is.
func (g *Group) RemoveEmpty() {
	for _, d := range g.dirs() {
		_ = unix.Rmdir(d)
	}
}

func (g *Group) number(controller, file string) (int64, error) {
	b, err := os.ReadFile(filepath.Join(g.dir(controller), file))
	if err != nil {
		return 0, fault.Wrap(err, "read", file+" of cgroup "+g.path)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0, fault.Wrap(err, "read", file+" of cgroup "+g.path)
	}
	return n, nil
}

// keyed reads a file of lines "key number".
func (g *Group) keyed(controller, file, key string) (int64, error) {
	f, err := os.Open(filepath.Join(g.dir(controller), file))
	if err != nil {
		return 0, fault.Wrap(err, "read", file+" of cgroup "+g.path)
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if k, v, ok := strings.Cut(lines.Text(), " "); ok && k == key {
			n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			return n, fault.Wrap(err, "read", file+" of cgroup "+g.path)
		}
	}
	return 0, fault.New(fault.NotFound, "%s of cgroup %s has no %s", file, g.path, key)
}

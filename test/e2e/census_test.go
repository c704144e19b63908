package e2e

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/stretchr/testify/require"
	"github.com/zeebo/blake3"
)

// runDir is the site's run directory, as docs/design/architecture.md has it.
func (s *site) runDir() string {
	sum := blake3.Sum256([]byte(s.data))
	return filepath.Join("/run/brisk", hex.EncodeToString(sum[:6]))
}

// group is the control group above those of the site's sandboxes.
func (s *site) group() string { return "/brisk/" + filepath.Base(s.runDir()) }

// serverPID is the process that holds the lock of the site's data directory.
func (s *site) serverPID(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(s.data, "lock"))
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	require.NoError(t, err)
	return pid
}

// census is what of one site is on the machine: by kind, the things themselves.
// It only counts what can be told to be the site's, by a path of its run or data
// directory, its control groups or its mount namespace: other sites do not disturb.
type census struct {
	processes []string // of its control groups, its mount namespace, or brisk with its paths in the command line
	mounts    []string // below its directories, in any mount namespace
	cgroups   []string
	sockets   []string // bound below its directories
	netns     []string // named in its run directory
	links     []string // its ends of network interfaces
	tables    []string // of its firewall
	loops     []string // devices on files of its directories
	run       []string // all files of its run directory
	temporary []string // files of its data directory that should not outlive what made them
	open      []string // descriptors of its server
}

// kinds lists the parts under their names.
func (c *census) kinds() map[string][]string {
	return map[string][]string{
		"process": c.processes, "mount": c.mounts, "cgroup": c.cgroups, "socket": c.sockets,
		"network namespace": c.netns,
		"network interface": c.links, "firewall table": c.tables, "loop device": c.loops,
		"file in RUN": c.run, "temporary file": c.temporary, "descriptor": c.open,
	}
}

// all is everything, each with its kind; nothing may be left of a site after `brisk down`.
func (c *census) all() []string {
	var l []string
	for kind, things := range c.kinds() {
		for _, x := range things {
			l = append(l, kind+": "+x)
		}
	}
	slices.Sort(l)
	return l
}

// counts is how many there are of each kind.
func (c *census) counts() map[string]int {
	m := map[string]int{}
	for kind, things := range c.kinds() {
		m[kind] = len(things)
	}
	return m
}

// beside shows those kinds of which there are not as many as in another census.
func (c *census) beside(before *census) string {
	var b strings.Builder
	old := before.kinds()
	for kind, things := range c.kinds() {
		if len(things) != len(old[kind]) {
			fmt.Fprintf(&b, "%s, before:\n  %s\n%s, after:\n  %s\n", kind, strings.Join(old[kind], "\n  "), kind, strings.Join(things, "\n  "))
		}
	}
	return b.String()
}

func (s *site) census(t *testing.T) *census {
	t.Helper()
	c, err := takeCensus(s)
	require.NoError(t, err)
	return c
}

func takeCensus(s *site) (*census, error) {
	run := s.runDir()
	group := s.group()
	c := &census{}
	b, _ := os.ReadFile(filepath.Join(s.data, "lock"))
	server := strings.TrimSpace(string(b))
	ns, _ := os.Readlink(filepath.Join("/proc", server, "ns/mnt"))
	if here, _ := os.Readlink("/proc/self/ns/mnt"); ns == here {
		ns = "" // the pid is somebody else's by now
	}
	if ns != "" {
		c.open = descriptors(filepath.Join("/proc", server, "fd"))
	}
	pids, err := processes()
	if err != nil {
		return nil, err
	}
	namespaces := map[string]bool{}
	for _, pid := range pids {
		own, err := os.Readlink(pid.file("ns/mnt"))
		if err != nil {
			continue // it has ended
		}
		if !namespaces[own] {
			namespaces[own] = true
			for _, at := range pid.mountsBelow(run, s.data) {
				c.mounts = append(c.mounts, own+" "+at)
			}
		}
		if ns != "" && own == ns || pid.inGroup(group) || pid.names(run) || pid.names(s.data) {
			c.processes = append(c.processes, fmt.Sprintf("%d %s", pid, pid.name()))
		}
	}
	c.cgroups = groupsBelow(group)
	if c.sockets, err = socketsBelow(run, s.data); err != nil {
		return nil, err
	}
	c.loops = loopsBelow(run, s.data)
	c.netns = below(filepath.Join(run, "netns"))
	if c.links, c.tables, err = networksOf(filepath.Join(run, "netns")); err != nil {
		return nil, err
	}
	c.run = below(run)
	if isDir(run) {
		c.run = append(c.run, run)
	}
	for _, path := range below(s.data) {
		if temporary.MatchString(strings.TrimPrefix(path, s.data+"/")) {
			c.temporary = append(c.temporary, path)
		}
	}
	return c, nil
}

// temporary are the places of DATA for what is being made.
var temporary = regexp.MustCompile(`(^|/)(tmp-|\.tmp-|\.new-|\.version-)|^scratch/.|^build/work/.|^cache/packs/[^/]+/packing/.|^store/\.tmp/.`)

// pid is a process.
type pid int

func processes() ([]pid, error) {
	entries, err := os.ReadDir("/proc")
	var l []pid
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			l = append(l, pid(n))
		}
	}
	return l, err
}

func (p pid) file(name string) string { return filepath.Join("/proc", strconv.Itoa(int(p)), name) }

func (p pid) name() string {
	b, _ := os.ReadFile(p.file("comm"))
	return strings.TrimSpace(string(b))
}

// names reports whether a brisk process has text in its command line. Only of
// those may it be read: it waits for page faults of the process, and one of a
// sandbox may wait for a server that is dead.
func (p pid) names(text string) bool {
	if exe, err := os.Readlink(p.file("exe")); err != nil || exe != briskBin {
		return false
	}
	b, _ := os.ReadFile(p.file("cmdline"))
	return strings.Contains(string(b), text)
}

// inGroup reports whether the process is in a control group at or below path.
func (p pid) inGroup(path string) bool {
	b, _ := os.ReadFile(p.file("cgroup"))
	for line := range strings.SplitSeq(string(b), "\n") {
		f := strings.SplitN(line, ":", 3)
		if len(f) == 3 && (f[2] == path || strings.HasPrefix(f[2], path+"/")) {
			return true
		}
	}
	return false
}

// mountsBelow lists mount points strictly below directories, in the process's namespace.
func (p pid) mountsBelow(dirs ...string) (points []string) {
	f, err := os.Open(p.file("mountinfo"))
	if err != nil {
		return nil
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 {
			for _, dir := range dirs {
				if strings.HasPrefix(fields[4], dir+"/") {
					points = append(points, fields[4])
				}
			}
		}
	}
	return points
}

// groupsBelow lists the directories of a control group and of those below it, in
// all hierarchies.
func groupsBelow(group string) (dirs []string) {
	const root = "/sys/fs/cgroup"
	tops := []string{root}
	if !isFile(root + "/cgroup.controllers") { // version 1: one hierarchy each
		tops, _ = filepath.Glob(root + "/*")
	}
	for _, top := range tops {
		if st, err := os.Lstat(top); err != nil || !st.IsDir() || !isDir(top+group) {
			continue
		}
		dirs = append(dirs, top+group)
		for _, path := range below(top + group) {
			if isDir(path) {
				dirs = append(dirs, path)
			}
		}
	}
	return dirs
}

func socketsBelow(dirs ...string) (paths []string, err error) {
	b, err := os.ReadFile("/proc/net/unix")
	for line := range strings.SplitSeq(string(b), "\n") {
		if f := strings.Fields(line); len(f) == 8 {
			for _, dir := range dirs {
				if strings.HasPrefix(f[7], dir+"/") {
					paths = append(paths, f[7])
				}
			}
		}
	}
	return paths, err
}

// networksOf lists what package network makes outside of its directory, by the
// name that it derives from that.
func networksOf(dir string) (links, tables []string, err error) {
	sum := sha256.Sum256([]byte(dir))
	name := hex.EncodeToString(sum[:2])
	all, err := net.Interfaces()
	if err != nil {
		return nil, nil, err
	}
	for _, i := range all {
		if strings.HasPrefix(i.Name, "brisk"+name+"-") {
			links = append(links, i.Name)
		}
	}
	c, err := nftables.New()
	if err != nil {
		return nil, nil, err
	}
	known, err := c.ListTables()
	for _, t := range known {
		if t.Name == "brisk_"+name {
			tables = append(tables, t.Name)
		}
	}
	return links, tables, err
}

func descriptors(dir string) (l []string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err == nil {
			l = append(l, to)
		}
	}
	return l
}

func loopsBelow(dirs ...string) (devices []string) {
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range files {
		b, _ := os.ReadFile(file)
		for _, dir := range dirs {
			if strings.HasPrefix(string(b), dir+"/") {
				devices = append(devices, strings.Split(file, "/")[3]+" "+strings.TrimSpace(string(b)))
			}
		}
	}
	return devices
}

// below lists all files strictly below dir, as far as they are there when their turn comes.
func below(dir string) (paths []string) {
	_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && path != dir {
			paths = append(paths, path)
		}
		return nil
	})
	return paths
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

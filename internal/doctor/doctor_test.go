package doctor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"brisk.dev/brisk/internal/fault"
)

// healthy is a machine on which all is well; a case breaks one thing.
func healthy(t *testing.T) *machine {
	m := &machine{
		at:   t.TempDir(),
		arch: "amd64",
		command: func(_ context.Context, name string, _ ...string) (string, error) {
			switch name {
			case "/opt/runsc":
				return "runsc version brisk-1\nspec: 1.2.1", nil
			case "python3":
				return "3.11.2", nil
			case "modprobe":
				return "", errors.New("no such module")
			}
			return "", errors.New("unexpected command " + name)
		},
		lookPath:   func(name string) (string, error) { return "/usr/bin/" + name, nil },
		free:       func(string) (int64, error) { return 50 * gib, nil },
		isTmpfs:    func(string) bool { return false },
		network:    func() error { return nil },
		nat:        func() error { return nil },
		dropChains: func() ([]string, error) { return nil, nil },
	}
	for name, content := range map[string]string{
		"proc/self/status":                  "Name:\tbrisk\nCapEff:\t000001ffffffffff\n",
		"proc/self/mounts":                  "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n",
		"proc/self/ns/user":                 "",
		"proc/sys/kernel/osrelease":         "6.12.9-amd64\n",
		"proc/sys/user/max_user_namespaces": "95000\n",
		"proc/filesystems":                  "nodev\ttmpfs\nnodev\tfuse\n\terofs\n",
		"proc/meminfo":                      "MemTotal:       8046484 kB\nMemFree:  1 kB\n",
		"proc/net/route":                    "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\neth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n",
		"sys/fs/cgroup/cgroup.controllers":  "cpuset cpu io memory pids\n",
		"dev/fuse":                          "",
		"dev/loop-control":                  "",
		"dev/kvm":                           "",
		"usr/share/keyrings/debian-archive-keyring.gpg": "",
		"var/lib/.keep": "",
		"run/.keep":     "",
	} {
		m.write(t, name, content)
	}
	return m
}

func (m *machine) write(t *testing.T, name, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(m.path(name)), 0o755))
	require.NoError(t, os.WriteFile(m.path(name), []byte(content), 0o644))
}

func (m *machine) remove(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, os.RemoveAll(m.path(name)))
}

var options = Options{DataDir: "/var/lib/brisk", RunDir: "/run/brisk/default", Runsc: "/opt/runsc"}

func TestHealthyMachine(t *testing.T) {
	results := healthy(t).check(context.Background(), options)
	for _, r := range results {
		assert.Equal(t, OK, r.Status, "%s: %s", r.Name, r.Detail)
		assert.Empty(t, r.Fix, r.Name)
		assert.NotEmpty(t, r.Detail, r.Name)
	}
	assert.Len(t, results, 20)
	assert.NoError(t, Err(results))
}

func TestEachLack(t *testing.T) {
	says := func(version string) func(context.Context, string, ...string) (string, error) {
		return func(context.Context, string, ...string) (string, error) { return version, nil }
	}
	refused := func() error { return errors.New("operation not permitted") }
	for _, c := range []struct {
		name   string
		broken func(t *testing.T, m *machine, o *Options)
		result string
		status Status
		detail string // part of it
	}{
		{"user", func(_ *testing.T, m *machine, _ *Options) { m.uid = 1000 }, "root", Fail, "running as user 1000"},
		{"container", func(t *testing.T, m *machine, _ *Options) {
			m.write(t, "proc/self/status", "CapEff:\t00000000a80425fb\n")
		}, "root", Fail, "without CAP_SYS_ADMIN"},
		{"arm", func(_ *testing.T, m *machine, _ *Options) { m.arch = "arm64" }, "architecture", Fail, "arm64"},
		{"kernel 5.10", osrelease("5.10.0-28-amd64"), "kernel", Fail, "5.10.0-28-amd64 is too old"},
		{"kernel 4.19", osrelease("4.19"), "kernel", Fail, "4.19 is too old"},
		{"kernel 5.15", osrelease("5.15.0-91-generic"), "kernel", Fail, "5.15.0-91-generic is too old"},
		{"kernel 6.1", osrelease("6.1.0-18-amd64"), "kernel", Warn, "before 6.9 an instance is replaced"},
		{"kernel 6.8", osrelease("6.8.0-41-generic"), "kernel", Warn, "before 6.9 an instance is replaced"},
		{"kernel 6.9", osrelease("6.9.1"), "kernel", Warn, "6.9.1: before 6.12 images are mounted through loop devices"},
		{"kernel without a number", osrelease("custom"), "kernel", Fail, "custom is too old"},
		{"no EROFS", filesystems("nodev\tfuse\n"), "EROFS", Fail, "no such filesystem"},
		{"no FUSE", filesystems("\terofs\n"), "FUSE", Fail, "no such filesystem"},
		{"only fuseblk", filesystems("\terofs\n\tfuseblk\n"), "FUSE", Fail, "no such filesystem"},
		{"no /dev/fuse", without("dev/fuse"), "FUSE", Fail, "/dev/fuse"},
		{"no loop devices, and needed", func(t *testing.T, m *machine, o *Options) {
			osrelease("6.1.0-18-amd64")(t, m, o)
			m.remove(t, "dev/loop-control")
		}, "loop devices", Fail, "/dev/loop-control"},
		{"no loop devices, not needed", without("dev/loop-control"), "loop devices", OK, "not needed"},
		{"no pids controller", func(t *testing.T, m *machine, _ *Options) {
			m.write(t, "sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
		}, "cgroups", Fail, "no controller for pids"},
		{"no cgroups", func(t *testing.T, m *machine, _ *Options) { m.write(t, "proc/self/mounts", "") }, "cgroups", Fail, "no controller for memory, cpu, pids"},
		{"hybrid", func(t *testing.T, m *machine, _ *Options) {
			m.write(t, "proc/self/mounts", "cgroup /c/cpu cgroup rw,cpu,cpuacct 0 0\ncgroup /c/memory cgroup rw,memory 0 0\ncgroup /c/pids cgroup rw,pids 0 0\ncgroup2 /c/unified cgroup2 rw 0 0\n")
			m.write(t, "c/cpu/tasks", "")
			m.write(t, "c/memory/tasks", "")
			m.write(t, "c/pids/tasks", "")
		}, "cgroups", OK, "version 1"},
		{"a controller without its directory", func(t *testing.T, m *machine, _ *Options) {
			m.write(t, "proc/self/mounts", "cgroup /c/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup cgroup2 ro 0 0\n")
		}, "cgroups", Fail, "the hierarchy of cpu is read-only"},
		{"user namespaces off", func(t *testing.T, m *machine, _ *Options) {
			m.write(t, "proc/sys/user/max_user_namespaces", "0\n")
		}, "user namespaces", Fail, "is 0"},
		{"no user namespaces", without("proc/self/ns/user"), "user namespaces", Fail, "the kernel has none"},
		{"no network namespaces", func(_ *testing.T, m *machine, _ *Options) { m.network = refused }, "network namespaces", Fail, "operation not permitted"},
		{"no nf_tables", func(_ *testing.T, m *machine, _ *Options) { m.nat = refused }, "nf_tables", Fail, "operation not permitted"},
		{"another firewall", func(_ *testing.T, m *machine, _ *Options) {
			m.dropChains = func() ([]string, error) { return []string{"filter FORWARD"}, nil }
		}, "forwarding", OK, "chain filter FORWARD"},
		{"no uplink", func(t *testing.T, m *machine, _ *Options) {
			m.write(t, "proc/net/route", "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\neth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n")
		}, "uplink", Warn, "no IPv4 default route"},
		{"no runsc", func(_ *testing.T, _ *machine, o *Options) { o.Runsc = "" }, "runsc", Fail, "not found"},
		{"runsc that does not run", func(_ *testing.T, _ *machine, o *Options) { o.Runsc = "/opt/other" }, "runsc", Fail, "unexpected command /opt/other"},
		{"runsc that is something else", func(_ *testing.T, m *machine, _ *Options) { m.command = says("runc version 1.1") }, "runsc", Fail, `"runc version 1.1"`},
		{"no KVM", without("dev/kvm"), "KVM", OK, "not here"},
		{"python 3.8", func(_ *testing.T, m *machine, _ *Options) { m.command = says("3.8.10") }, "python3", Fail, "3.8.10 is too old"},
		{"python 3.10", func(_ *testing.T, m *machine, _ *Options) { m.command = says("3.10.12") }, "python3", OK, "3.10.12"},
		{"no python", func(_ *testing.T, m *machine, _ *Options) {
			m.command = func(context.Context, string, ...string) (string, error) {
				return "", errors.New("executable file not found in $PATH")
			}
		}, "python3", Fail, "not found in $PATH"},
		{"no mmdebstrap", func(_ *testing.T, m *machine, _ *Options) {
			m.lookPath = func(string) (string, error) { return "", errors.New("none") }
		}, "mmdebstrap", Warn, "not installed"},
		{"no keys of Debian", without(debianKeys), "mmdebstrap", Warn, "Debian's keys"},
		{"256 MiB of memory", meminfo("262144"), "memory", Fail, "256 MiB"},
		{"1 GiB of memory", meminfo("1048576"), "memory", Warn, "1.0 GiB"},
		{"full disk", freeBytes(300 * mib), "data directory", Fail, "/var/lib/brisk: 300 MiB free"},
		{"small disk", freeBytes(9 * gib), "data directory", Warn, "/var/lib/brisk: 9.0 GiB free"},
		{"exactly enough disk", freeBytes(10 * gib), "data directory", OK, "10.0 GiB free"},
		{"data in memory", func(_ *testing.T, m *machine, _ *Options) { m.isTmpfs = func(string) bool { return true } }, "data directory", Warn, "is in memory"},
		{"a disk that does not answer", func(_ *testing.T, m *machine, _ *Options) {
			m.free = func(string) (int64, error) { return 0, errors.New("input/output error") }
		}, "data directory", Fail, "input/output error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, o := healthy(t), options
			c.broken(t, m, &o)
			r := find(t, m.check(context.Background(), o), c.result)
			assert.Equal(t, c.status, r.Status, r.Detail)
			assert.Contains(t, r.Detail, c.detail)
			assert.NotContains(t, r.Detail, "\n")
			if c.status == OK {
				assert.Empty(t, r.Fix)
			} else {
				assert.True(t, strings.HasSuffix(r.Fix, "."), "a fix is a sentence: %q", r.Fix)
			}
		})
	}
}

func osrelease(s string) func(*testing.T, *machine, *Options) {
	return func(t *testing.T, m *machine, _ *Options) { m.write(t, "proc/sys/kernel/osrelease", s+"\n") }
}

func filesystems(s string) func(*testing.T, *machine, *Options) {
	return func(t *testing.T, m *machine, _ *Options) { m.write(t, "proc/filesystems", s) }
}

func without(name string) func(*testing.T, *machine, *Options) {
	return func(t *testing.T, m *machine, _ *Options) { m.remove(t, name) }
}

func meminfo(kib string) func(*testing.T, *machine, *Options) {
	return func(t *testing.T, m *machine, _ *Options) { m.write(t, "proc/meminfo", "MemTotal: "+kib+" kB\n") }
}

func freeBytes(n int64) func(*testing.T, *machine, *Options) {
	return func(_ *testing.T, m *machine, _ *Options) { m.free = func(string) (int64, error) { return n, nil } }
}

func find(t *testing.T, results []Result, name string) Result {
	t.Helper()
	for _, r := range results {
		if r.Name == name {
			return r
		}
	}
	require.Failf(t, "no such result", "%s", name)
	return Result{}
}

func TestModuleIsLoadedWhenItIsThere(t *testing.T) {
	m := healthy(t)
	m.write(t, "proc/filesystems", "nodev\tfuse\n")
	var asked []string
	m.command = func(_ context.Context, name string, args ...string) (string, error) {
		asked = append([]string{name}, args...)
		m.write(t, "proc/filesystems", "nodev\tfuse\n\terofs\n")
		return "", nil
	}
	assert.Equal(t, OK, m.erofs(context.Background(), options).Status)
	assert.Equal(t, []string{"modprobe", "-q", "erofs"}, asked)
}

func TestErrNamesFailuresOnly(t *testing.T) {
	err := Err([]Result{
		{Name: "kernel", Status: Warn, Detail: "6.1", Fix: "Nothing."},
		{Name: "EROFS", Status: Fail, Detail: "no module", Fix: "Boot another kernel."},
		{Name: "runsc", Status: Fail, Detail: "not found", Fix: "make runsc."},
	})
	assert.EqualError(t, err, "this machine lacks: EROFS (no module), runsc (not found)")
	assert.Equal(t, fault.Machine, fault.ClassOf(err))
	assert.Equal(t, "Boot another kernel.", fault.HintOf(err))
}

func TestCheckStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	assert.Empty(t, healthy(t).check(ctx, options))
}

// This machine runs the tests of Brisk, so all that Brisk rests on must be here;
// and the looking leaves no goroutine and no namespace behind.
func TestThisMachine(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	defer goleak.VerifyNone(t)
	before := namespace(t)
	dir := t.TempDir()
	for _, r := range Check(context.Background(), Options{DataDir: dir, RunDir: dir, Runsc: ""}) {
		if r.Name == "runsc" {
			assert.Equal(t, Fail, r.Status)
			continue
		}
		assert.NotEqual(t, Fail, r.Status, "%s: %s", r.Name, r.Detail)
	}
	assert.Equal(t, before, namespace(t))
	for range 10 { // whichever thread it is started from
		runtime.LockOSThread()
		assert.NoError(t, tryNetwork())
		runtime.UnlockOSThread()
	}
	assert.Equal(t, before, namespace(t))
}

// namespace is the network namespace that the process counts as being in.
func namespace(t *testing.T) string {
	t.Helper()
	ns, err := os.Readlink("/proc/self/ns/net")
	require.NoError(t, err)
	return ns
}

func TestStore(t *testing.T) {
	m := healthy(t)
	o := options
	o.Store = Store{Place: "s3://team", Try: func(context.Context) error { return nil }}
	assert.Equal(t, ok("store", "s3://team"), m.store(context.Background(), o))
	o.Store.Try = func(context.Context) error {
		return fault.New(fault.Unavailable, "connection refused").WithHint("Is it up?")
	}
	assert.Equal(t, fail("store", "Is it up?", "connection refused"), m.store(context.Background(), o))
	o.Store = Store{Err: errors.New("no URL")}
	r := m.store(context.Background(), o)
	assert.Equal(t, []any{Fail, "no URL"}, []any{r.Status, r.Detail})
	assert.NotEmpty(t, r.Fix)
}

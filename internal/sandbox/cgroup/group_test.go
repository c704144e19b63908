package cgroup

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"syscall"
	"testing"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// fake builds a tree of plain files.
func fake(t *testing.T, unified bool, files map[string]string) *Tree {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return At(root, unified)
}

var (
	v1 = map[string]string{
		"cpuacct/b/x/cpuacct.usage":            "1500000000\n",
		"cpuacct/b/x/cgroup.procs":             "7\n",
		"memory/b/x/memory.usage_in_bytes":     "1048576\n",
		"memory/b/x/memory.max_usage_in_bytes": "2097152\n",
		"memory/b/x/memory.oom_control":        "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
		"memory/b/x/cgroup.procs":              "7\n8\n0\n",
		"pids/b/x/pids.events":                 "max 5\n",
		"pids/b/y/pids.events":                 "max 0\n",
		"systemd/b/z/cgroup.procs":             "",
		"unified/other/cgroup.procs":           "",
	}
	v2 = map[string]string{
		"b/x/cpu.stat":       "usage_usec 1500000\nuser_usec 1\nsystem_usec 2\n",
		"b/x/memory.current": "1048576\n",
		"b/x/memory.peak":    "2097152\n",
		"b/x/memory.events":  "low 0\nhigh 0\nmax 9\noom 4\noom_kill 3\noom_group_kill 1\n",
		"b/x/memory.max":     "max\n",
		"b/x/cgroup.procs":   "7\n8\n",
		"b/x/pids.events":    "max 5\n",
		"b/y/cgroup.procs":   "",
		"b/z/cgroup.procs":   "",
	}
)

func TestReading(t *testing.T) {
	for name, c := range map[string]struct {
		unified bool
		files   map[string]string
	}{"version 1": {false, v1}, "version 2": {true, v2}} {
		t.Run(name, func(t *testing.T) {
			tree := fake(t, c.unified, c.files)
			g := tree.Group("/b").Child("x")
			if g.Path() != "/b/x" {
				t.Errorf("path: %s", g.Path())
			}
			u, err := g.Usage()
			if want := (Usage{1500 * time.Millisecond, 1 << 20, 2 << 20}); err != nil || u != want {
				t.Errorf("usage: got %+v, %v, want %+v", u, err, want)
			}
			if n := g.OOMKills(); n != 3 {
				t.Errorf("OOM kills: got %d, want 3", n)
			}
			if n := g.ForksRefused(); n != 5 {
				t.Errorf("refused forks: got %d, want 5", n)
			}
			if l := g.Processes(); !reflect.DeepEqual(l, []int{7, 8}) {
				t.Errorf("processes: got %v", l)
			}
			if l := tree.Group("/b").Children(); !reflect.DeepEqual(l, []string{"x", "y", "z"}) {
				t.Errorf("children: got %v", l)
			}
			if !g.Exists() || tree.Group("/none").Exists() {
				t.Error("which groups exist is wrong")
			}
			if g.Has("memory", "memory.none") {
				t.Error("a file that is not there")
			}
			none := tree.Group("/none")
			if _, err := none.Usage(); !fault.Is(err, fault.NotFound) {
				t.Errorf("usage of no group: got %v", err)
			}
			if none.OOMKills() != 0 || none.ForksRefused() != 0 || len(none.Processes()) != 0 || len(none.Children()) != 0 {
				t.Error("no group has something")
			}
			if err := none.Kill(context.Background()); err != nil {
				t.Errorf("kill of no group: %v", err)
			}
			if err := none.Remove(context.Background()); err != nil {
				t.Errorf("removal of no group: %v", err)
			}
		})
	}
}

func TestGarbageInACounterIsAnError(t *testing.T) {
	tree := fake(t, true, map[string]string{"x/cpu.stat": "usage_usec many\n"})
	if _, err := tree.Group("x").Usage(); err == nil {
		t.Error("no error")
	}
	tree = fake(t, true, map[string]string{"x/cpu.stat": "user_usec 1\n"})
	if _, err := tree.Group("x").Usage(); !fault.Is(err, fault.NotFound) {
		t.Errorf("got %v, want not found", err)
	}
	if _, err := Open("/does/not/exist"); !fault.Is(err, fault.Machine) {
		t.Errorf("no tree: got %v", err)
	}
}

// TestKillAndRemove works on a real group with real processes, one of which makes
// new ones as fast as it can.
func TestKillAndRemove(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	tree, err := Open(Root)
	if err != nil {
		t.Fatal(err)
	}
	g := tree.Group("/brisk-test-cgroup-" + strconv.Itoa(os.Getpid()))
	dirs := g.dirs()
	if !tree.Unified() {
		dirs = []string{g.dir("pids"), g.dir("memory")}
	}
	for _, d := range dirs {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script := `echo $$ > ` + dirs[0] + `/cgroup.procs; while :; do sleep 100 & sleep 0.01; done`
	cmd := exec.Command("sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for len(g.Processes()) < 3 {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	done, stop := context.WithCancel(ctx)
	stop()
	if err := g.Kill(done); !fault.Is(err, fault.Cancelled) && err != nil {
		t.Errorf("kill with a cancelled context: got %v", err)
	}
	if err := g.Kill(ctx); err != nil {
		t.Errorf("kill: %v", err)
	}
	_ = cmd.Wait()
	if l := g.Processes(); len(l) != 0 {
		t.Errorf("left alive: %v", l)
	}
	if err := g.Remove(ctx); err != nil {
		t.Errorf("remove: %v", err)
	}
	if g.Exists() {
		t.Error("the group is still there")
	}
}

func TestSetCPU(t *testing.T) {
	for _, c := range []struct {
		unified bool
		file    string
		quota   int64
		want    string
	}{
		{false, "cpu/brisk/a/cpu.cfs_quota_us", 50_000, "50000"},
		{false, "cpu/brisk/a/cpu.cfs_quota_us", 0, "-1"},
		{true, "brisk/a/cpu.max", 50_000, "50000 100000"},
		{true, "brisk/a/cpu.max", 0, "max 100000"},
	} {
		root := t.TempDir()
		path := filepath.Join(root, c.file)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := At(root, c.unified).Group("/brisk/a").SetCPU(c.quota); err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(path); string(got) != c.want {
			t.Errorf("%s with quota %d: %q, want %q", c.file, c.quota, got, c.want)
		}
	}
}

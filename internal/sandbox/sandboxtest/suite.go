package sandboxtest

import (
	"os"
	"testing"

	"brisk.dev/brisk/internal/sandbox"
)

// Config says how to make the runtime under test.
type Config struct {
	// Open opens the runtime on a directory and a parent control group. It is called again
	// on the same ones, for the successor of a runtime whose process was killed.
	Open func(dir, group string) (sandbox.Runtime, error)
	// Owner is the command line of a process that calls Own and never returns.
	Owner []string
	// Snapshots says whether the kind has checkpoints.
	Snapshots bool
}

// Run runs the suite.
func Run(t *testing.T, c Config) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	root := BuildRoot(t)
	s := &suite{config: c, root: root}
	for _, test := range []struct {
		name string
		f    func(*suite, *Fixture)
	}{
		{"Lifecycle", (*suite).lifecycle},
		{"ExitCodes", (*suite).exitCodes},
		{"Process", (*suite).process},
		{"Filesystem", (*suite).filesystem},
		{"Mounts", (*suite).mounts},
		{"Invalid", (*suite).invalid},
		{"DestroyAnyTime", (*suite).destroyAnyTime},
		{"Memory", (*suite).memory},
		{"CPU", (*suite).cpu},
		{"Pids", (*suite).pids},
		{"Upper", (*suite).upper},
		{"Sweep", (*suite).sweep},
	} {
		s.run(t, test.name, test.f)
	}
	if !c.Snapshots {
		return
	}
	for _, test := range []struct {
		name string
		f    func(*suite, *Fixture)
	}{
		{"CheckpointRestore", (*suite).checkpointRestore},
		{"ManyRestores", (*suite).manyRestores},
		{"RestoredAndGone", (*suite).restoredAndGone},
		{"BrokenCheckpoints", (*suite).brokenCheckpoints},
		{"CheckpointFails", (*suite).checkpointFails},
	} {
		s.run(t, test.name, test.f)
	}
}

type suite struct {
	config Config
	root   string
}

// run gives a test a runtime of its own, and looks for leaks afterwards.
func (s *suite) run(t *testing.T, name string, f func(*suite, *Fixture)) {
	t.Run(name, func(t *testing.T) {
		dir, err := os.MkdirTemp("", "rt")
		if err != nil {
			t.Fatal(err)
		}
		group := "/brisk-test/" + NewID()
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		rt, err := s.config.Open(dir, group)
		if err != nil {
			t.Fatal(err)
		}
		// Cleanups run last in, first out: this one after the test's own.
		t.Cleanup(func() {
			for _, l := range Traces(t, dir, group) {
				t.Errorf("left behind: %s", l)
			}
			if c, ok := rt.(interface{ Close() error }); ok {
				if err := c.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			}
		})
		f(s, &Fixture{T: t, RT: rt, Root: s.root, Dir: dir, Group: group})
	})
}

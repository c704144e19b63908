package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// An orderly end in the middle of everything: whoever waits hears about it, and
// nothing is left.
func TestShutdownInTheMiddle(t *testing.T) {
	t.Parallel()
	ends := map[string]func(t *testing.T, s *site, up *process){
		"brisk down": func(t *testing.T, s *site, _ *process) { s.ok(t, "down") },
		"Ctrl-C":     func(t *testing.T, _ *site, up *process) { up.signal(t, syscall.SIGINT) },
		"SIGTERM":    func(t *testing.T, _ *site, up *process) { up.signal(t, syscall.SIGTERM) },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			file := s.write(t, "victims.py", victims)
			slow := s.builds(t, "slow", `.run_commands("echo mark > /mark", "sleep 1000")`)
			up := s.begin(t, "up")
			s.answering(t)

			call := s.begin(t, "run", file+"::wait")
			call.waitLine(t, "in the call")
			container := s.begin(t, "run", "--image", s.debian(t), "--", "sh", "-c", "echo here; exec sleep 1000")
			container.waitLine(t, "here")
			build := s.begin(t, "run", slow+"::f")
			eventually(t, "the step runs", func() bool { return s.censusHas(t, "/mark") })
			imports := s.longImport(t)
			end(t, s, up)

			r := up.wait(t)
			require.Equal(t, 0, r.code, "%s", r)
			require.Empty(t, s.census(t).all())
			for _, p := range []*process{call, container, imports} {
				r := p.wait(t)
				require.Equal(t, 7, r.code, "%s", r)
				require.Contains(t, r.err, "the server is shutting down")
			}
			r = build.wait(t)
			require.Contains(t, []int{4, 7}, r.code, "%s", r)

			c := s.lastCall(t, "victims")
			require.Equal(t, "failed", c.State)
			require.Equal(t, "unavailable", c.Error.Class)
			s.usable(t, file)
		})
	}
}

// Commands that need a server and find none start one, and share it.
func TestManyClientsStartOneServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	file := s.write(t, "victims.py", victims)
	var all []*process
	for i := range 8 {
		if i%2 == 0 {
			all = append(all, s.begin(t, "run", file+"::wait", "--seconds", "0"))
		} else {
			all = append(all, s.begin(t, "run", "--image", s.debian(t), "--", "echo", fmt.Sprint(i)))
		}
	}
	for i, p := range all {
		r := p.wait(t)
		require.Equal(t, 0, r.code, "%s", r)
		if i%2 == 1 {
			require.Equal(t, fmt.Sprintln(i), r.out)
		}
	}
	b, err := os.ReadFile(filepath.Join(s.data, "log", "server.log"))
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(b), `"msg":"ready"`))
	s.usable(t, file)
}

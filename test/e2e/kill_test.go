package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"errors"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// victims.py: functions to be killed in the middle.
const victims = `
import os, sys, time
import brisk

app = brisk.App("victims")

@app.function(block_network=True)
def wait(seconds: float = 1000.0):
    print("in the call", flush=True)
    time.sleep(seconds)
    return "waited"

@app.function(block_network=True, enable_memory_snapshot=False)
def suicide(signal: int):
    print("last words", flush=True)
    os.kill(os.getpid(), signal)
    time.sleep(1000)

@app.function(block_network=True, enable_memory_snapshot=False)
def leave(code: int):
    print("goodbye", flush=True)
    os._exit(code)
`

// killServer kills the server, and returns when it has ended.
func (s *site) killServer(t *testing.T) {
	t.Helper()
	kill(t, s.serverPID(t))
}

// kill kills a process and returns when it has ended.
func kill(t *testing.T, process int) {
	t.Helper()
	require.NoError(t, syscall.Kill(process, syscall.SIGKILL))
	eventually(t, "the killed process ends", func() bool {
		b, err := os.ReadFile(pid(process).file("stat"))
		return err != nil || strings.Contains(string(b), ") Z ")
	})
}

// part finds the process of a sandbox that runsc calls by a name: boot (the
// sentry) or gofer.
func (s *site) part(t *testing.T, instance, name string) int {
	t.Helper()
	all, err := processes()
	require.NoError(t, err)
	for _, p := range all {
		if !p.inGroup(s.group() + "/" + instance) {
			continue
		}
		b, _ := os.ReadFile(p.file("cmdline"))
		if slices.Contains(strings.Split(string(b), "\x00"), name) {
			return int(p)
		}
	}
	require.FailNow(t, "the sandbox has no such process", name)
	return 0
}

// usable makes sure that the site does everything again.
func (s *site) usable(t *testing.T, file string) {
	t.Helper()
	require.Equal(t, "in the call\n'waited'\n", s.ok(t, "run", file+"::wait", "--seconds", "0"))
	require.Equal(t, "well\n", s.in(t, "echo", "well").out)
	eventually(t, "no temporary file of what is over is left", func() bool { return len(s.census(t).dead()) == 0 })
}

// dead are the temporary files that belong to nothing that lives: what a server
// does in the background comes and goes, and holds a lock on its files.
func (c *census) dead() (l []string) {
	for _, path := range c.temporary {
		if !strings.Contains(path, "/snapshots/tmp-") && !locked(path) {
			l = append(l, path)
		}
	}
	return l
}

// locked reports whether a process holds a file that it writes, or has just removed it.
func locked(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

func TestKillOfTheServer(t *testing.T) {
	t.Parallel()
	t.Run("idle", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		file := s.write(t, "victims.py", victims)
		s.usable(t, file)
		old := s.instances(t, "victims", "idle")
		require.Len(t, old, 1)
		s.killServer(t)
		require.Equal(t, "unavailable", s.refused(t, 7, "ps").Class)
		s.usable(t, file)
		for _, i := range s.instances(t, "victims", "") {
			require.NotEqual(t, old[0].ID, i.ID)
		}
		require.Empty(t, groupsBelow(s.group()+"/"+old[0].ID), "the old instance is swept")
	})

	t.Run("in a call", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		file := s.write(t, "victims.py", victims)
		p := s.begin(t, "run", file+"::wait")
		p.waitLine(t, "in the call")
		s.killServer(t)
		r := p.wait(t)
		require.Equal(t, 7, r.code, "%s", r)
		require.Contains(t, r.err, "brisk: the Brisk server closed the connection before its answer was complete\n")
		c := s.lastCall(t, "victims") // of the next server
		require.Equal(t, "failed", c.State)
		require.Equal(t, &complaint{"interrupted", "the server ended while the call was under way", ""}, c.Error)
		require.Contains(t, s.ok(t, "calls", "show", c.ID), "interrupted")
		require.Equal(t, "in the call\n", s.ok(t, "logs", c.ID), "what it had printed is kept")
		s.usable(t, file)
	})

	t.Run("in an import", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		s.ok(t, "image", "ls")
		p := s.longImport(t)
		s.killServer(t)
		r := p.wait(t)
		require.Equal(t, result{line: r.line, code: 70, err: "brisk: read the server's answer: unexpected EOF\nThe server may have died: its log is in the data directory, in log/.\n"}, r)
		s.fails(t, 3, "image", "inspect", "big")
		eventually(t, "no temporary file of what is over is left", func() bool { return len(s.census(t).dead()) == 0 })
		var again imported
		small := s.write(t, "small.tar", string(archive(t, file("a", "1"))))
		s.ask(t, &again, "image", "import", small, "--name", "big")
		require.Equal(t, 1, again.NewChunks)
		require.Equal(t, "well\n", s.in(t, "echo", "well").out)
	})

	t.Run("in a build step", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		slow := s.builds(t, "slow", `.run_commands("echo mark > /mark", "sleep 1000")`)
		p := s.begin(t, "run", slow+"::f")
		eventually(t, "the step runs", func() bool { return len(groupsBelow(s.group())) > 1 && s.censusHas(t, "/mark") })
		s.killServer(t)
		r := p.wait(t)
		require.Equal(t, 7, r.code, "%s", r)
		file := s.write(t, "victims.py", victims)
		s.usable(t, file)
		built := s.builds(t, "quick", `.run_commands("echo mark > /mark")`)
		require.Equal(t, "'mark\\n'\n", s.ok(t, "run", built+"::f", "--command", "cat /mark"))
	})

	t.Run("in a snapshot", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		file := s.write(t, "victims.py", victims)
		p := s.begin(t, "run", file+"::wait", "--seconds", "0")
		eventually(t, "a snapshot is being made", func() bool {
			found, _ := filepath.Glob(filepath.Join(s.data, "snapshots", "tmp-*"))
			return len(found) > 0
		})
		s.killServer(t)
		p.wait(t)
		s.ok(t, "image", "ls")
		eventually(t, "no temporary file of what is over is left", func() bool { return len(s.census(t).dead()) == 0 })
		s.usable(t, file)
		s.snapshotOf(t)
		s.usable(t, file)
	})

	t.Run("and no other comes", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		file := s.write(t, "victims.py", victims)
		s.usable(t, file)
		s.killServer(t)
		require.NotEmpty(t, s.census(t).all())
		s.ok(t, "down")
		require.Empty(t, s.census(t).all(), "`brisk down` sweeps by itself")
		s.usable(t, file)
	})

	t.Run("over and over", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		file := s.write(t, "victims.py", victims)
		for range 4 {
			s.usable(t, file)
			s.killServer(t)
		}
	})
}

// longImport begins an import under the name "big" that takes many seconds, and
// returns when a part of it is packed: a packed tar of 30 MiB of random bytes and
// 12 GiB of zeros.
func (s *site) longImport(t *testing.T) *process {
	t.Helper()
	const piece, pieces = 64 << 20, 192
	random := make([]byte, 30<<20)
	_, _ = rand.Read(random)
	var head bytes.Buffer
	w := tar.NewWriter(&head)
	require.NoError(t, w.WriteHeader(&tar.Header{Name: "random", Typeflag: tar.TypeReg, Size: int64(len(random))}))
	_, err := w.Write(random)
	require.NoError(t, err)
	require.NoError(t, w.WriteHeader(&tar.Header{Name: "zeros", Typeflag: tar.TypeReg, Size: piece * pieces}))

	// Members of a gzip file follow one another: the zeros are packed once.
	member := func(content []byte) []byte {
		var b bytes.Buffer
		z, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
		require.NoError(t, err)
		_, err = z.Write(content)
		require.NoError(t, err)
		require.NoError(t, z.Close())
		return b.Bytes()
	}
	all := append(member(head.Bytes()), bytes.Repeat(member(make([]byte, piece)), pieces)...)
	path := s.write(t, "big.tar.gz", string(append(all, member(make([]byte, 1024))...)))

	p := s.begin(t, "image", "import", path, "--name", "big")
	eventually(t, "a pack is being written", func() bool {
		found, _ := filepath.Glob(filepath.Join(s.data, "cache", "packs", "default", "packing", "*", "*"))
		return len(found) > 0
	})
	return p
}

// packs counts those of the origin.
func (s *site) packs() int {
	found, _ := filepath.Glob(filepath.Join(s.data, "store", "default", "packs", "*", "*"))
	return len(found)
}

// censusHas reports whether a temporary file ends with a name.
func (s *site) censusHas(t *testing.T, name string) bool {
	for _, path := range s.census(t).temporary {
		if strings.HasSuffix(path, name) {
			return true
		}
	}
	return false
}

// The holder keeps the mounts while the server is dead; without it the server
// makes another.
func TestKillOfTheHolder(t *testing.T) {
	t.Parallel()
	s := newSite(t, "BRISK_COMPAT=") // older kernels have none
	file := s.write(t, "victims.py", victims)
	s.usable(t, file)
	holder := func() int {
		all, err := processes()
		require.NoError(t, err)
		for _, p := range all {
			if p.names("holder") && p.names(s.runDir()) {
				return int(p)
			}
		}
		return 0
	}
	first := holder()
	require.NotZero(t, first)
	kill(t, first)
	s.usable(t, file)
	eventually(t, "there is another holder", func() bool { h := holder(); return h != 0 && h != first })
	s.killServer(t)
	s.usable(t, file)

	// Both at once.
	second := holder()
	s.killServer(t)
	kill(t, second)
	s.usable(t, file)
}

func TestKillOfPartsOfASandbox(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	file := s.write(t, "victims.py", victims)

	t.Run("the sentry in a call", func(t *testing.T) {
		p := s.begin(t, "run", file+"::wait")
		p.waitLine(t, "in the call")
		busy := s.instances(t, "victims", "busy")
		require.Len(t, busy, 1)
		kill(t, s.part(t, busy[0].ID, "boot"))
		r := p.wait(t)
		require.Equal(t, 70, r.code, "%s", r)
		require.Contains(t, r.err, "brisk: the call was cut short: the kernel of sandbox "+busy[0].ID+" died")
		require.Equal(t, "interrupted", s.lastCall(t, "victims").Error.Class)
		s.usable(t, file)
	})
	t.Run("the sentry of an idle instance", func(t *testing.T) {
		s.usable(t, file)
		idle := s.instances(t, "victims", "idle")
		require.NotEmpty(t, idle)
		kill(t, s.part(t, idle[0].ID, "boot"))
		s.usable(t, file)
	})
	t.Run("the sentry of a created sandbox", func(t *testing.T) {
		s.ready(t, "victims")
		for _, i := range s.instances(t, "victims", "") { // so that the next call needs it
			if i.State == "idle" {
				kill(t, s.part(t, i.ID, "boot"))
			}
		}
		kill(t, s.part(t, s.instances(t, "victims", "created")[0].ID, "boot"))
		s.usable(t, file)
		c := s.lastCall(t, "victims")
		require.Equal(t, "restored-fresh", c.Start, "the snapshot is not to blame")
		require.Contains(t, c.step(t, "created sandbox").Note, "could not be used: ")
	})
	t.Run("the gofer in a call", func(t *testing.T) {
		p := s.begin(t, "run", file+"::wait", "--seconds", "1")
		p.waitLine(t, "in the call")
		busy := s.instances(t, "victims", "busy")
		require.Len(t, busy, 1)
		kill(t, s.part(t, busy[0].ID, "gofer"))
		r := p.wait(t)
		t.Logf("a call whose gofer was killed: %s", r)
		s.usable(t, file)
	})
}

func TestKillOfTheUsersPython(t *testing.T) {
	t.Parallel()
	s := shared(t)
	file := s.write(t, "ends.py", strings.Replace(victims, `"victims"`, `"ends"`, 1))
	for name, tt := range map[string]struct {
		args    []string
		out     string
		message string
	}{
		"SIGKILL":   {[]string{"::suicide", "--signal", "9"}, "last words\n", "the process was ended by signal 9"},
		"SIGSEGV":   {[]string{"::suicide", "--signal", "11"}, "last words\n", "the process was ended by signal 11"},
		"exit of 0": {[]string{"::leave", "--code", "0"}, "goodbye\n", "the process exited with code 0"},
		"exit of 7": {[]string{"::leave", "--code", "7"}, "goodbye\n", "the process exited with code 7"},
	} {
		t.Run(name, func(t *testing.T) {
			r := s.brisk(t, append([]string{"run", file + tt.args[0]}, tt.args[1:]...)...)
			require.Equal(t, result{line: r.line, code: 1, out: tt.out, err: "brisk: " + tt.message + "\n"}, r)
			c := s.lastCall(t, "ends")
			require.Equal(t, &complaint{"user_code", tt.message, ""}, c.Error)
			require.Equal(t, tt.out, s.ok(t, "logs", c.ID))
		})
	}
}

func TestKillOfTheClient(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	file := s.write(t, "victims.py", victims)
	for name, sig := range map[string]syscall.Signal{"SIGKILL": syscall.SIGKILL, "SIGINT": syscall.SIGINT, "SIGTERM": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			p := s.begin(t, "run", file+"::wait")
			p.waitLine(t, "in the call")
			p.signal(t, sig)
			r := p.wait(t)
			if sig == syscall.SIGINT {
				require.Equal(t, 130, r.code, "%s", r)
			}
			eventually(t, "the call is cancelled and its instance gone", func() bool {
				return s.lastCall(t, "victims").State == "failed" && len(s.instances(t, "victims", "busy")) == 0
			})
			c := s.lastCall(t, "victims")
			require.Equal(t, "cancelled", c.Error.Class)
			eventually(t, "the instance is destroyed", func() bool { return len(groupsBelow(s.group()+"/"+c.Instance)) == 0 })
		})
	}
	s.usable(t, file)

	t.Run("in an import", func(t *testing.T) {
		before := s.packs()
		p := s.longImport(t)
		p.signal(t, syscall.SIGKILL)
		p.wait(t)
		eventually(t, "what it had begun is gone", func() bool { return len(s.census(t).temporary) == 0 })
		s.fails(t, 3, "image", "inspect", "big")
		require.Equal(t, before, s.packs())
	})
}

// SIGKILL of the server at moments that nobody chose, over calls that start cold,
// are restored, and end with their instances; the seed is printed.
func TestKillOfTheServerAtAnyMoment(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			seed := uint64(time.Now().UnixNano())
			if v := os.Getenv("E2E_SEED"); v != "" {
				seed, _ = strconv.ParseUint(v, 10, 64)
			}
			rounds := 5
			if v := os.Getenv("E2E_ROUNDS"); v != "" {
				rounds, _ = strconv.Atoi(v)
			}
			t.Logf("E2E_SEED=%d E2E_ROUNDS=%d", seed, rounds)
			random := mathrand.New(mathrand.NewPCG(seed, 0))
			s := newSite(t, mode.env...)
			file := s.write(t, "victims.py", strings.ReplaceAll(victims, "(block_network=True)", "(scaledown_window=0.1)"))
			for round := range rounds {
				s.ok(t, "image", "ls")
				p := s.begin(t, "run", file+"::wait", "--seconds", "0")
				q := s.begin(t, "run", "--image", s.debian(t), "--", "sh", "-c", "find / -xdev -type f | head -2000 | xargs cat > /dev/null 2>&1")
				time.Sleep(time.Duration(random.IntN(900)) * time.Millisecond)
				s.killServer(t)
				a, b := p.wait(t), q.wait(t)
				require.Contains(t, []int{0, 7, 70}, a.code, "round %d: %s", round, a)
				require.Contains(t, []int{0, 7, 70, 123}, b.code, "round %d: %s", round, b)
				if random.IntN(3) == 0 {
					s.ok(t, "down")
					require.Empty(t, s.census(t).all(), "round %d", round)
				}
			}
			s.usable(t, file)
			for _, c := range s.calls(t, "victims") {
				if c.State != "succeeded" {
					require.Equal(t, "interrupted", c.Error.Class, "%+v", c)
				}
			}
		})
	}
}

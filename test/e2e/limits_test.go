package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMemoryLimitBinds(t *testing.T) {
	t.Parallel()
	s := shared(t)
	image := s.debian(t)
	eat := "import sys; b = bytearray(int(sys.argv[1]) << 20); print('ate', len(b) >> 20)"

	r := s.brisk(t, "run", "--image", image, "--block-network", "--memory", "300", "--", "python3", "-c", eat, "100")
	require.Equal(t, result{line: r.line, out: "ate 100\n"}, r)
	r = s.brisk(t, "run", "--image", image, "--block-network", "--memory", "300", "--", "python3", "-c", eat, "600")
	require.Equal(t, result{line: r.line, code: 137, err: "brisk: the container was killed: it needed more than its 300 MiB of memory\n"}, r)

	file := s.write(t, "memory.py", `
import brisk
app = brisk.App("memory")

@app.function(block_network=True, memory=300, enable_memory_snapshot=False)
def eat(mib: int):
    return len(bytearray(mib << 20)) >> 20
`)
	require.Equal(t, "100\n", s.ok(t, "run", file+"::eat", "--mib", "100"))
	stderr := s.fails(t, 1, "run", file+"::eat", "--mib", "600")
	require.Equal(t, "brisk: killed: it used more than its memory of 300 MiB\nGive it more with memory=MIB.\n", stderr)
	c := s.lastCall(t, "memory")
	require.Equal(t, "failed", c.State)
	require.Equal(t, &complaint{"exhausted", "killed: it used more than its memory of 300 MiB", "Give it more with memory=MIB."}, c.Error)
	require.Equal(t, "100\n", s.ok(t, "run", file+"::eat", "--mib", "100"), "in a new instance")

	// Files in the overlay and in /tmp count as memory, too.
	for _, path := range []string{"/file", "/tmp/file"} {
		r = s.brisk(t, "run", "--image", image, "--block-network", "--memory", "300", "--", "dd", "if=/dev/zero", "of="+path, "bs=1M", "count=1000")
		require.Equal(t, 137, r.code, "%s", r)
	}
}

func TestPidsLimitBinds(t *testing.T) {
	t.Parallel()
	s := shared(t)
	image := s.debian(t)
	// A fork bomb that stops where forking fails, and says how far it got.
	bomb := `
import os, signal, sys
n = 0
try:
    while n < 5000:
        if os.fork() == 0:
            signal.pause()
        n += 1
except OSError as e:
    print(e.strerror)
print(n)
sys.stdout.flush()
os.killpg(0, signal.SIGKILL)`
	r := s.brisk(t, "run", "--image", image, "--block-network", "--pids", "40", "--", "python3", "-c", bomb)
	lines := strings.Fields(r.out)
	require.NotEmpty(t, lines, "%s", r)
	n, err := strconv.Atoi(lines[len(lines)-1])
	require.NoError(t, err, "%s", r)
	require.Contains(t, r.out, "Resource temporarily unavailable\n")
	require.Less(t, n, 40)
	require.Greater(t, n, 20)

	// One that does not stop is stopped with its container, and the machine is well.
	p := s.begin(t, "run", "--image", image, "--block-network", "--pids", "100", "--timeout", "3", "--", "sh", "-c", "echo begins; f() { f | f & }; f; wait; sleep 1000")
	p.waitLine(t, "begins")
	require.NotEqual(t, 0, p.wait(t).code)
	require.Equal(t, "well\n", s.in(t, "echo", "well").out)
}

// A quota that binds shows in the control group's counters: the container was held
// back, and did not get more than its share meanwhile.
func TestCPULimitBinds(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.begin(t, "run", "--image", s.debian(t), "--block-network", "--cpu", "0.25", "--", "python3", "-c", "print('spinning', flush=True)\nwhile True: pass")
	p.waitLine(t, "spinning")
	var all []instance
	s.ask(t, &all, "ps")
	require.Len(t, all, 1)

	throttled := func() (n int) {
		for _, dir := range groupsBelow(s.group() + "/" + all[0].ID) {
			b, _ := os.ReadFile(filepath.Join(dir, "cpu.stat"))
			for line := range strings.SplitSeq(string(b), "\n") {
				if v, ok := strings.CutPrefix(line, "nr_throttled "); ok {
					n, _ = strconv.Atoi(v)
				}
			}
		}
		return n
	}
	used := func() (d time.Duration) {
		for _, dir := range groupsBelow(s.group() + "/" + all[0].ID) {
			if b, err := os.ReadFile(filepath.Join(dir, "cpuacct.usage")); err == nil {
				n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
				d = time.Duration(n)
			}
			b, _ := os.ReadFile(filepath.Join(dir, "cpu.stat"))
			for line := range strings.SplitSeq(string(b), "\n") {
				if v, ok := strings.CutPrefix(line, "usage_usec "); ok {
					n, _ := strconv.Atoi(v)
					d = time.Duration(n) * time.Microsecond
				}
			}
		}
		return d
	}
	eventually(t, "it is held back", func() bool { return throttled() > 2 })
	begin, at, n := used(), time.Now(), throttled()
	eventually(t, "it is held back some more", func() bool { return throttled() > n+10 })
	share := float64(used()-begin) / float64(time.Since(at))
	require.Greater(t, share, 0.01)
	require.Less(t, share, 0.35) // periods begin and end at other times than we look

	e := s.refused(t, 2, "run", "--image", s.debian(t), "--cpu", "-1", "--", "true")
	require.Equal(t, complaint{"invalid", "cpu=-1: want 0.05 to 1024 cores", ""}, e)
}

func TestUserOption(t *testing.T) {
	t.Parallel()
	s := shared(t)
	file := s.write(t, "user.py", `
import brisk, os
app = brisk.App("user")

@app.function(block_network=True, user="nobody", scaledown_window=0.2)
def who():
    try:
        open("/etc/passwd", "a")
    except PermissionError:
        pass
    else:
        raise AssertionError("/etc/passwd can be written")
    with open("/tmp/mine", "w") as f:
        f.write("x")
    return os.getuid(), os.getgid(), os.stat("/tmp/mine").st_uid
`)
	require.Equal(t, "(65534, 65534, 65534)\n", s.ok(t, "run", file+"::who"))
	s.ready(t, "user")
	s.cooled(t, "user")
	require.Equal(t, "(65534, 65534, 65534)\n", s.ok(t, "run", file+"::who"))
	require.Equal(t, "restored", s.lastCall(t, "user").Start)
}

// What an instance writes is gone with it, however the next one starts.
func TestFunctionFilesAreItsInstances(t *testing.T) {
	t.Parallel()
	s := shared(t)
	file := s.write(t, "files.py", `
import brisk, os
app = brisk.App("files")

@app.function(block_network=True, scaledown_window=0.2)
def leave():
    before = sorted(p for p in ("/etc/mine", "/tmp/mine", "/root/mine") if os.path.exists(p))
    for p in ("/etc/mine", "/tmp/mine", "/root/mine"):
        with open(p, "w") as f:
            f.write(p)
    return before

@app.local_entrypoint()
def main():
    print(leave.remote(), leave.remote())
`)
	warm := "['/etc/mine', '/root/mine', '/tmp/mine']"
	require.Equal(t, "[] "+warm+"\n", s.ok(t, "run", file))
	s.ready(t, "files")
	s.cooled(t, "files")
	require.Equal(t, "[] "+warm+"\n", s.ok(t, "run", file))
	require.Equal(t, "restored", s.calls(t, "files")[1].Start)

	r := s.in(t, "sh", "-c", "touch /opt/brisk/code/x /opt/brisk/sdk/x /run/brisk/x")
	require.NotEqual(t, 0, r.code, "%s", r)
	r = s.in(t, "sh", "-c", "ls -A /run/brisk; cat /proc/mounts; mount -o remount,rw / ; ls /etc/shadow && umount /etc/hosts")
	require.NotContains(t, r.out, s.data)
}

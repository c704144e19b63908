package e2e

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const draws = `
import os, random, sys, time, uuid
import brisk

app = brisk.App("draws")
seen = []          # what this process has seen of calls
loaded = time.time()

@app.function(block_network=True, scaledown_window=0.2)
def draw(secret: str):
    before = list(seen)
    seen.append(secret)
    return {
        "random": random.random(), "urandom": os.urandom(8).hex(), "uuid": str(uuid.uuid4()), "system": random.SystemRandom().random(),
        "instance": os.environ["BRISK_INSTANCE_ID"], "app": os.environ["BRISK_APP"],
        "function": os.environ["BRISK_FUNCTION"], "workspace": os.environ["BRISK_WORKSPACE"], "time": time.time(),
        "loaded": loaded, "before": before, "monotonic": time.monotonic() >= 0, "hostname": os.uname().nodename, "pid": os.getpid(),
    }

@app.local_entrypoint()
def main(secret: str):
    import json
    print(json.dumps(draw.remote(secret)))
`

// drawn is what draws.py answers.
type drawn struct {
	Random, System                                    float64
	Urandom, UUID, Instance, App, Function, Workspace string
	Time, Loaded                                      float64
	Before                                            []string
}

// Clones of one snapshot are told apart by nothing but what they should not share.
func TestSnapshotHygiene(t *testing.T) {
	t.Parallel()
	s := shared(t)
	file := s.write(t, "draws.py", draws)
	draw := func(secret string) (d drawn) {
		t.Helper()
		require.NoError(t, json.Unmarshal([]byte(s.ok(t, "run", file, "--secret", secret)), &d))
		now := float64(time.Now().UnixNano()) / 1e9
		require.InDelta(t, now, d.Time, 30, "the clock is right")
		require.Equal(t, []string{"draws", "draw", "default"}, []string{d.App, d.Function, d.Workspace})
		return d
	}
	cold := draw("the first caller's")
	require.Equal(t, "cold", s.lastCall(t, "draws").Start)
	all := []drawn{cold}
	for range 3 {
		s.ready(t, "draws")
		s.cooled(t, "draws")
		d := draw("another's")
		c := s.lastCall(t, "draws")
		require.Equal(t, "restored", c.Start)
		require.Equal(t, c.Instance, d.Instance, "the environment names this instance")
		require.Empty(t, d.Before, "the snapshot has seen no call")
		all = append(all, d)
	}
	for _, d := range all[2:] {
		require.Equal(t, all[1].Loaded, d.Loaded, "they are clones of one process")
	}
	for what, value := range map[string]func(drawn) any{
		"random": func(d drawn) any { return d.Random }, "urandom": func(d drawn) any { return d.Urandom },
		"uuid4": func(d drawn) any { return d.UUID }, "SystemRandom": func(d drawn) any { return d.System },
		"instance": func(d drawn) any { return d.Instance },
	} {
		values := map[any]bool{}
		for _, d := range all {
			values[value(d)] = true
		}
		require.Len(t, values, len(all), "%s repeats: %v", what, values)
	}

	// Nobody's data is in it: not in the pages either.
	for _, path := range below(filepath.Join(s.data, "snapshots")) {
		if isFile(path) {
			b, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NotContains(t, string(b), "the first caller's", path)
		}
	}
}

// What a module has set up when it is imported is there in every clone, as on the
// first start: threads, child processes, pipes, files, listening sockets. Only
// connections to the outside are broken, and new ones can be made.
func TestSnapshotKeepsWhatTheModuleSetUp(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	host := hostListener(t)
	address, port, _ := net.SplitHostPort(host)
	file := s.write(t, "setup.py", `
import os, time
import brisk

app = brisk.App("setup")
HOST = ("`+address+`", `+port+`)

if not brisk.is_local():
    import mmap, socket, sqlite3, subprocess, tempfile, threading

    outside = socket.create_connection(HOST, timeout=10)
    server = socket.create_server(("127.0.0.1", 8123))
    ticks = 0
    def tick():
        global ticks
        while True:
            ticks += 1
            time.sleep(0.001)
    threading.Thread(target=tick, daemon=True).start()
    cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    temporary = tempfile.NamedTemporaryFile()
    temporary.write(b"kept")
    temporary.flush()
    memory = mmap.mmap(-1, 1 << 20)
    memory[:4] = b"mmap"
    db = sqlite3.connect("/tmp/x.db")
    db.execute("create table t(a)")
    db.commit()
    left, right = socket.socketpair()
    os.makedirs("/srv/made")

@app.function(scaledown_window=0.2, allow_networks=["`+address+`/32"])
def use():
    before = ticks
    while ticks < before + 3:
        time.sleep(0.001)
    cat.stdin.write(b"cat\n")
    cat.stdin.flush()
    left.send(b"pair")
    socket.create_connection(("127.0.0.1", 8123), timeout=10).close()
    socket.create_connection(HOST, timeout=10).close()
    try:
        outside.settimeout(10)
        outside.sendall(b"x")
        old = outside.recv(1) == b"" and "closed"
    except OSError:
        old = "closed"
    db.execute("insert into t values (1)")
    return [cat.stdout.readline(), open(temporary.name).read(), memory[:4], right.recv(4), db.execute("select count(*) from t").fetchone(),
            os.listdir("/srv"), old]
`)
	want := "[b'cat\\n', 'kept', b'mmap', b'pair', (1,), ['made'], 'closed']\n"
	require.Equal(t, want, s.ok(t, "run", file+"::use"))
	for range 2 {
		s.ready(t, "setup")
		s.cooled(t, "setup")
		require.Equal(t, want, s.ok(t, "run", file+"::use"))
		require.Equal(t, "restored", s.lastCall(t, "setup").Start)
	}
}

const counted = `
import brisk
app = brisk.App("counted")

@app.function(block_network=True, scaledown_window=0.2)
def f():
    return 42
`

// snapshotOf waits until the site's only snapshot is there, and gives its directory.
func (s *site) snapshotOf(t *testing.T) string {
	t.Helper()
	var found []string
	eventually(t, "there is a snapshot", func() bool {
		found, _ = filepath.Glob(filepath.Join(s.data, "snapshots", "[0-9a-f]*", "snapshot.json"))
		return len(found) == 1
	})
	return filepath.Dir(found[0])
}

// A snapshot that must not be used costs a cold start within the same call, says
// why, and is made again.
func TestSnapshotThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		spoil func(t *testing.T, dir string)
		note  string
	}{
		{"of another runsc", func(t *testing.T, dir string) {
			path := filepath.Join(dir, "snapshot.json")
			var m map[string]any
			b, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(b, &m))
			m["key"].(map[string]any)["runtime"] = "brisk-19990101+000000000000"
			b, err = json.Marshal(m)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, b, 0o600))
		}, "it was made by runsc brisk-19990101+000000000000, and this is "},
		{"damaged pages", func(t *testing.T, dir string) { flip(t, filepath.Join(dir, "image", "pages.img"), 1<<20) }, "its file pages.img is damaged"},
		{"damaged state", func(t *testing.T, dir string) { flip(t, filepath.Join(dir, "image", "checkpoint.img"), 1000) }, "its file checkpoint.img is damaged"},
		{"pages cut off", func(t *testing.T, dir string) {
			require.NoError(t, os.Truncate(filepath.Join(dir, "image", "pages.img"), 1<<20))
		}, "its file pages.img is damaged"},
		{"a file missing", func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "image", "pages_meta.img")))
		}, "pages_meta.img"},
		{"a damaged manifest", func(t *testing.T, dir string) { flip(t, filepath.Join(dir, "snapshot.json"), 1) }, "none has been made yet"},
	}
	s := newSite(t)
	file := s.write(t, "counted.py", counted)
	require.Equal(t, "42\n", s.ok(t, "run", file+"::f"))
	s.ready(t, "counted")
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := s.snapshotOf(t)
			s.ok(t, "down")
			tt.spoil(t, dir)
			require.Equal(t, "42\n", s.ok(t, "run", file+"::f"))
			c := s.lastCall(t, "counted")
			require.Equal(t, "cold", c.Start)
			require.Contains(t, c.step(t, "snapshot").Note, tt.note)
			require.Contains(t, s.ok(t, "calls", "show", c.ID), tt.note)

			s.ready(t, "counted") // another has been made
			s.cooled(t, "counted")
			require.Equal(t, "42\n", s.ok(t, "run", file+"::f"))
			require.Equal(t, "restored", s.lastCall(t, "counted").Start)
			s.ready(t, "counted")
		})
	}
}

// A restore that fails in spite of all checks falls back within the call, too.
func TestSnapshotThatFailsToRestore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	file := s.write(t, "counted.py", counted)
	require.Equal(t, "42\n", s.ok(t, "run", file+"::f"))
	dir := s.snapshotOf(t)
	s.ready(t, "counted")
	s.cooled(t, "counted")
	// It was made by this server, which trusts it; so this is not noticed before.
	require.NoError(t, os.Truncate(filepath.Join(dir, "image", "checkpoint.img"), 1000))
	require.Equal(t, "42\n", s.ok(t, "run", file+"::f"))
	c := s.lastCall(t, "counted")
	require.Equal(t, "fallback", c.Start)
	require.Contains(t, c.step(t, "snapshot").Note, "restoring failed, starting clean: ")
	c.step(t, "import")

	s.ready(t, "counted")
	s.cooled(t, "counted")
	require.Equal(t, "42\n", s.ok(t, "run", file+"::f"))
	require.Equal(t, "restored", s.lastCall(t, "counted").Start)
}

// flip changes a byte of a file.
func flip(t *testing.T, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	b := make([]byte, 1)
	_, err = f.ReadAt(b, at)
	require.NoError(t, err)
	b[0] ^= 0x55
	_, err = f.WriteAt(b, at)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
}

// A function whose module does not load has no snapshot, and its caller hears why.
func TestSnapshotOfWhatDoesNotLoad(t *testing.T) {
	t.Parallel()
	s := shared(t)
	file := s.write(t, "unloadable.py", `
import brisk
app = brisk.App("unloadable")
if not brisk.is_local():
    print("about to fail")
    import no_such_module

@app.function(block_network=True)
def f():
    return 1
`)
	r := s.brisk(t, "run", file+"::f")
	require.Equal(t, 1, r.code, "%s", r)
	require.Contains(t, r.err, "ModuleNotFoundError: No module named 'no_such_module'")
	require.Contains(t, r.err, `File "/opt/brisk/code/unloadable.py", line 6`)
	require.Contains(t, strings.Split(r.out+r.err, "Traceback")[0], "about to fail")
	require.Empty(t, s.instances(t, "unloadable", ""))
}

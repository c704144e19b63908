package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A process that reads what nobody has fetched yet, when the server is killed: it
// waits for the next server and gets the right bytes; on older kernels it gets
// EIO. In either case the next server works, and has swept the sandbox.
func TestReaderWhenTheServerDies(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, mode.env...)
			p := s.begin(t, "run", "--image", s.debian(t), "--block-network", "--", "sh", "-c", "echo here; exec sleep 1000")
			p.waitLine(t, "here")
			var all []instance
			s.ask(t, &all, "ps")
			require.Len(t, all, 1)
			// The gofer sees the image as its sandbox does, and so can we through it.
			unread, err := os.Open(pid(s.part(t, all[0].ID, "gofer")).file("root/usr/bin/perl"))
			require.NoError(t, err)
			defer unread.Close()

			s.killServer(t)
			p.wait(t)
			cmd := exec.Command("cat")
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			reader := s.launch(t, cmd, unread)
			unread.Close()
			if mode.old {
				r := reader.wait(t)
				require.Equal(t, 1, r.code)
				require.Contains(t, r.err, "Input/output error")
				require.Equal(t, "", r.out)
			}

			want := strings.Fields(s.in(t, "sha256sum", "/usr/bin/perl").out)
			require.Len(t, want, 2)
			if !mode.old {
				r := reader.wait(t)
				require.Equal(t, 0, r.code, "%s", r.err)
				sum := sha256.Sum256([]byte(r.out))
				require.Equal(t, want[0], hex.EncodeToString(sum[:]))
			}
			require.Empty(t, groupsBelow(s.group()+"/"+all[0].ID), "the sandbox is swept")
			file := s.write(t, "victims.py", victims)
			s.usable(t, file)
		})
	}
}

// On older kernels a call that runs when the server is killed ends as it does on
// others, and its function works again.
func TestKillOfTheServerOnOlderKernels(t *testing.T) {
	t.Parallel()
	s := newSite(t, "BRISK_COMPAT=1")
	file := s.write(t, "victims.py", victims)
	s.usable(t, file)
	s.ready(t, "victims")
	p := s.begin(t, "run", file+"::wait")
	p.waitLine(t, "in the call")
	busy := s.instances(t, "victims", "busy")
	require.Len(t, busy, 1)
	s.killServer(t)
	require.Equal(t, 7, p.wait(t).code)
	s.usable(t, file)
	calls := s.calls(t, "victims")
	require.Equal(t, "interrupted", calls[1].Error.Class)
	require.NotEqual(t, busy[0].ID, calls[0].Instance)
}

// A large image is mounted at once: what it costs is told, not asserted.
func TestLargeImageMountsAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	const dirs, files = 300, 100
	root := filepath.Join(s.files, "root")
	for d := range dirs {
		path := filepath.Join(root, fmt.Sprintf("usr/lib/d%03d", d))
		require.NoError(t, os.MkdirAll(path, 0o755))
		for f := range files {
			require.NoError(t, os.WriteFile(filepath.Join(path, fmt.Sprintf("f%03d.py", f)), fmt.Appendf(nil, "VALUE = %d\n", d*files+f), 0o644))
		}
	}
	program, err := os.ReadFile(guest(t))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(root, "probe"), program, 0o755))
	var r, again imported
	s.ask(t, &r, "image", "import", root, "--name", "large")
	require.Equal(t, dirs*files+dirs+4, r.Files)
	s.ask(t, &again, "image", "import", root, "--name", "large")
	require.Equal(t, r.Digest, again.Digest)
	require.Zero(t, again.NewChunks)
	s.ok(t, "down") // so that nothing of it is in memory

	require.Equal(t, "VALUE = 12345\n", s.ok(t, "run", "--image", "large", "--block-network", "--", "/probe", "read", "/usr/lib/d123/f045.py"))
	var d struct {
		Read struct {
			OriginBytes int64 `json:"origin_bytes"`
			CacheBytes  int64 `json:"cache_bytes"`
		} `json:"read"`
	}
	s.ask(t, &d, "image", "inspect", "large")
	t.Logf("import of %d files: %.0f ms, again: %.0f ms; read of %d bytes of the image: %d", r.Files, r.MS, again.MS, r.Bytes, d.Read.OriginBytes+d.Read.CacheBytes)

	// A function on an image like that: its trace has the mount by itself.
	file := s.write(t, "large.py", `
import brisk
app = brisk.App("large")
image = brisk.Image.debian_slim().add_local_dir("root/usr/lib", "/many")

@app.function(image=image, block_network=True, enable_memory_snapshot=False)
def f():
    return open("/many/d077/f008.py").read()
`)
	require.Equal(t, "'VALUE = 7708\\n'\n", s.ok(t, "run", file+"::f"))
	s.ok(t, "down")
	require.Equal(t, "'VALUE = 7708\\n'\n", s.ok(t, "run", file+"::f"))
	c := s.lastCall(t, "large")
	t.Logf("an image of 30,000 files, its manifest local: mounted in %.1f ms", c.step(t, "mount image").MS)
}

package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSecondServerIsRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	first := s.begin(t, "up")
	s.answering(t)
	pid := first.cmd.Process.Pid
	require.Equal(t, pid, s.serverPID(t))
	require.Equal(t, complaint{"exists", fmt.Sprintf("the server with pid %d uses %s", pid, s.data),
		fmt.Sprintf("`brisk down --data %s` stops it; `--data` with another directory runs one beside it.", s.data)},
		s.refused(t, 2, "up"))
	require.Equal(t, "[]\n", s.ok(t, "--json", "ps"), "the first goes on")

	first.signal(t, syscall.SIGINT)
	r := first.wait(t)
	require.Equal(t, 0, r.code, "%s", r)
	require.Contains(t, r.err, "ready")
	require.Empty(t, s.census(t).all(), "an orderly end leaves nothing")
}

// answering waits until the site's server answers.
func (s *site) answering(t *testing.T) {
	t.Helper()
	eventually(t, "the server answers", func() bool {
		c, err := net.Dial("unix", filepath.Join(s.runDir(), "api.sock"))
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

func TestCommandsWithoutAServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	e := s.refused(t, 7, "ps")
	require.Equal(t, "unavailable", e.Class)
	require.Equal(t, "no server answers at "+filepath.Join(s.runDir(), "api.sock"), e.Message)
	require.Equal(t, "", s.ok(t, "down"))
	require.Empty(t, s.census(t).all())
	require.Equal(t, complaint{"not_found", `no call "c-nope"`, "brisk calls lists the last 2000."}, s.refused(t, 3, "calls", "show", "c-nope"))
	require.Equal(t, complaint{"not_found", `there is no call "nope", and no function of that name was called`, ""}, s.refused(t, 3, "logs", "nope"))
	require.Equal(t, "{\n  \"stopped\": true\n}\n", s.ok(t, "down", "--json"))
	require.Equal(t, "{\n  \"stopped\": false\n}\n", s.ok(t, "down", "--json"))
}

// Everything that needs root says so, with one message, to whoever is not.
func TestNotRoot(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	// A directory that the other user may reach, with a copy of the binary.
	open, err := os.MkdirTemp("", "brisk-e2e-nobody-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(open) })
	require.NoError(t, os.Chmod(open, 0o755))
	bin := filepath.Join(open, "brisk")
	require.NoError(t, quietly("", "cp", briskBin, bin))
	script := filepath.Join(open, "x.py")
	require.NoError(t, os.WriteFile(script, []byte("import brisk\napp = brisk.App('x')\n@app.function()\ndef f(): pass\n"), 0o644))

	for _, args := range [][]string{
		{"up"}, {"down"}, {"run", script}, {"run", "--image", "x", "--", "true"}, {"image", "ls"}, {"calls"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			cmd := exec.Command(bin, append([]string{"--json"}, args...)...)
			cmd.Dir = open
			cmd.Env = append(s.command().Env, "HOME="+open)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			p := s.launch(t, cmd, nil)
			r := p.wait(t)
			require.Equal(t, 6, r.code, "%s", r)
			var e struct{ Error complaint }
			require.NoError(t, json.Unmarshal([]byte(r.err), &e), "%s", r)
			want := complaint{"machine", "Brisk makes mounts, sandboxes and network namespaces, which only root may", "Use sudo."}
			if strings.HasPrefix(e.Error.Message, "no permission") { // where a server of root's runs, on whatever data
				want = complaint{"machine", "no permission to talk to the server at " + filepath.Join(s.runDir(), "api.sock"), "Brisk is for root: use sudo."}
			}
			require.Equal(t, want, e.Error)
		})
	}
	t.Run("a server of root's", func(t *testing.T) {
		s.ok(t, "image", "ls")
		cmd := exec.Command(bin, "ps")
		cmd.Dir, cmd.Env = open, s.command().Env
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		r := s.launch(t, cmd, nil).wait(t)
		require.NotEqual(t, 0, r.code, "%s", r)
		require.Equal(t, "", r.out)
	})
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	s := shared(t)
	var found []struct {
		Name   string `json:"name"`
		Status string `json:"status"`
		Detail string `json:"detail"`
		Fix    string `json:"fix"`
	}
	s.ask(t, &found, "doctor")
	names := map[string]string{}
	for _, f := range found {
		names[f.Name] = f.Status
		require.NotEmpty(t, f.Status)
		require.NotEmpty(t, f.Detail, f.Name)
		if f.Status != "ok" {
			require.NotEmpty(t, f.Fix, "%s says what to do", f.Name)
		}
	}
	t.Log(names)
	for _, want := range []string{"kernel", "EROFS", "FUSE", "cgroups", "runsc", "KVM", "data directory"} {
		require.Contains(t, names, want)
	}
}

// A server that a command started goes when it has been idle; the directory that
// somebody else owns is left alone.
func TestServerOnForeignDirectories(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.ok(t, "down")
	thesis := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(thesis, "thesis.tex"), []byte("x"), 0o644))
	require.Equal(t, complaint{"invalid", thesis + " is not Brisk's and not empty: there is thesis.tex in it", "Name a directory of its own with --data."},
		s.refused(t, 2, "up", "--data", thesis))
	require.Equal(t, complaint{"invalid", thesis + " is not Brisk's and not empty: there is thesis.tex in it", "Name a directory of its own with --data."},
		s.refused(t, 2, "image", "ls", "--data", thesis))
	entries, err := os.ReadDir(thesis)
	require.NoError(t, err)
	require.Len(t, entries, 1, "%v", entries)

	require.NoError(t, os.WriteFile(filepath.Join(s.data, "version"), []byte("brisk data 99\n"), 0o600))
	require.Equal(t, complaint{"machine", fmt.Sprintf("%s has the format %q, this Brisk knows %q", s.data, "brisk data 99", "brisk data 2"),
		"Use the Brisk that made it, or another directory with --data."}, s.refused(t, 6, "up"))
	require.NoError(t, os.WriteFile(filepath.Join(s.data, "version"), []byte("brisk data 2\n"), 0o600))
	s.ok(t, "image", "ls")
}

// Paths that mount options, shells and sockets choke on.
func TestDataDirectoryWithAnOddName(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 200)
	for _, name := range []string{`odd, na:me i"n\side=1`, long + "/" + long + "/" + long} {
		for _, mode := range modes {
			data := filepath.Join(t.TempDir(), name)
			require.NoError(t, os.MkdirAll(data, 0o755))
			s := newSiteAt(t, data, mode.env...)
			file := s.builds(t, "odd", `.run_commands("echo built > /built")`)
			require.Equal(t, "'built\\n'\n", s.ok(t, "run", file+"::f", "--command", "cat /built"))
			s.ok(t, "down")
		}
	}
}

func TestServerGoesWhenIdle(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.begin(t, "up", "--idle-exit", "300ms")
	r := p.wait(t)
	require.Equal(t, 0, r.code, "%s", r)
	require.Contains(t, r.err, "nobody has needed the server")
	require.Empty(t, s.census(t).all())
}

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/server"
)

// These tests run the real binary with real sandboxes: what they are about is
// processes, and what is left of them.

var built struct {
	once         sync.Once
	dir          string
	brisk, probe string
	err          error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// build makes the probe once, and the binary, unless $BRISK_BIN is one.
func build(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes mounts and sandboxes")
	}
	built.once.Do(func() {
		built.dir, built.err = os.MkdirTemp("", "brisk-cmd-") // for all tests
		if built.err != nil {
			return
		}
		built.err = os.Chmod(built.dir, 0o755) // nobody runs it too
		built.brisk, built.probe = filepath.Join(built.dir, "brisk"), filepath.Join(built.dir, "probe")
		sources := map[string]string{built.brisk: ".", built.probe: "./testdata/probe"}
		if given := os.Getenv("BRISK_BIN"); given != "" {
			delete(sources, built.brisk)
			if out, err := exec.Command("cp", given, built.brisk).CombinedOutput(); err != nil {
				built.err = fmt.Errorf("copy $BRISK_BIN: %w\n%s", err, out)
				return
			}
		}
		for path, src := range sources {
			cmd := exec.Command("go", "build", "-buildvcs=false", "-o", path, src)
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := cmd.CombinedOutput(); err != nil {
				built.err = fmt.Errorf("build %s: %w\n%s", src, err, out)
				return
			}
		}
	})
	require.NoError(t, built.err)
}

// machine is a data directory with its server, if one runs.
type machine struct {
	t     *testing.T
	paths server.Paths
	env   []string
}

func newMachine(t *testing.T, env ...string) *machine {
	t.Helper()
	build(t)
	p, err := server.PathsOf(filepath.Join(t.TempDir(), "data"))
	require.NoError(t, err)
	m := &machine{t, p, env}
	if os.Getenv("BRISK_RUNSC") == "" {
		root, err := filepath.Abs("../../bin/runsc")
		require.NoError(t, err)
		m.env = append(m.env, "BRISK_RUNSC="+root)
	}
	t.Cleanup(func() {
		code, _, errs := m.brisk("", "down")
		require.Equal(t, 0, code, errs)
		m.requireNothingLeft()
	})
	return m
}

func (m *machine) command(args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	m.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, built.brisk, args...)
	cmd.Env = append(append(os.Environ(), m.env...), "BRISK_DATA="+m.paths.Data)
	return cmd
}

// brisk runs a command to its end.
func (m *machine) brisk(in string, args ...string) (code int, out, errs string) {
	m.t.Helper()
	cmd := m.command(args...)
	var o, e bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &o, &e
	_ = cmd.Run()
	return cmd.ProcessState.ExitCode(), o.String(), e.String()
}

// image imports an image whose only program is the probe.
func (m *machine) image() {
	m.t.Helper()
	root := m.t.TempDir()
	require.NoError(m.t, os.Mkdir(filepath.Join(root, "srv"), 0o755))
	b, err := os.ReadFile(built.probe)
	require.NoError(m.t, err)
	require.NoError(m.t, os.WriteFile(filepath.Join(root, "probe"), b, 0o755))
	code, _, errs := m.brisk("", "image", "import", root, "--name", "probe")
	require.Equal(m.t, 0, code, errs)
}

func (m *machine) run(in string, args ...string) (code int, out, errs string) {
	m.t.Helper()
	return m.brisk(in, append([]string{"run", "--image", "probe", "--block-network"}, args...)...)
}

// sleeper starts a container that sleeps, and returns when it does.
func (m *machine) sleeper() *exec.Cmd {
	m.t.Helper()
	cmd := m.command("run", "--image", "probe", "--block-network", "--", "/probe", "sleep")
	out, err := cmd.StdoutPipe()
	require.NoError(m.t, err)
	require.NoError(m.t, cmd.Start())
	m.t.Cleanup(func() { _ = cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(m.t, err)
	require.Equal(m.t, "asleep\n", line)
	return cmd
}

// serverPID is the server's, 0 if there is none.
func (m *machine) serverPID() int {
	b, err := os.ReadFile(filepath.Join(m.paths.Data, "lock"))
	require.NoError(m.t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	require.NoError(m.t, err)
	return pid
}

// killServer is the worst that can happen to it.
func (m *machine) killServer() {
	m.t.Helper()
	pid := m.serverPID()
	require.NoError(m.t, syscall.Kill(pid, syscall.SIGKILL))
	for syscall.Kill(pid, 0) == nil { // until init has taken note
		time.Sleep(time.Millisecond)
	}
}

// requireNothingLeft looks for everything that a server can leave.
func (m *machine) requireNothingLeft() {
	m.t.Helper()
	require.NoDirExists(m.t, m.paths.Run)
	name := filepath.Base(m.paths.Run)
	require.Empty(m.t, m.processes(), "processes")
	groups, err := filepath.Glob("/sys/fs/cgroup/brisk/" + name)
	require.NoError(m.t, err)
	more, err := filepath.Glob("/sys/fs/cgroup/*/brisk/" + name)
	require.NoError(m.t, err)
	require.Empty(m.t, append(groups, more...), "control groups")
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(m.t, err)
	require.NotContains(m.t, string(mounts), m.paths.Run, "mounts on the host")
	sum := sha256.Sum256([]byte(filepath.Join(m.paths.Run, "netns"))) // as package network names its links
	links, err := net.Interfaces()
	require.NoError(m.t, err)
	for _, l := range links {
		require.False(m.t, strings.HasPrefix(l.Name, "brisk"+hex.EncodeToString(sum[:2])+"-"), "network interface %s", l.Name)
	}
}

// processes lists those whose command line names our directories.
func (m *machine) processes() (found []string) {
	dirs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(m.t, err)
	for _, d := range dirs {
		b, err := os.ReadFile(d)
		if err != nil {
			continue // it has ended meanwhile
		}
		line := strings.ReplaceAll(string(b), "\x00", " ")
		if strings.Contains(line, m.paths.Run+"/") || strings.Contains(line, m.paths.Run+" ") || strings.Contains(line, m.paths.Data+" ") {
			found = append(found, line)
		}
	}
	return found
}

func TestUpInTheForeground(t *testing.T) {
	m := newMachine(t)
	cmd := m.command("up")
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(stderr)
	ready := false
	for !ready && lines.Scan() {
		ready = strings.Contains(lines.Text(), "msg=ready")
	}
	require.True(t, ready)
	go io.Copy(io.Discard, stderr)

	code, _, errs := m.brisk("", "up")
	require.Equal(t, 2, code)
	require.Equal(t, fmt.Sprintf("brisk: the server with pid %d uses %s\n"+
		"`brisk down --data %[2]s` stops it; `--data` with another directory runs one beside it.\n", cmd.Process.Pid, m.paths.Data), errs)

	code, out, errs := m.brisk("", "ps", "--json")
	require.Equal(t, []any{0, "[]\n", ""}, []any{code, out, errs})

	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	require.NoError(t, cmd.Wait())
	m.requireNothingLeft()
}

func TestRunAnImage(t *testing.T) {
	for name, env := range map[string][]string{"": nil, "compat": {"BRISK_COMPAT=1"}} {
		t.Run("kernel"+name, func(t *testing.T) {
			m := newMachine(t, env...)
			m.image()
			code, out, errs := m.run("hello\n", "--", "/probe", "cat")
			require.Equal(t, []any{0, "hello\n", ""}, []any{code, out, errs})
			code, out, errs = m.run("", "--", "/probe", "exit", "7")
			require.Equal(t, []any{7, "", "ending with 7\n"}, []any{code, out, errs})
			code, out, errs = m.run("", "-e", "A=b c", "-w", "/srv", "-u", "1000:100", "--", "/probe", "env")
			require.Equal(t, []any{0, "b c /srv 1000 100\n", ""}, []any{code, out, errs})
			code, out, errs = m.run("", "--memory", "128", "--", "/probe", "eat", "400")
			require.Equal(t, []any{137, "", "brisk: the container was killed: it needed more than its 128 MiB of memory\n"}, []any{code, out, errs})
			code, _, errs = m.run("", "--timeout", "0.3", "--", "/probe", "sleep")
			require.Equal(t, 4, code)
			require.Equal(t, "brisk: the container ran longer than its timeout of 0.3 s\n", errs)
			code, out, _ = m.run("", "--", "/probe", "print", "100")
			require.Equal(t, []any{0, 100 << 20}, []any{code, len(out)})
			for _, program := range []string{"nothing", "/nothing"} {
				code, _, errs = m.run("", "--", program)
				require.Equal(t, 3, code, errs)
				require.Equal(t, "brisk: there is no program "+program+" in the image\n", errs)
			}
		})
	}
}

func TestInterruptKillsTheContainer(t *testing.T) {
	m := newMachine(t)
	m.image()
	cmd := m.sleeper()
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	_ = cmd.Wait()
	require.Equal(t, 130, cmd.ProcessState.ExitCode())
	// The server notices by itself; how soon is its business.
	for deadline := time.Now().Add(20 * time.Second); ; {
		code, out, errs := m.brisk("", "ps", "--json")
		require.Equal(t, 0, code, errs)
		if out == "[]\n" {
			return
		}
		require.True(t, time.Now().Before(deadline), out)
		time.Sleep(10 * time.Millisecond)
	}
}

func TestAKilledServerIsSwept(t *testing.T) {
	m := newMachine(t)
	m.image()
	client := m.sleeper()
	m.killServer()
	_ = client.Wait()
	require.Equal(t, 70, client.ProcessState.ExitCode(), "it was interrupted")

	code, out, errs := m.run("again", "--", "/probe", "cat")
	require.Equal(t, []any{0, "again", ""}, []any{code, out, errs})
	code, out, errs = m.brisk("", "ps", "--json")
	require.Equal(t, []any{0, "[]\n", ""}, []any{code, out, errs}, "what the first ran is gone")

	t.Run("by down", func(t *testing.T) {
		m.sleeper()
		m.killServer()
		code, out, errs := m.brisk("", "down")
		require.Equal(t, []any{0, "", ""}, []any{code, out, errs})
	})
}

func TestNotRoot(t *testing.T) {
	m := newMachine(t)
	for _, args := range [][]string{{"up"}, {"image", "ls"}, {"run", "--image", "x"}, {"down"}} {
		cmd := m.command(args...)
		var errs bytes.Buffer
		cmd.Dir, cmd.Stderr = "/", &errs
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		_ = cmd.Run()
		require.Equal(t, 6, cmd.ProcessState.ExitCode(), "%v: %s", args, &errs)
		require.Contains(t, strings.ToLower(errs.String()), "use sudo.\n")
	}
}

func TestNoRunsc(t *testing.T) {
	m := newMachine(t)
	m.env = append(m.env, "BRISK_RUNSC=/nowhere/runsc")
	code, _, errs := m.brisk("", "image", "ls")
	require.Equal(t, 6, code)
	require.Equal(t, "brisk: BRISK_RUNSC names /nowhere/runsc, which is no program\n`make runsc` builds one in bin/runsc.\n", errs)
	m.env = m.env[:len(m.env)-1]
}

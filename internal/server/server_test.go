package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/api/apitest"
	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/scheduler"
	"brisk.dev/brisk/internal/store"
)

// roleVariable makes the test binary a server of the given kind (roles).
const roleVariable = "BRISK_TEST_ROLE"

// roles are servers without a machine behind them, as processes of their own.
var roles = map[string]func(o Options) error{
	"serve": func(o Options) error { return run(context.Background(), o, pretend(&apitest.Fake{})) },
	"fail": func(o Options) error {
		return run(context.Background(), o, func(context.Context, Options, Paths, *slog.Logger) (*parts, error) {
			return nil, fault.New(fault.Machine, "this machine has no wheels").WithHint("Buy some.")
		})
	},
	"panic": func(Options) error { panic("out of luck") },
	"stuck": func(o Options) error { // does not end when asked
		return run(context.Background(), o, func(ctx context.Context, o Options, p Paths, log *slog.Logger) (*parts, error) {
			built, err := pretend(&apitest.Fake{})(ctx, o, p, log)
			built.later("stone", func(context.Context) error { select {} })
			return built, err
		})
	},
}

func TestMain(m *testing.M) {
	role := os.Getenv(roleVariable)
	if role == "" {
		os.Exit(m.Run())
	}
	o := Options{Data: os.Args[1], Version: "test", Ready: ReadyPipe()}
	if len(os.Args) > 2 {
		o.IdleExit, _ = time.ParseDuration(os.Args[2])
	}
	if err := roles[role](o); err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
	os.Exit(0)
}

// pretend builds parts that are not there.
func pretend(f *apitest.Fake) wiring {
	return func(context.Context, Options, Paths, *slog.Logger) (*parts, error) {
		return &parts{backend: f.Backend(), active: func() int { return 0 }}, nil
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: the run directory is in " + runRoot)
	}
}

// place is a data directory whose run directory is gone when the test ends.
func place(t *testing.T) Paths {
	t.Helper()
	needRoot(t)
	p, err := PathsOf(filepath.Join(t.TempDir(), "data"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, removeRun(p)) })
	return p
}

// start runs a server in this process until the test ends.
func start(t *testing.T, o Options, f *apitest.Fake) (end func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan error, 1), make(chan error, 1)
	o.Ready = func(err error) { ready <- err }
	go func() { done <- run(ctx, o, pretend(f)) }()
	require.NoError(t, <-ready)
	var err error
	ended := false
	end = func() error {
		if !ended {
			ended = true
			cancel()
			err = <-done
		}
		return err
	}
	t.Cleanup(func() { _ = end() })
	return end
}

// spawn starts a server process; it is killed when the test ends.
func spawn(t *testing.T, role string, p Paths, args ...string) *exec.Cmd {
	t.Helper()
	t.Setenv(roleVariable, role)
	cmd := exec.Command("/proc/self/exe", append([]string{p.Data}, args...)...)
	cmd.Stderr = os.Stderr
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	cmd.ExtraFiles = []*os.File{w}
	cmd.Env = append(os.Environ(), readyVariable+"=3")
	require.NoError(t, cmd.Start())
	w.Close()
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	require.NoError(t, readReport(r))
	return cmd
}

func client(t *testing.T, p Paths) *api.Client {
	c := api.Dial(p.Socket(), image.DefaultWorkspace)
	t.Cleanup(c.Close)
	return c
}

func TestPaths(t *testing.T) {
	p, err := PathsOf("")
	require.NoError(t, err)
	require.Equal(t, Paths{Data: "/var/lib/brisk", Run: "/run/brisk/default"}, p)
	p, err = PathsOf("/var/lib/brisk/")
	require.NoError(t, err)
	require.Equal(t, "/run/brisk/default", p.Run)
	p, err = PathsOf("/srv/brisk")
	require.NoError(t, err)
	sum := store.Sum([]byte("/srv/brisk")) // BLAKE3
	require.Equal(t, Paths{Data: "/srv/brisk", Run: "/run/brisk/" + sum.String()[:12]}, p)
	require.Equal(t, p.Run+"/api.sock", p.Socket())
}

func TestRunServesAndLeavesNothing(t *testing.T) {
	p := place(t)
	end := start(t, Options{Data: p.Data, Version: "1", Node: "n"}, &apitest.Fake{})
	for path, mode := range map[string]os.FileMode{p.Data: 0o700, p.Run: 0o700, p.Socket(): 0o600} {
		st, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, mode, st.Mode().Perm(), path)
	}
	info, err := client(t, p).Info(t.Context())
	require.NoError(t, err)
	require.Equal(t, "1", info.Version)
	require.Equal(t, os.Getpid(), info.PID)
	require.Equal(t, p.Data, info.Data)
	require.Equal(t, "n", info.Node)
	require.Equal(t, []string{"default"}, info.Workspaces)
	require.NoError(t, end())
	require.NoDirExists(t, p.Run)
	b, err := os.ReadFile(p.LogFile())
	require.NoError(t, err)
	require.Contains(t, string(b), `"msg":"ready"`)
	require.Contains(t, string(b), `"msg":"stopped"`)
}

func TestShutdownByTheClient(t *testing.T) {
	p := place(t)
	ready, done := make(chan error, 1), make(chan error, 1)
	go func() {
		done <- run(context.Background(), Options{Data: p.Data, Ready: func(err error) { ready <- err }}, pretend(&apitest.Fake{}))
	}()
	require.NoError(t, <-ready)
	require.NoError(t, client(t, p).Shutdown(t.Context()))
	require.NoError(t, <-done)
	require.NoDirExists(t, p.Run)
}

func TestASecondServerIsToldWhoIsThere(t *testing.T) {
	p := place(t)
	cmd := spawn(t, "serve", p)
	err := run(t.Context(), Options{Data: p.Data}, pretend(&apitest.Fake{}))
	require.Equal(t, fault.Exists, fault.ClassOf(err))
	require.EqualError(t, err, fmt.Sprintf("the server with pid %d uses %s", cmd.Process.Pid, p.Data))
	_, err = client(t, p).Info(t.Context())
	require.NoError(t, err, "the first goes on")
}

func TestAfterAKillTheNextServerStarts(t *testing.T) {
	p := place(t)
	cmd := spawn(t, "serve", p)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	require.FileExists(t, p.Socket(), "a stale socket")
	end := start(t, Options{Data: p.Data}, &apitest.Fake{})
	_, err := client(t, p).Info(t.Context())
	require.NoError(t, err)
	require.NoError(t, end())
	require.NoDirExists(t, p.Run)
}

func TestSignalsEndIt(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		p := place(t)
		cmd := spawn(t, "serve", p)
		require.NoError(t, cmd.Process.Signal(syscall.SIGHUP), "ignored in the background")
		_, err := client(t, p).Info(t.Context())
		require.NoError(t, err)
		require.NoError(t, cmd.Process.Signal(sig))
		require.NoError(t, cmd.Wait(), sig.String())
		require.NoDirExists(t, p.Run)
	}
}

func TestIdleExit(t *testing.T) {
	p := place(t)
	cmd := spawn(t, "serve", p, "100ms")
	require.NoError(t, cmd.Wait())
	require.NoDirExists(t, p.Run)
	b, err := os.ReadFile(p.LogFile())
	require.NoError(t, err)
	require.Contains(t, string(b), "nobody has needed the server")
}

func TestNotIdleWhileSomethingIsActive(t *testing.T) {
	looks := 0
	active := func() int { // called by watchIdle's goroutine only
		looks++
		return max(0, 5-looks)
	}
	idle := make(chan struct{})
	srv := api.New((&apitest.Fake{}).Backend(), api.Options{})
	go watchIdle(t.Context(), time.Nanosecond, srv, active, func() { close(idle) })
	<-idle
	require.GreaterOrEqual(t, looks, 5)
}

type nothing struct{}

func (nothing) Accepted(string) error    { return nil }
func (nothing) Log(string, []byte) error { return nil }

func TestShutdownLetsClientsHearHowCallsEnded(t *testing.T) {
	p := place(t)
	entered, stop := make(chan struct{}), make(chan struct{})
	f := &apitest.Fake{OnCall: func(_ context.Context, _ scheduler.CallRequest, s scheduler.Sink) scheduler.Outcome {
		_ = s.Accepted("c1")
		close(entered)
		<-stop
		return scheduler.Outcome{Kind: scheduler.Failed, Err: fault.New(fault.Unavailable, "the server is shutting down")}
	}}
	ready, done := make(chan error, 1), make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var order []string
	go func() {
		done <- run(ctx, Options{Data: p.Data, Ready: func(err error) { ready <- err }},
			func(context.Context, Options, Paths, *slog.Logger) (*parts, error) {
				built := &parts{backend: f.Backend(), active: func() int { return 1 }}
				built.later("first", func(context.Context) error { order = append(order, "first"); return nil })
				built.later("second", func(context.Context) error { order = append(order, "second"); return nil })
				built.quiesce = func(context.Context) error { order = append(order, "quiesce"); close(stop); return nil }
				return built, nil
			})
	}()
	require.NoError(t, <-ready)
	got := make(chan scheduler.Outcome, 1)
	go func() { got <- client(t, p).Call(context.Background(), store.Digest{}, "", nil, nothing{}) }()
	<-entered
	cancel()
	o := <-got
	require.EqualError(t, o.Err, "the server is shutting down")
	require.NoError(t, <-done)
	require.Equal(t, []string{"quiesce", "second", "first"}, order)
}

func TestWhatCannotBeClosedKeepsTheRunDirectory(t *testing.T) {
	p := place(t)
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan error, 1), make(chan error, 1)
	go func() {
		done <- run(ctx, Options{Data: p.Data, Ready: func(err error) { ready <- err }},
			func(context.Context, Options, Paths, *slog.Logger) (*parts, error) {
				built := &parts{backend: (&apitest.Fake{}).Backend(), active: func() int { return 0 }}
				built.later("sandboxes", func(context.Context) error { return errors.New("one is left") })
				return built, nil
			})
	}()
	require.NoError(t, <-ready)
	cancel()
	require.ErrorContains(t, <-done, "one is left")
	require.DirExists(t, p.Run)
	left, err := HasLeftovers(p.Data)
	require.NoError(t, err)
	require.True(t, left)
	require.NoError(t, sweep(t.Context(), Options{Data: p.Data}, pretend(&apitest.Fake{})))
	left, err = HasLeftovers(p.Data)
	require.NoError(t, err)
	require.False(t, left)
}

func TestDataDirectory(t *testing.T) {
	needRoot(t)
	tests := []struct {
		name  string
		fill  func(t *testing.T, dir string)
		class fault.Class
		text  string
	}{
		{"new", func(*testing.T, string) {}, "", ""},
		{"empty", func(t *testing.T, dir string) { require.NoError(t, os.MkdirAll(dir, 0o755)) }, "", ""},
		{"ours", func(t *testing.T, dir string) {
			write(t, dir+"/version", "brisk data 2\n")
			write(t, dir+"/store/x", "")
		}, "", ""},
		{"somebody's", func(t *testing.T, dir string) { write(t, dir+"/thesis.tex", "") }, fault.Invalid, "thesis.tex"},
		{"of the future", func(t *testing.T, dir string) { write(t, dir+"/version", "brisk data 3\n") }, fault.Machine, `"brisk data 3"`},
		{"a file", func(t *testing.T, dir string) { write(t, dir, "") }, fault.Internal, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := Paths{Data: filepath.Join(t.TempDir(), "data")}
			tt.fill(t, p.Data)
			err := prepareData(p)
			require.Equal(t, tt.class, fault.ClassOf(err), "%v", err)
			if err != nil {
				require.ErrorContains(t, err, tt.text)
				return
			}
			b, err := os.ReadFile(p.Data + "/version")
			require.NoError(t, err)
			require.Equal(t, "brisk data 2\n", string(b))
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

// A data directory on a disk that had an error: the server says so instead of starting.
func TestReadOnlyDataDirectory(t *testing.T) {
	p := place(t)
	require.NoError(t, os.Mkdir(p.Data, 0o700))
	require.NoError(t, unix.Mount("tmpfs", p.Data, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(p.Data, unix.MNT_DETACH) })
	require.NoError(t, unix.Mount("tmpfs", p.Data, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	err := run(t.Context(), Options{Data: p.Data}, pretend(&apitest.Fake{}))
	require.Equal(t, fault.Machine, fault.ClassOf(err), "%v", err)
	require.Contains(t, fault.HintOf(err), p.Data+" is read-only")
}

func TestEnsureRunning(t *testing.T) {
	p := place(t)
	t.Setenv(roleVariable, "serve")
	self, err := os.Executable()
	require.NoError(t, err)
	argv := []string{self, p.Data}
	t.Cleanup(func() { _, _, _ = Stop(context.Background(), p.Data) })

	// Several at once: one starts it, all find it.
	const n = 5
	results := make(chan bool, n)
	for range n {
		go func() {
			started, err := EnsureRunning(context.Background(), p.Data, argv)
			if err != nil {
				t.Error(err)
			}
			results <- started
		}()
	}
	starters := 0
	for range n {
		if <-results {
			starters++
		}
	}
	require.Equal(t, 1, starters)
	_, err = client(t, p).Info(t.Context())
	require.NoError(t, err)
	started, err := EnsureRunning(t.Context(), p.Data, argv)
	require.NoError(t, err)
	require.False(t, started)

	stopped, killed, err := Stop(t.Context(), p.Data)
	require.NoError(t, err)
	require.True(t, stopped)
	require.False(t, killed)
	require.NoDirExists(t, p.Run)
	stopped, _, err = Stop(t.Context(), p.Data)
	require.NoError(t, err)
	require.False(t, stopped, "there is none any more")
}

func TestEnsureRunningTellsWhyNot(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	for role, want := range map[string]struct {
		class      fault.Class
		text, hint string
	}{
		"fail":  {fault.Machine, "this machine has no wheels", "Buy some."},
		"panic": {fault.Internal, "the server ended while it started: exit status 2: panic: out of luck", "output.log"},
	} {
		t.Run(role, func(t *testing.T) {
			p := place(t)
			t.Setenv(roleVariable, role)
			started, err := EnsureRunning(t.Context(), p.Data, []string{self, p.Data})
			require.False(t, started)
			require.Equal(t, want.class, fault.ClassOf(err))
			require.ErrorContains(t, err, want.text)
			require.Contains(t, fault.HintOf(err), want.hint)
			require.NoDirExists(t, p.Run)
		})
	}
}

func TestStopKillsWhatDoesNotEnd(t *testing.T) {
	p := place(t)
	cmd := spawn(t, "stuck", p)
	waited := make(chan error, 1)
	go func() { waited <- cmd.Wait() }()
	stopped, killed, err := stop(t.Context(), p, 100*time.Millisecond)
	require.NoError(t, err)
	require.True(t, stopped)
	require.True(t, killed)
	require.ErrorContains(t, <-waited, "killed")
	require.NoError(t, sweep(t.Context(), Options{Data: p.Data}, pretend(&apitest.Fake{})))
	require.NoDirExists(t, p.Run)
}

func TestStopWithoutAServer(t *testing.T) {
	p := place(t)
	stopped, killed, err := Stop(t.Context(), p.Data)
	require.NoError(t, err)
	require.False(t, stopped || killed)
	left, err := HasLeftovers(p.Data)
	require.NoError(t, err)
	require.False(t, left)
}

func TestRemoveRunDoesNotDeleteThroughMounts(t *testing.T) {
	p := place(t)
	_, err := prepareRun(p)
	require.NoError(t, err)
	precious := t.TempDir()
	write(t, precious+"/file", "keep me")
	at := p.Run + "/a mount\\with blanks"
	require.NoError(t, os.Mkdir(at, 0o700))
	require.NoError(t, syscall.Mount(precious, at, "", syscall.MS_BIND, ""))
	require.NoError(t, removeRun(p))
	require.NoDirExists(t, p.Run)
	require.FileExists(t, precious+"/file")
}

func TestLogFileIsPutAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log", "server.log")
	l, err := openLogFile(path)
	require.NoError(t, err)
	line := []byte(strings.Repeat("x", 1<<20-1) + "\n")
	for range 25 {
		_, _ = l.Write(line)
	}
	require.NoError(t, l.Close())
	_, _ = l.Write(line) // after the end: dropped
	for name, size := range map[string]int64{path: 5 << 20, path + ".1": 10 << 20} {
		st, err := os.Stat(name)
		require.NoError(t, err)
		require.Equal(t, size, st.Size(), name)
	}
}

func TestReportSurvivesThePipe(t *testing.T) {
	require.NoError(t, readReport(strings.NewReader(`{"ready":true}`)))
	err := readReport(strings.NewReader(`{"ready":false,"error":{"class":"exists","message":"m","hint":"h"}}`))
	require.Equal(t, fault.Exists, fault.ClassOf(err))
	require.EqualError(t, err, "m")
	require.Equal(t, "h", fault.HintOf(err))
	require.Equal(t, io.EOF, readReport(strings.NewReader("")))
	require.Equal(t, io.EOF, readReport(strings.NewReader(`{"rea`)))
}

func TestFindRunsc(t *testing.T) {
	good := filepath.Join(t.TempDir(), "runsc")
	require.NoError(t, os.WriteFile(good, []byte("#!/bin/sh\n"), 0o755))
	found, err := FindRunsc(good)
	require.NoError(t, err)
	require.Equal(t, good, found)
	t.Setenv("BRISK_RUNSC", good)
	found, err = FindRunsc("")
	require.NoError(t, err)
	require.Equal(t, good, found)
	_, err = FindRunsc(good + ".not")
	require.Equal(t, fault.Machine, fault.ClassOf(err))
	require.Contains(t, fault.HintOf(err), "make runsc")
	t.Setenv("BRISK_RUNSC", "")
	t.Setenv("PATH", filepath.Dir(good))
	found, err = FindRunsc("")
	require.NoError(t, err)
	require.Contains(t, found, "runsc")
}

func TestListenReplacesADeadSocket(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		l, err := listen(dir + "/api.sock")
		require.NoError(t, err)
		c, err := net.Dial("unix", dir+"/api.sock")
		require.NoError(t, err)
		c.Close()
		l.Close()
		require.FileExists(t, dir+"/api.sock")
	}
}

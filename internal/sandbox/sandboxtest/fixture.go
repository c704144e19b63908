package sandboxtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/sandbox"
	"brisk.dev/brisk/internal/sandbox/cgroup"
)

// timeout bounds each step of a test. It is long: it is there to end a hang, not
// to measure.
const timeout = 60 * time.Second

// Context is a context for one step.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	t.Cleanup(cancel)
	return ctx
}

// BuildRoot builds a root directory that holds the probe at /bin/probe, and mounts
// it read-only, as a mounted image is.
func BuildRoot(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"bin", "etc", "data/replaced/sub", "data/gone", "lib"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{
		"etc/hello": "from the image", "data/modified": "old", "data/deleted": "old",
		"data/chmodded": "same", "data/replaced/lower": "hidden", "data/gone/file": "x", "data/kept": "same",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "bin/probe"), "brisk.dev/brisk/internal/sandbox/sandboxtest/probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the probe: %v\n%s", err, out)
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Fatalf("binding the root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmounting the root: %v", err)
		}
	})
	if err := unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		t.Fatalf("making the root read-only: %v", err)
	}
	return dir
}

// Fixture is one test's view of a runtime.
type Fixture struct {
	T          *testing.T
	RT         sandbox.Runtime
	Root       string // the root directory, read-only
	Dir, Group string // the runtime's
}

var counter atomic.Int64

// NewID gives an ID that no other sandbox of this process has.
func NewID() string { return fmt.Sprintf("t%d-%d", os.Getpid(), counter.Add(1)) }

// Output collects what a sandbox writes into a pipe.
type Output struct {
	File *os.File // the write end
	mu   sync.Mutex
	buf  bytes.Buffer
	done chan struct{}
}

// NewOutput makes a pipe whose read end is drained until the write ends are closed.
func NewOutput(t testing.TB) *Output {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	o := &Output{File: w, done: make(chan struct{})}
	go func() {
		defer close(o.done)
		defer func() { _ = r.Close() }()
		b := make([]byte, 4096)
		for {
			n, err := r.Read(b)
			o.mu.Lock()
			o.buf.Write(b[:n])
			o.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { _ = w.Close(); <-o.done })
	return o
}

// Text closes our write end and gives all that was written; the sandbox must have
// been destroyed, or its process ended.
func (o *Output) Text() string {
	_ = o.File.Close()
	<-o.done
	return o.buf.String()
}

// Spec is a spec that runs the probe with arguments.
func (f *Fixture) Spec(args ...string) sandbox.Spec {
	return sandbox.Spec{
		ID: NewID(), Rootfs: f.Root, Args: append([]string{"probe"}, args...),
		Env: []string{"PATH=/bin", "GREETING=hello"}, Cwd: "/", Hostname: "inside",
	}
}

// Create creates a sandbox that is destroyed at the end of the test.
func (f *Fixture) Create(s sandbox.Spec) sandbox.Sandbox {
	f.T.Helper()
	sb, err := f.RT.Create(Context(f.T), s)
	if err != nil {
		f.T.Fatalf("create: %v", err)
	}
	f.T.Cleanup(func() { f.Destroy(sb) })
	return sb
}

// Destroy destroys a sandbox now.
func (f *Fixture) Destroy(sb sandbox.Sandbox) {
	f.T.Helper()
	if err := sb.Destroy(Context(f.T)); err != nil {
		f.T.Errorf("destroy: %v", err)
	}
}

// Start creates and starts.
func (f *Fixture) Start(s sandbox.Spec) sandbox.Sandbox {
	f.T.Helper()
	sb := f.Create(s)
	if err := sb.Start(Context(f.T)); err != nil {
		f.T.Fatalf("start: %v", err)
	}
	return sb
}

// Wait waits for the end of a sandbox's process.
func (f *Fixture) Wait(sb sandbox.Sandbox) sandbox.Exit {
	f.T.Helper()
	e, err := sb.Wait(Context(f.T))
	if err != nil {
		f.T.Fatalf("wait: %v", err)
	}
	return e
}

// Run runs to the end and gives exit, standard output and standard error.
func (f *Fixture) Run(s sandbox.Spec) (sandbox.Exit, string, string) {
	f.T.Helper()
	out, errs := NewOutput(f.T), NewOutput(f.T)
	s.Stdout, s.Stderr = out.File, errs.File
	sb := f.Start(s)
	e := f.Wait(sb)
	f.Destroy(sb)
	return e, out.Text(), errs.Text()
}

// Agent is the host's end of a probe that serves: a listening socket in a directory
// that is bound into the sandbox.
type Agent struct {
	t    testing.TB
	Dir  string
	l    net.Listener
	conn net.Conn
	in   *bufio.Reader
}

// NewAgent listens. Close the connection before a checkpoint.
func NewAgent(t testing.TB) *Agent {
	t.Helper()
	dir, err := os.MkdirTemp("", "agent") // short: a socket's path is
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	a := &Agent{t: t, Dir: dir, l: l}
	t.Cleanup(func() {
		a.Hangup()
		_ = l.Close()
		_ = os.RemoveAll(dir)
	})
	return a
}

// Serve turns a spec into one that runs the agent.
func (a *Agent) Serve(s sandbox.Spec) sandbox.Spec {
	s.Args = []string{"probe", "agent", "/run/agent/s"}
	s.Mounts = append(append([]sandbox.Mount(nil), s.Mounts...), sandbox.Mount{Source: a.Dir, Target: "/run/agent", Sockets: true})
	return s
}

// Do has the probe do something; it accepts the probe's connection if there is none.
func (a *Agent) Do(args ...string) (string, error) {
	if a.conn == nil {
		_ = a.l.(*net.UnixListener).SetDeadline(time.Now().Add(timeout))
		c, err := a.l.Accept()
		if err != nil {
			return "", fmt.Errorf("the agent did not dial: %w", err)
		}
		a.conn, a.in = c, bufio.NewReader(c)
	}
	_ = a.conn.SetDeadline(time.Now().Add(timeout))
	b, err := json.Marshal(args)
	if err != nil {
		return "", err
	}
	if _, err := a.conn.Write(append(b, '\n')); err != nil {
		return "", err
	}
	line, err := a.in.ReadString('\n')
	if err != nil {
		return "", err
	}
	var answer struct{ Out, Err string }
	if err := json.Unmarshal([]byte(line), &answer); err != nil {
		return "", err
	}
	if answer.Err != "" {
		return answer.Out, fmt.Errorf("inside: %s", answer.Err)
	}
	return answer.Out, nil
}

// Must is Do that fails the test.
func (a *Agent) Must(args ...string) string {
	a.t.Helper()
	out, err := a.Do(args...)
	if err != nil {
		a.t.Fatalf("%v: %v", args, err)
	}
	return out
}

// Hangup closes the connection; the probe dials again.
func (a *Agent) Hangup() {
	if a.conn != nil {
		_ = a.conn.Close()
		a.conn = nil
	}
}

// Traces lists what a runtime with that directory and control group has on the
// machine: groups, processes in them, mounts below the directory, files in it.
func Traces(t testing.TB, dir, group string) []string {
	t.Helper()
	var found []string
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.SplitSeq(string(mounts), "\n") {
		if strings.Contains(l, dir) {
			found = append(found, "mount "+l)
		}
	}
	_ = filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && (!d.IsDir() || strings.Count(strings.TrimPrefix(p, dir), "/") > 1) {
			found = append(found, "file "+p)
		}
		return nil
	})
	tree, err := cgroup.Open(cgroup.Root)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range tree.Group(group).Children() {
		found = append(found, "cgroup "+c)
		for _, pid := range tree.Group(group).Child(c).Processes() {
			found = append(found, fmt.Sprintf("process %d in cgroup %s", pid, c))
		}
	}
	return found
}

// seen gives a channel that is closed once the output contains text, or has ended.
func (o *Output) seen(text string) <-chan struct{} {
	found := make(chan struct{})
	go func() {
		defer close(found)
		for {
			o.mu.Lock()
			has := strings.Contains(o.buf.String(), text)
			o.mu.Unlock()
			if has {
				return
			}
			select {
			case <-o.done:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	return found
}

// await waits until the output contains text.
func (o *Output) await(t testing.TB, text string) {
	t.Helper()
	select {
	case <-o.seen(text):
	case <-Context(t).Done():
		t.Fatalf("the sandbox never wrote %q", text)
	}
}

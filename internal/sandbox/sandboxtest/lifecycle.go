package sandboxtest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/sandbox"
)

func (s *suite) lifecycle(f *Fixture) {
	t := f.T
	e, out, errs := f.Run(f.Spec("echo", "one", "two"))
	if e != (sandbox.Exit{}) || out != "one two" || errs != "" {
		t.Errorf("got %+v, %q, %q", e, out, errs)
	}
	if _, _, errs := f.Run(f.Spec("stderr", "oops")); errs != "oops" {
		t.Errorf("standard error: got %q", errs)
	}

	sb := f.Start(f.Spec("sleep"))
	if err := sb.Start(Context(t)); !fault.Is(err, fault.Invalid) {
		t.Errorf("second start: got %v, want invalid", err)
	}
	u, err := sb.Usage()
	if err != nil || u.CPU <= 0 || u.Memory <= 0 {
		t.Errorf("usage: got %+v, %v", u, err)
	}
	ctx, cancel := context.WithCancel(Context(t))
	cancel()
	if _, err := sb.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("wait with a cancelled context: got %v", err)
	}
	if _, err := f.RT.Create(Context(t), func() sandbox.Spec { c := f.Spec("sleep"); c.ID = sb.ID(); return c }()); !fault.Is(err, fault.Exists) {
		t.Errorf("second sandbox of one id: got %v, want exists", err)
	}
	f.Destroy(sb)
	if e := f.Wait(sb); e.Code != 137 || e.OOMKilled {
		t.Errorf("exit of a destroyed sandbox: got %+v, want 137", e)
	}
	f.Destroy(sb)
	if err := sb.Start(Context(t)); err == nil {
		t.Error("start after destroy: no error")
	}
	if v := f.RT.Version(); v == "" {
		t.Error("no version")
	}
	if l := f.RT.Features(); len(l) == 0 || !reflect.DeepEqual(l, sorted(l)) {
		t.Errorf("features are empty or unsorted: %v", l)
	}
}

func sorted(l []string) []string {
	c := append([]string(nil), l...)
	for i := range c {
		for j := i; j > 0 && c[j] < c[j-1]; j-- {
			c[j], c[j-1] = c[j-1], c[j]
		}
	}
	return c
}

func (s *suite) exitCodes(f *Fixture) {
	t := f.T
	for _, c := range []struct {
		args []string
		want int
	}{
		{[]string{"exit", "0"}, 0}, {[]string{"exit", "3"}, 3}, {[]string{"exit", "255"}, 255},
		{[]string{"kill", "9"}, 137}, {[]string{"nonsense"}, 1},
	} {
		if e, _, _ := f.Run(f.Spec(c.args...)); e != (sandbox.Exit{Code: c.want}) {
			t.Errorf("%v: got %+v, want %d", c.args, e, c.want)
		}
	}
	out := NewOutput(t)
	spec := f.Spec("trap")
	spec.Stdout = out.File
	sb := f.Start(spec)
	out.await(t, "ready")
	if err := sb.Signal(Context(t), syscall.SIGTERM, false); err != nil {
		t.Errorf("signal: %v", err)
	}
	if e := f.Wait(sb); e.Code != 42 {
		t.Errorf("after SIGTERM: got %+v, want 42", e)
	}
	sb = f.Start(f.Spec("sleep"))
	if err := sb.Signal(Context(t), syscall.SIGKILL, true); err != nil {
		t.Errorf("signal all: %v", err)
	}
	if e := f.Wait(sb); e.Code != 137 {
		t.Errorf("after SIGKILL: got %+v, want 137", e)
	}
}

func (s *suite) process(f *Fixture) {
	t := f.T
	spec := f.Spec("who")
	spec.UID, spec.GID, spec.Groups, spec.Cwd, spec.Hostname = 1000, 1001, []uint32{1002, 1003}, "/etc", "a-host"
	if _, out, _ := f.Run(spec); out != "1000 1001 [1002 1003] /etc a-host" {
		t.Errorf("who: got %q", out)
	}
	if _, out, _ := f.Run(f.Spec("env", "GREETING")); out != "hello" {
		t.Errorf("env: got %q", out)
	}
	// The server's own environment stays outside.
	t.Setenv("BRISK_SECRET", "x")
	if _, out, _ := f.Run(f.Spec("env", "BRISK_SECRET")); out != "" {
		t.Errorf("environment of the host inside: %q", out)
	}
	spec = f.Spec("write", "/tmp/mine", "x")
	spec.UID, spec.GID = 1000, 1000
	if e, _, errs := f.Run(spec); e.Code != 0 {
		t.Errorf("/tmp for another user: %+v %s", e, errs)
	}
	if _, out, _ := f.Run(f.Spec("mode", "/tmp")); out != "dtrwxrwxrwx" {
		t.Errorf("mode of /tmp: got %q", out)
	}
	spec = f.Spec("write", "/etc/hello", "x")
	spec.UID, spec.GID = 1000, 1000
	if e, _, _ := f.Run(spec); e.Code != 1 {
		t.Errorf("another user could write a file of root's: %+v", e)
	}
}

func (s *suite) filesystem(f *Fixture) {
	t := f.T
	a := NewAgent(t)
	f.Start(a.Serve(f.Spec()))
	if got := a.Must("read", "/etc/hello"); got != "from the image" {
		t.Errorf("read: got %q", got)
	}
	a.Must("write", "/etc/hello", "changed")
	a.Must("write", "/new", "new")
	if got := a.Must("read", "/etc/hello"); got != "changed" {
		t.Errorf("read after write: got %q", got)
	}
	b := NewAgent(t)
	f.Start(b.Serve(f.Spec()))
	if got := b.Must("read", "/etc/hello"); got != "from the image" {
		t.Errorf("another sandbox sees %q", got)
	}
	if _, err := b.Do("read", "/new"); err == nil {
		t.Error("another sandbox sees a new file")
	}
	if _, err := os.Stat(filepath.Join(f.Root, "new")); err == nil {
		t.Error("the host's root was written")
	}
}

func (s *suite) mounts(f *Fixture) {
	t := f.T
	ro, rw := t.TempDir(), t.TempDir()
	file := filepath.Join(t.TempDir(), "file")
	for _, p := range []string{filepath.Join(ro, "x"), file} {
		if err := os.WriteFile(p, []byte("bound"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	a := NewAgent(t)
	spec := a.Serve(f.Spec())
	spec.Mounts = append(spec.Mounts,
		sandbox.Mount{Source: ro, Target: "/opt/deep/ro", ReadOnly: true},
		sandbox.Mount{Source: rw, Target: "/opt/rw"},
		sandbox.Mount{Source: file, Target: "/etc/file", ReadOnly: true})
	f.Start(spec)
	for _, p := range []string{"/opt/deep/ro/x", "/etc/file"} {
		if got := a.Must("read", p); got != "bound" {
			t.Errorf("%s: got %q", p, got)
		}
	}
	for _, p := range []string{"/opt/deep/ro/x", "/opt/deep/ro/new", "/etc/file"} {
		if _, err := a.Do("write", p, "no"); err == nil || !strings.Contains(err.Error(), "read-only") {
			t.Errorf("writing %s: got %v, want read-only", p, err)
		}
	}
	a.Must("write", "/opt/rw/y", "from inside")
	if b, err := os.ReadFile(filepath.Join(rw, "y")); err != nil || string(b) != "from inside" {
		t.Errorf("the host sees %q, %v", b, err)
	}
}

func (s *suite) invalid(f *Fixture) {
	t := f.T
	regular, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = regular.Close() }()
	for name, change := range map[string]func(*sandbox.Spec){
		"id":       func(s *sandbox.Spec) { s.ID = "../x" },
		"long id":  func(s *sandbox.Spec) { s.ID = strings.Repeat("a", 41) },
		"args":     func(s *sandbox.Spec) { s.Args = nil },
		"root":     func(s *sandbox.Spec) { s.Rootfs = "relative" },
		"mount":    func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{{Source: "x", Target: "/y"}} },
		"limit":    func(s *sandbox.Spec) { s.Limits.Memory = -1 },
		"no file":  func(s *sandbox.Spec) { s.Stdout = regular },
		"no root":  func(s *sandbox.Spec) { s.Rootfs = "/does/not/exist" },
		"no mount": func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{{Source: "/does/not/exist", Target: "/y"}} },
	} {
		spec := f.Spec("sleep")
		change(&spec)
		if _, err := f.RT.Create(Context(t), spec); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: got %v (%s), want invalid", name, err, fault.ClassOf(err))
		}
	}
	for program, class := range map[string]fault.Class{
		"no-such-program": fault.NotFound, "/no/such/program": fault.NotFound, "/": fault.Invalid,
	} {
		spec := f.Spec()
		spec.Args = []string{program}
		sb := f.Create(spec)
		if err := sb.Start(Context(t)); !fault.Is(err, class) || strings.Contains(err.Error(), "\n") {
			t.Errorf("start of %s: got %v (%s), want one line, %s", program, err, fault.ClassOf(err), class)
		}
	}
}

func (s *suite) destroyAnyTime(f *Fixture) {
	t := f.T
	f.Destroy(f.Create(f.Spec("sleep")))
	f.Destroy(f.Start(f.Spec("sleep")))
	sb := f.Start(f.Spec("exit", "7"))
	if e := f.Wait(sb); e.Code != 7 {
		t.Errorf("got %+v, want 7", e)
	}
	f.Destroy(sb)

	// While it starts, and twice at once.
	sb = f.Create(f.Spec("sleep"))
	done := make(chan error, 3)
	go func() { _ = sb.Start(Context(t)); done <- nil }()
	go func() { done <- sb.Destroy(Context(t)) }()
	go func() { done <- sb.Destroy(Context(t)) }()
	for range 3 {
		if err := <-done; err != nil {
			t.Errorf("destroy while it starts: %v", err)
		}
	}
	// A create that is given up leaves nothing.
	ctx, cancel := context.WithCancel(Context(t))
	go cancel()
	if sb, err := f.RT.Create(ctx, f.Spec("sleep")); err == nil {
		f.Destroy(sb)
	} else if !fault.Is(err, fault.Cancelled) {
		t.Errorf("cancelled create: got %v (%s)", err, fault.ClassOf(err))
	}
}

package sandboxtest

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/sandbox"
)

// piped gives a spec pipes for its output, as a checkpoint's restore needs if the
// checkpoint had them.
func (f *Fixture) piped(s sandbox.Spec) (sandbox.Spec, *Output) {
	out := NewOutput(f.T)
	s.Stdout, s.Stderr = out.File, out.File
	return s, out
}

// checkpoint runs an agent up to the count of 3 and takes a checkpoint of it.
func (f *Fixture) checkpoint(change func(*sandbox.Spec)) string {
	f.T.Helper()
	a := NewAgent(f.T)
	spec, _ := f.piped(a.Serve(f.Spec()))
	if change != nil {
		change(&spec)
	}
	sb := f.Start(spec)
	for range 3 {
		a.Must("count")
	}
	a.Must("write", "/state", "kept in the overlay")
	a.Must("write", "/tmp/state", "kept in /tmp")
	a.Hangup()
	dir := filepath.Join(f.T.TempDir(), "checkpoint")
	if err := sb.Checkpoint(Context(f.T), dir); err != nil {
		f.T.Fatalf("checkpoint: %v", err)
	}
	if e := f.Wait(sb); e != (sandbox.Exit{}) {
		f.T.Errorf("exit after a checkpoint: got %+v", e)
	}
	f.Destroy(sb)
	return dir
}

func (s *suite) checkpointRestore(f *Fixture) {
	t := f.T
	bound := func(content string) sandbox.Mount {
		d := t.TempDir()
		if err := os.WriteFile(filepath.Join(d, "x"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return sandbox.Mount{Source: d, Target: "/opt/code", ReadOnly: true}
	}
	dir := f.checkpoint(func(s *sandbox.Spec) { s.Mounts = append(s.Mounts, bound("first")) })

	a := NewAgent(t)
	spec, out := f.piped(a.Serve(f.Spec()))
	spec.Mounts = append(spec.Mounts, bound("second"))
	spec.Limits = sandbox.Limits{CPU: 1, Memory: 1 << 30}
	sb := f.Create(spec)
	if err := sb.Restore(Context(t), dir); err != nil {
		t.Fatalf("restore: %v", err)
	}
	if got := a.Must("count"); got != "4" {
		t.Errorf("count after the restore: got %s, want 4", got)
	}
	for path, want := range map[string]string{
		"/state": "kept in the overlay", "/tmp/state": "kept in /tmp", "/etc/hello": "from the image", "/opt/code/x": "second",
	} {
		if got := a.Must("read", path); got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
	a.Must("stderr", "through the new pipe")
	_, _ = a.Do("exit", "5")
	if e := f.Wait(sb); e.Code != 5 {
		t.Errorf("exit after the restore: got %+v, want 5", e)
	}
	f.Destroy(sb)
	if got := out.Text(); got != "through the new pipe" {
		t.Errorf("output after the restore: got %q", got)
	}

	// A checkpoint of a restored sandbox, restored.
	a = NewAgent(t)
	spec, _ = f.piped(a.Serve(f.Spec()))
	spec.Mounts = append(spec.Mounts, bound("third"))
	sb = f.Create(spec)
	if err := sb.Restore(Context(t), dir); err != nil {
		t.Fatalf("restore: %v", err)
	}
	if got := a.Must("count"); got != "4" {
		t.Errorf("count: got %s, want 4", got)
	}
	a.Hangup()
	second := filepath.Join(t.TempDir(), "second")
	if err := sb.Checkpoint(Context(t), second); err != nil {
		t.Fatalf("second checkpoint: %v", err)
	}
	a = NewAgent(t)
	spec, _ = f.piped(a.Serve(f.Spec()))
	spec.Mounts = append(spec.Mounts, bound("fourth"))
	sb = f.Create(spec)
	if err := sb.Restore(Context(t), second); err != nil {
		t.Fatalf("restore of the second: %v", err)
	}
	if got := a.Must("count"); got != "5" {
		t.Errorf("count: got %s, want 5", got)
	}
}

func (s *suite) manyRestores(f *Fixture) {
	t := f.T
	dir := f.checkpoint(nil)
	var wg sync.WaitGroup
	for range 6 {
		a := NewAgent(t)
		spec, _ := f.piped(a.Serve(f.Spec()))
		sb := f.Create(spec)
		wg.Go(func() {
			if err := sb.Restore(Context(t), dir); err != nil {
				t.Errorf("restore: %v", err)
				return
			}
			if got, err := a.Do("count"); err != nil || got != "4" {
				t.Errorf("count: got %s, %v, want 4", got, err)
			}
		})
	}
	wg.Wait()
}

// restoredAndGone: the status of a process that ends as soon as it is restored.
func (s *suite) restoredAndGone(f *Fixture) {
	t := f.T
	spec := func(dir string) (sandbox.Spec, *Output) {
		spec, out := f.piped(f.Spec("until", "/opt/dir/now"))
		spec.Mounts = []sandbox.Mount{{Source: dir, Target: "/opt/dir", ReadOnly: true}}
		return spec, out
	}
	first, out := spec(t.TempDir())
	sb := f.Start(first)
	out.await(t, "ready")
	dir := filepath.Join(t.TempDir(), "checkpoint")
	if err := sb.Checkpoint(Context(t), dir); err != nil {
		t.Fatalf("checkpoint: %v", err)
	}
	now := t.TempDir()
	if err := os.WriteFile(filepath.Join(now, "now"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		again, _ := spec(now)
		sb := f.Create(again)
		if err := sb.Restore(Context(t), dir); err != nil {
			t.Fatalf("restore: %v", err)
		}
		if e := f.Wait(sb); e != (sandbox.Exit{Code: 9}) {
			t.Errorf("got %+v, want 9", e)
		}
		f.Destroy(sb)
	}
}

func (s *suite) brokenCheckpoints(f *Fixture) {
	t := f.T
	good := f.checkpoint(nil)
	files, err := os.ReadDir(good)
	if err != nil || len(files) == 0 {
		t.Fatalf("checkpoint has %v, %v", files, err)
	}
	restore := func(dir string, change func(*sandbox.Spec)) error {
		a := NewAgent(t)
		spec, _ := f.piped(a.Serve(f.Spec()))
		if change != nil {
			change(&spec)
		}
		sb := f.Create(spec)
		defer f.Destroy(sb)
		return sb.Restore(Context(t), dir)
	}
	refuse := func(name string, err error, classes ...fault.Class) {
		t.Helper()
		if err == nil {
			t.Errorf("%s: was restored", name)
			return
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error of several lines: %q", name, err)
		}
		for _, c := range classes {
			if fault.Is(err, c) {
				return
			}
		}
		t.Errorf("%s: got %v (%s), want %v", name, err, fault.ClassOf(err), classes)
	}
	for _, file := range files {
		for name, keep := range map[string]func(int64) int64{
			"empty": func(int64) int64 { return 0 },
			"half":  func(n int64) int64 { return n / 2 },
			"short": func(n int64) int64 { return n - 1 },
		} {
			dir := filepath.Join(t.TempDir(), "c")
			copyDir(t, good, dir)
			fi, err := file.Info()
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(filepath.Join(dir, file.Name()), keep(fi.Size())); err != nil {
				t.Fatal(err)
			}
			refuse(file.Name()+" "+name, restore(dir, nil), fault.Corrupt)
		}
		dir := filepath.Join(t.TempDir(), "c")
		copyDir(t, good, dir)
		if err := os.Remove(filepath.Join(dir, file.Name())); err != nil {
			t.Fatal(err)
		}
		refuse(file.Name()+" missing", restore(dir, nil), fault.Corrupt, fault.NotFound)
	}
	refuse("no directory", restore("/does/not/exist", nil), fault.NotFound)
	refuse("other arguments", restore(good, func(s *sandbox.Spec) { s.Args = []string{"probe", "agent", "/other"} }), fault.Invalid)
	refuse("other user", restore(good, func(s *sandbox.Spec) { s.UID = 5 }), fault.Invalid)
	refuse("other mounts", restore(good, func(s *sandbox.Spec) {
		s.Mounts = append(s.Mounts, sandbox.Mount{Source: f.Root, Target: "/more"})
	}), fault.Invalid)
	if err := restore(good, nil); err != nil {
		t.Errorf("the good one after all that: %v", err)
	}
}

func (s *suite) checkpointFails(f *Fixture) {
	t := f.T
	a := NewAgent(t)
	sb := f.Start(a.Serve(f.Spec()))
	a.Must("count")
	a.Hangup()
	dir := t.TempDir() // exists
	if err := sb.Checkpoint(Context(t), dir); !fault.Is(err, fault.Exists) {
		t.Errorf("into a directory that exists: got %v, want exists", err)
	}
	if err := sb.Checkpoint(Context(t), "/does/not/exist/x"); !fault.Is(err, fault.NotFound) {
		t.Errorf("into a directory that cannot be made: got %v, want not found", err)
	}
	if got := a.Must("count"); got != "2" {
		t.Errorf("count after refused checkpoints: got %s, want 2", got)
	}
	f.Destroy(sb)
	parent := t.TempDir()
	if err := sb.Checkpoint(Context(t), filepath.Join(parent, "x")); err == nil {
		t.Error("checkpoint of a destroyed sandbox: no error")
	}
	if left, _ := os.ReadDir(parent); len(left) != 0 {
		t.Errorf("a failed checkpoint left %v", left)
	}
}

func copyDir(t interface {
	Helper()
	Fatal(...any)
}, from, to string) {
	t.Helper()
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(to, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		in, err := os.Open(filepath.Join(from, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out, err := os.Create(filepath.Join(to, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(out, in); err != nil {
			t.Fatal(err)
		}
		_ = in.Close()
		if err := out.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

package gvisor

import (
	"os"
	"path/filepath"
	"testing"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/sandbox"
)

func TestTheFirstLoggedErrorIsTheCause(t *testing.T) {
	for name, c := range map[string]struct{ log, want string }{
		"none":      {"", ""},
		"one":       {`{"msg":"cause","level":"error","time":"x"}`, "cause"},
		"first":     {`{"msg":"cause","level":"error"}{"msg":"consequence","level":"error"}`, "cause"},
		"a warning": {`{"msg":"careful","level":"warning"}` + "\n" + `{"msg":"cause","level":"error"}`, "cause"},
		"text":      {"text { of a panic\n" + `{"msg":"cause","level":"error"}`, "cause"},
		"lines":     {`{"msg":"\n  cause\nmore","level":"error"}`, "cause"},
		"half":      {`{"msg":"cau`, ""},
	} {
		p := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(p, []byte(c.log), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := loggedError(p); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
	if got := loggedError(filepath.Join(t.TempDir(), "none")); got != "" {
		t.Errorf("no log: got %q", got)
	}
}

func TestClassify(t *testing.T) {
	for text, want := range map[string]fault.Class{
		"failed to validate restore spec: Args: ...":                                           fault.Invalid,
		"starting sandbox: creating process: failed to load /bin/x: no such file or directory": fault.NotFound,
		"failed to load kernel: error decoding from 0x20a: EOF":                                fault.Corrupt,
		"write checkpoint.img: no space left on device":                                        fault.DiskFull,
		"fork/exec /proc/self/exe: resource temporarily unavailable":                           fault.Exhausted,
		"runtime: failed to create new OS thread (have 9 already; errno=11) newosproc":         fault.Exhausted,
		"something nobody has thought of":                                                      fault.Internal,
	} {
		if got := classify(text); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

func TestResolveIn(t *testing.T) {
	root := t.TempDir()
	for _, d := range []string{"usr/bin", "run"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{
		"bin": "usr/bin", "var": "/", "up": "../../../etc", "loop": "loop", "abs": "/usr/../run", "usr/rel": "../run/x",
	} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"/": "/", "/none/at/all": "/none/at/all", "/bin/x": "/usr/bin/x", "/var/run/x": "/run/x",
		"/up/passwd": "/etc/passwd", "/abs/y": "/run/y", "/usr/rel/z": "/run/x/z", "/usr/./bin/../x": "/usr/x",
		"/../../x": "/x", "/bin/../y": "/usr/y",
	} {
		if got, err := resolveIn(root, path); err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", path, got, err, want)
		}
	}
	if _, err := resolveIn(root, "/loop/x"); err == nil {
		t.Error("a loop: no error")
	}
}

func TestWhatIsInTheWayOfAMount(t *testing.T) {
	root, source := t.TempDir(), t.TempDir()
	file := filepath.Join(source, "file")
	for _, name := range []string{file, filepath.Join(root, "run"), filepath.Join(root, "file")} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "etc/resolv.conf"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ source, target, err string }{
		{file, "/etc/resolv.conf", "the image has /etc/resolv.conf as a directory, and Brisk mounts a file there"},
		{source, "/file", "the image has /file as a file, and Brisk mounts a directory there"},
		{source, "/run/brisk", "the image has a file above /run/brisk, where Brisk mounts something"},
		{file, "/run/brisk/deeper/x", "the image has a file above /run/brisk/deeper/x, where Brisk mounts something"},
		{file, "/file", ""},
		{source, "/etc", ""},
		{file, "/etc/new/file", ""},
	} {
		_, err := new(Runtime).mountPoints(sandbox.Spec{ID: "x", Rootfs: root, Mounts: []sandbox.Mount{{Source: c.source, Target: c.target}}})
		if c.err == "" && err == nil {
			continue
		}
		if err == nil || err.Error() != c.err || !fault.Is(err, fault.Invalid) || fault.HintOf(err) != "Remove that from the image." {
			t.Errorf("%s on %s: %v, hint %q", c.source, c.target, err, fault.HintOf(err))
		}
	}
}

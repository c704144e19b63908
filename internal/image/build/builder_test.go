package build

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/image/build/hostconfig"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a Builder with a store, an image "base" and a scripted executor.
type bench struct {
	share      bool
	containers Containers
	*Builder
	t      *testing.T
	dir    string
	images *image.Images
	store  *store.Store
	exec   *script
	base   *image.Image
	blobs  map[string][]byte
	events []string
}

// script is an Executor that does what a test says.
type script struct {
	mu  sync.Mutex
	ran []Step
	do  func(ctx context.Context, s Step) (Layer, error)
}

func (e *script) RunStep(ctx context.Context, s Step) (Layer, error) {
	e.mu.Lock()
	e.ran = append(e.ran, s)
	e.mu.Unlock()
	return e.do(ctx, s)
}

func (e *script) runs() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.ran)
}

func (e *script) last() Step {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ran[len(e.ran)-1]
}

// layer makes a result of a tar of files, "path" to content; a path that ends
// in "/" is a directory.
func layer(files ...string) Layer {
	return Layer{Tar: io.NopCloser(bytes.NewReader(tarOf(files...)))}
}

func tarOf(files ...string) []byte {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for i := 0; i < len(files); i += 2 {
		h := &tar.Header{Name: files[i], Mode: 0o644, Size: int64(len(files[i+1])), Typeflag: tar.TypeReg}
		if strings.HasSuffix(h.Name, "/") {
			h.Typeflag, h.Mode = tar.TypeDir, 0o755
		}
		if files[i+1] == "WHITEOUT" {
			h.Typeflag, h.Size = tar.TypeChar, 0
		}
		if err := w.WriteHeader(h); err != nil {
			panic(err)
		}
		if h.Size > 0 {
			io.WriteString(w, files[i+1])
		}
	}
	w.Close()
	return buf.Bytes()
}

func newBench(t *testing.T) *bench {
	ctx := t.Context()
	b := &bench{t: t, dir: t.TempDir(), exec: &script{}, blobs: map[string][]byte{}}
	origin, err := store.OpenDir(filepath.Join(b.dir, "store"))
	require.NoError(t, err)
	stores := storetest.Workspaces(t, store.WorkspacesOptions{Dir: filepath.Join(b.dir, "local"), Origin: origin})
	b.store = storetest.Store(t, stores, "default")
	b.images, err = image.Open(ctx, image.Options{Dir: filepath.Join(b.dir, "images"), Stores: stores})
	require.NoError(t, err)
	b.base = b.write("default", "base", tarOf("etc/", "", "etc/os-release", "ID=test\n", "bin/", "", "bin/sh", "sh"))
	b.open()
	return b
}

// open makes a Builder, as a new server would.
func (b *bench) open() {
	var err error
	b.Builder, err = New(Options{
		Images: b.images, Dir: filepath.Join(b.dir, "build"), Executor: b.exec, Share: b.share, Containers: b.containers,
		Blobs: func(_ context.Context, workspace, id string) (io.ReadCloser, error) {
			data, ok := b.blobs[workspace+" "+id]
			if !ok {
				return nil, fault.New(fault.NotFound, "no blob %s", id)
			}
			return io.NopCloser(bytes.NewReader(data)), nil
		},
	})
	require.NoError(b.t, err)
	builder := b.Builder
	b.t.Cleanup(func() { builder.Close() })
}

func (b *bench) write(workspace, name string, files []byte) *image.Image {
	ctx := b.t.Context()
	st, err := b.images.Store(workspace)
	require.NoError(b.t, err)
	tree, batch := image.NewTree(), st.Begin(ctx)
	defer batch.Abort()
	_, err = tree.ApplyTar(ctx, bytes.NewReader(files), batch, image.LayerOptions{})
	require.NoError(b.t, err)
	img, _, err := b.images.Write(ctx, tree, image.Config{Env: []string{"A=base"}, Cmd: []string{"sh"}}, batch, workspace, name)
	require.NoError(b.t, err)
	return img
}

func (b *bench) blob(data []byte) string {
	sum := sha256.Sum256(data)
	id := "sha256:" + hex.EncodeToString(sum[:])
	b.blobs["default "+id] = data
	return id
}

// build builds on "base".
func (b *bench) build(steps ...Instruction) (*image.Image, error) {
	return b.define(Definition{Base: Base{Kind: FromImage, Name: "base"}, Steps: steps})
}

func (b *bench) define(d Definition) (*image.Image, error) {
	b.events = nil
	return b.Build(b.t.Context(), "default", d, func(e Event) {
		switch e.Kind {
		case StepBegins:
			cached := ""
			if e.Cached {
				cached = " (cached)"
			}
			b.events = append(b.events, fmt.Sprintf("%d/%d %s%s", e.Index, e.Total, e.Text, cached))
		case Output:
			b.events = append(b.events, string(e.Log))
		}
	})
}

func (b *bench) ok(steps ...Instruction) *image.Image {
	b.t.Helper()
	img, err := b.build(steps...)
	require.NoError(b.t, err)
	return img
}

// paths lists an image's files.
func (b *bench) paths(img *image.Image) []string {
	tree, err := img.Tree(b.t.Context())
	require.NoError(b.t, err)
	var l []string
	require.NoError(b.t, tree.Walk(func(p string, n *image.Node) error {
		if !n.IsDir() {
			l = append(l, p)
		} else if len(n.Children) == 0 {
			l = append(l, p+"/")
		}
		return nil
	}))
	return l
}

// leftovers are files of work that is no longer in progress.
func (b *bench) leftovers() []string {
	entries, err := os.ReadDir(filepath.Join(b.dir, "build", "work"))
	require.NoError(b.t, err)
	var l []string
	for _, e := range entries {
		l = append(l, e.Name())
	}
	return l
}

func run1(commands ...string) Instruction { return Instruction{Kind: Run, Commands: commands} }

func TestStepsAreDoneOnce(t *testing.T) {
	b := newBench(t)
	b.exec.do = func(_ context.Context, s Step) (Layer, error) {
		fmt.Fprintf(s.Output, "doing %s\n", s.Args[len(s.Args)-1])
		return layer("out-"+s.Args[len(s.Args)-1], "x"), nil
	}
	img := b.ok(run1("one"), run1("two"))
	require.Equal(t, []string{"1/3 image base (cached)", "2/3 run one", "doing one\n", "3/3 run two", "doing two\n"}, b.events)
	require.Equal(t, []string{"/bin/sh", "/etc/os-release", "/out-one", "/out-two"}, b.paths(img))
	require.Equal(t, image.Config{Env: []string{"A=base"}, Cmd: []string{"sh"}}, img.Config())
	require.Equal(t, 2, b.exec.runs())

	require.Same(t, img, b.ok(run1("one"), run1("two")))
	require.Equal(t, []string{"1/3 image base (cached)", "2/3 run one (cached)", "3/3 run two (cached)"}, b.events)
	require.Equal(t, 2, b.exec.runs())

	b.open() // also after a restart
	require.Equal(t, img.Digest, b.ok(run1("one"), run1("two")).Digest)
	require.Equal(t, 2, b.exec.runs())

	b.ok(run1("one"), run1("three")) // the first is shared
	require.Equal(t, 3, b.exec.runs())
	b.ok(run1("two"), run1("one")) // another order is other work
	require.Equal(t, 5, b.exec.runs())

	// A result counts only while the image is there.
	require.NoError(t, b.images.Remove(t.Context(), image.Ref{Workspace: "default", Name: img.Digest.String()}))
	require.Equal(t, img.Digest, b.ok(run1("one"), run1("two")).Digest)
	require.Equal(t, 6, b.exec.runs())
	require.Empty(t, b.leftovers())
}

// Another machine of the same store has nothing but the store.
func TestAnotherMachineBuildsNothingAgain(t *testing.T) {
	b := newBench(t)
	b.exec.do = func(context.Context, Step) (Layer, error) { return layer("made", "x"), nil }
	step := run1("make")
	for _, share := range []bool{false, true} {
		b.share = share
		require.NoError(t, os.RemoveAll(filepath.Join(b.dir, "build")))
		b.open() // a machine of its own
		first, err := b.build(step)
		require.NoError(t, err)
		ran := b.exec.runs()
		require.NoError(t, os.RemoveAll(filepath.Join(b.dir, "build")))
		b.open()
		second, err := b.build(step)
		require.NoError(t, err)
		require.Equal(t, first.Digest, second.Digest)
		if share {
			require.Equal(t, ran, b.exec.runs())
		} else {
			require.Equal(t, ran+1, b.exec.runs())
		}
	}
}

func TestConfigurationIsNoWork(t *testing.T) {
	b := newBench(t)
	b.exec.do = func(_ context.Context, s Step) (Layer, error) { return layer("made", "x"), nil }
	env := func(kv ...string) Instruction {
		vars := map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			vars[kv[i]] = kv[i+1]
		}
		return Instruction{Kind: Env, Vars: vars}
	}
	img := b.ok(env("B", "1", "A", "mine"), env("C", "3", "B", "2"), Instruction{Kind: Workdir, Path: "/etc"})
	require.Equal(t, image.Config{Env: []string{"A=mine", "B=2", "C=3"}, Cmd: []string{"sh"}, Workdir: "/etc"}, img.Config())
	require.Equal(t, b.base.Manifest.Meta, img.Manifest.Meta, "the same files")
	require.Equal(t, []string{"1/4 image base (cached)", "2/4 env A B (cached)", "3/4 env B C (cached)", "4/4 workdir /etc (cached)"}, b.events)
	require.Zero(t, b.exec.runs())
	require.Same(t, b.base, b.ok(), "nothing to do gives the base itself")

	// Steps see what was set before them, and it is part of what they follow from.
	img = b.ok(env("B", "1"), Instruction{Kind: Workdir, Path: "/made/by/brisk"}, run1("x"))
	require.Contains(t, b.exec.last().Env, "B=1")
	require.Contains(t, b.exec.last().Env, "A=base")
	require.Equal(t, "/made/by/brisk", b.exec.last().Cwd)
	require.Equal(t, []string{"/bin/sh", "/etc/os-release", "/made/by/brisk/"}, b.paths(b.exec.last().Parent))
	require.Equal(t, "/made/by/brisk", img.Config().Workdir)
	require.Equal(t, []string{"A=base", "B=1"}, img.Config().Env)
	b.ok(env("B", "2"), Instruction{Kind: Workdir, Path: "/made/by/brisk"}, run1("x"))
	require.Equal(t, 2, b.exec.runs())

	_, err := b.build(Instruction{Kind: Workdir, Path: "/bin/sh"})
	require.Equal(t, fault.Invalid, fault.ClassOf(err))
	require.ErrorContains(t, err, "the working directory /bin/sh is a file of another kind")
}

func TestCommandLines(t *testing.T) {
	b := newBench(t)
	b.exec.do = func(context.Context, Step) (Layer, error) { return layer("x", "x"), nil }
	for _, c := range []struct {
		step Instruction
		args []string
	}{
		{Instruction{Kind: AptInstall, Packages: []string{"git", "curl=7.88.1-10"}}, []string{"/bin/sh", "-c", aptScript, "apt_install", "git", "curl=7.88.1-10"}},
		{Instruction{Kind: PipInstall, Packages: []string{"numpy>=2", "x"}, Options: []string{"--pre"}}, []string{"python3", "-m", "pip", "install", "--no-cache-dir", "--pre", "--", "numpy>=2", "x"}},
		{Instruction{Kind: PipInstall, Options: []string{"-r", "/r.txt"}}, []string{"python3", "-m", "pip", "install", "--no-cache-dir", "-r", "/r.txt"}},
		{run1("a", "b 'c'"), []string{"/bin/sh", "-c", runScript, "run", "a", "b 'c'"}},
	} {
		b.ok(c.step)
		s := b.exec.last()
		require.Equal(t, c.args, s.Args)
		require.Equal(t, "/", s.Cwd)
		require.Equal(t, "default", s.Workspace)
		require.Equal(t, b.base, s.Parent)
		require.Contains(t, s.Env, "DEBIAN_FRONTEND=noninteractive")
		require.Contains(t, s.Env, "HOME=/root")
		require.Contains(t, s.Env, "PIP_BREAK_SYSTEM_PACKAGES=1")
		require.Positive(t, s.Timeout)
		require.Equal(t, "/run/brisk-build", s.Binds[0].Target)
		for _, bind := range s.Binds {
			require.True(t, bind.ReadOnly)
			require.NoFileExists(t, bind.Source+"/apt.conf", "removed afterwards")
		}
	}
}

func TestFailedStep(t *testing.T) {
	b := newBench(t)
	var fail = true
	b.exec.do = func(_ context.Context, s Step) (Layer, error) {
		for i := range 100 {
			fmt.Fprintf(s.Output, "line %d\n", i)
		}
		if fail {
			return Layer{ExitCode: 3}, nil
		}
		return layer("done", "x"), nil
	}
	before := b.list()
	_, err := b.build(Instruction{Kind: PipInstall, Packages: []string{"nonsense"}})
	require.Equal(t, fault.BuildFailed, fault.ClassOf(err))
	var want strings.Builder
	want.WriteString("step 2 of 2, pip install nonsense: it failed with exit code 3; the end of its output:")
	for i := 60; i < 100; i++ {
		fmt.Fprintf(&want, "\nline %d", i)
	}
	require.EqualError(t, err, want.String())
	require.Equal(t, before, b.list())
	require.Empty(t, b.leftovers())

	fail = false
	b.ok(Instruction{Kind: PipInstall, Packages: []string{"nonsense"}})
	require.Equal(t, 2, b.exec.runs(), "a failure is not remembered")
}

// list gives all images, with or without names.
func (b *bench) list() (l []string) {
	all, err := b.images.List(b.t.Context(), "default")
	require.NoError(b.t, err)
	for _, i := range all {
		l = append(l, i.Digest.Short())
	}
	return l
}

func TestFailuresOfTheExecutor(t *testing.T) {
	b := newBench(t)
	for _, c := range []struct {
		name  string
		do    func(context.Context, Step) (Layer, error)
		class fault.Class
		text  string
		hint  string
	}{
		{"error", func(context.Context, Step) (Layer, error) { return Layer{}, fault.New(fault.Machine, "no gVisor") }, fault.Machine, "no gVisor", ""},
		{"timeout", func(context.Context, Step) (Layer, error) { return Layer{}, fault.New(fault.Timeout, "too long") }, fault.Timeout, "too long", ""},
		{"silent", func(context.Context, Step) (Layer, error) { return Layer{ExitCode: 1}, nil }, fault.BuildFailed, "exit code 1 and printed nothing", ""},
		{"no command", func(_ context.Context, s Step) (Layer, error) {
			io.WriteString(s.Output, "sh: apt-get: not found\n")
			return Layer{ExitCode: 127}, nil
		}, fault.BuildFailed, "apt-get: not found", "A command that it needs is not in the image."},
		{"memory", func(context.Context, Step) (Layer, error) { return Layer{ExitCode: 137, OOMKilled: true}, nil }, fault.BuildFailed, "137", "It ran out of memory."},
		{"no layer", func(context.Context, Step) (Layer, error) { return Layer{}, nil }, fault.Internal, "no layer", ""},
		{"layer cut off", func(context.Context, Step) (Layer, error) {
			return Layer{Tar: io.NopCloser(bytes.NewReader(tarOf("f", strings.Repeat("x", 5000))[:2000]))}, nil
		}, fault.Invalid, "cut off", ""},
		{"layer breaks off", func(context.Context, Step) (Layer, error) {
			r, w := io.Pipe()
			go func() {
				w.Write(tarOf("f", "x")[:512])
				w.CloseWithError(fault.New(fault.Unavailable, "the sandbox is gone"))
			}()
			return Layer{Tar: r}, nil
		}, fault.Unavailable, "the sandbox is gone", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := b.list()
			b.exec.do = c.do
			_, err := b.build(run1("x"))
			require.Equal(t, c.class, fault.ClassOf(err), "%v", err)
			require.ErrorContains(t, err, "step 2 of 2, run x: ")
			require.ErrorContains(t, err, c.text)
			require.Equal(t, c.hint, fault.HintOf(err))
			require.Equal(t, before, b.list())
			require.Empty(t, b.leftovers())
		})
	}
}

func TestWhatIsLeftOutOfLayers(t *testing.T) {
	b := newBench(t)
	b.exec.do = func(context.Context, Step) (Layer, error) {
		return layer("run/", "", "run/brisk-build/", "", "run/brisk-build/secret", "s", "tmp/x", "x", "proc/x", "x", "sys/x", "x", "dev/x", "x",
			"etc/", "", "etc/resolv.conf", "r", "etc/hosts", "h", "etc/hostname", "n", "etc/kept", "k", "etc/resolv.conf.d/", "",
			"var/cache/apt/pkgcache.bin", "c", "var/lib/apt/lists/x", "l", "var/lib/apt/extended_states", "k",
			"root/.cache/pip", "c", "root/.config", "k", "running/x", "k", "bin/sh", "WHITEOUT"), nil
	}
	img := b.ok(run1("x"))
	require.Equal(t, []string{"/bin/", "/etc/kept", "/etc/os-release", "/etc/resolv.conf.d/", "/root/.config", "/run/", "/running/x", "/var/lib/apt/extended_states"}, b.paths(img))
}

func TestAdd(t *testing.T) {
	b := newBench(t)
	id := b.blob(tarOf("app/", "", "app/main.py", "print()", "app/.wh.x", "not special"))
	img := b.ok(Instruction{Kind: Add, Blob: id, Text: "local files"})
	require.Equal(t, []string{"1/2 image base (cached)", "2/2 add local files"}, b.events)
	require.Equal(t, []string{"/app/.wh.x", "/app/main.py", "/bin/sh", "/etc/os-release"}, b.paths(img))
	require.Same(t, img, b.ok(Instruction{Kind: Add, Blob: id, Text: "called otherwise"}))
	require.Equal(t, "2/2 add called otherwise (cached)", b.events[1])

	missing := "sha256:" + strings.Repeat("0", 64)
	_, err := b.build(Instruction{Kind: Add, Blob: missing})
	require.Equal(t, fault.NotFound, fault.ClassOf(err))
	b.blobs["default "+missing] = tarOf("x", "y")
	before := b.list()
	_, err = b.build(Instruction{Kind: Add, Blob: missing})
	require.Equal(t, fault.Corrupt, fault.ClassOf(err))
	require.Equal(t, before, b.list())
	_, err = b.build(Instruction{Kind: Add, Blob: b.blob([]byte("no tar"))})
	require.Equal(t, fault.Invalid, fault.ClassOf(err))
}

func TestTwoBuildsOfOneStepAreOneRun(t *testing.T) {
	b := newBench(t)
	started, proceed := make(chan struct{}), make(chan struct{})
	b.exec.do = func(ctx context.Context, s Step) (Layer, error) {
		io.WriteString(s.Output, "begun\n")
		close(started)
		select {
		case <-proceed:
			return layer("done", "x"), nil
		case <-ctx.Done():
			return Layer{}, ctx.Err()
		}
	}
	def := Definition{Base: Base{Kind: FromImage, Name: "base"}, Steps: []Instruction{run1("slow")}}
	type result struct {
		img *image.Image
		err error
		log string
	}
	begin := func(ctx context.Context) (<-chan result, <-chan struct{}) {
		done, saw := make(chan result, 1), make(chan struct{}, 16)
		go func() {
			var r result
			r.img, r.err = b.Build(ctx, "default", def, func(e Event) {
				if e.Kind == Output {
					r.log += string(e.Log)
					saw <- struct{}{}
				}
			})
			done <- r
		}()
		return done, saw
	}
	first, cancel := context.WithCancel(t.Context())
	one, sawOne := begin(first)
	<-started
	<-sawOne
	two, sawTwo := begin(t.Context())
	<-sawTwo // it has joined, and sees what was printed before
	cancel() // the first loses interest
	require.Equal(t, fault.Cancelled, fault.ClassOf((<-one).err))
	close(proceed)
	r := <-two
	require.NoError(t, r.err)
	require.Equal(t, "begun\n", r.log)
	require.Equal(t, 1, b.exec.runs())
}

func TestARunEndsWhenNobodyWaits(t *testing.T) {
	b := newBench(t)
	started, ended := make(chan struct{}), make(chan struct{})
	b.exec.do = func(ctx context.Context, s Step) (Layer, error) {
		close(started)
		<-ctx.Done()
		close(ended)
		return Layer{}, ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-started
		cancel()
	}()
	_, err := b.Build(ctx, "default", Definition{Base: Base{Kind: FromImage, Name: "base"}, Steps: []Instruction{run1("x")}}, nil)
	require.Equal(t, fault.Cancelled, fault.ClassOf(err))
	<-ended
	require.NoError(t, b.Close())
	require.Empty(t, b.leftovers())
	_, err = b.build(run1("y"))
	require.Equal(t, fault.Cancelled, fault.ClassOf(err), "after Close")
}

func TestCloseEndsRuns(t *testing.T) {
	b := newBench(t)
	started := make(chan struct{})
	b.exec.do = func(ctx context.Context, s Step) (Layer, error) {
		close(started)
		<-ctx.Done()
		return Layer{}, ctx.Err()
	}
	done := make(chan error)
	go func() {
		_, err := b.Build(context.Background(), "default", Definition{Base: Base{Kind: FromImage, Name: "base"}, Steps: []Instruction{run1("x")}}, nil)
		done <- err
	}()
	<-started
	require.NoError(t, b.Close())
	require.Equal(t, fault.Cancelled, fault.ClassOf(<-done))
}

func TestWorkspacesShareNothing(t *testing.T) {
	b := newBench(t)
	b.exec.do = func(context.Context, Step) (Layer, error) { return layer("x", "x"), nil }
	id := b.blob(tarOf("secret", "s"))
	b.ok(Instruction{Kind: Add, Blob: id}, run1("x"))
	b.write("other", "base", tarOf("etc/", "", "etc/os-release", "ID=test\n", "bin/", "", "bin/sh", "sh"))
	def := func(s ...Instruction) Definition {
		return Definition{Base: Base{Kind: FromImage, Name: "base"}, Steps: s}
	}
	_, err := b.Build(t.Context(), "other", def(Instruction{Kind: Add, Blob: id}), nil)
	require.Equal(t, fault.NotFound, fault.ClassOf(err))
	_, err = b.Build(t.Context(), "other", def(run1("x")), nil)
	require.NoError(t, err)
	require.Equal(t, "other", b.exec.last().Workspace)
	_, err = b.Build(t.Context(), "third", def(), nil)
	require.Equal(t, fault.NotFound, fault.ClassOf(err))
	_, err = b.Build(t.Context(), "../x", def(), nil)
	require.Equal(t, fault.Invalid, fault.ClassOf(err))
}

// TestStepsUseTheHostsMirrorsAndCredentials looks at what a step sees of a host
// with a mirror and a password of its own.
func TestStepsUseTheHostsMirrorsAndCredentials(t *testing.T) {
	b := newBench(t)
	root := t.TempDir()
	for name, content := range map[string]string{
		"etc/os-release":       "ID=debian\n",
		"etc/apt/sources.list": "deb http://mirror.example/debian bookworm main\n",
		"etc/apt/auth.conf":    "machine mirror.example login a password HIDDEN\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(content), 0o600))
	}
	b.machine = hostconfig.Options{Root: root, Environ: []string{"http_proxy=http://u:HIDDEN@proxy:1"}}
	type view struct {
		files  map[string]string // by where the sandbox sees them
		hidden int               // files and variables with the password
	}
	var saw view
	b.exec.do = func(_ context.Context, s Step) (Layer, error) {
		saw = view{files: map[string]string{}}
		for _, bind := range s.Binds {
			err := filepath.WalkDir(bind.Source, func(p string, e os.DirEntry, err error) error {
				if err != nil || e.IsDir() {
					return err
				}
				content, err := os.ReadFile(p)
				saw.files[bind.Target+strings.TrimPrefix(p, bind.Source)] = string(content)
				if bind.Target == hostconfig.Target && strings.Contains(string(content), "HIDDEN") {
					saw.hidden++
				}
				return err
			})
			if err != nil {
				return Layer{}, err
			}
		}
		saw.hidden += strings.Count(strings.Join(s.Env, " "), "HIDDEN")
		return layer("x", "x"), nil
	}
	debian := tarOf("etc/", "", "etc/apt/", "", "etc/apt/sources.list.d/", "",
		"etc/apt/sources.list.d/debian.sources", "Types: deb\nURIs: http://deb.debian.org/debian\nSuites: bookworm\n",
		"etc/apt/sources.list.d/other.list", "deb http://other.example/x y z\n")
	for _, workspace := range []string{"default", "other"} {
		b.write(workspace, "debian", debian)
		img, err := b.Build(t.Context(), workspace, Definition{Base: Base{Kind: FromImage, Name: "debian"}, Steps: []Instruction{run1("x")}}, nil)
		require.NoError(t, err)
		require.Equal(t, "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\n", saw.files["/etc/apt/sources.list.d/debian.sources"])
		require.NotContains(t, saw.files, "/etc/apt/sources.list.d/other.list", "as in the image")
		require.Equal(t, []string{"/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list.d/other.list", "/x"}, b.paths(img))
		if workspace == "default" {
			require.Equal(t, 3, saw.hidden)
		} else {
			require.Zero(t, saw.hidden)
		}
	}
}

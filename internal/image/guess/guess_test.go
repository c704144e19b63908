package guess

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/store"
)

// rootfs is an image in memory, made of the contents of files by path; "->" before a
// content makes it a symbolic link.
type rootfs struct {
	tree   *image.Tree
	chunks map[store.Digest][]byte
	owner  map[store.Digest]string
	fail   error
}

func newRootfs() *rootfs {
	return &rootfs{&image.Tree{Root: &image.Node{Mode: 0o40755, Children: map[string]*image.Node{}}}, map[store.Digest][]byte{}, map[store.Digest]string{}, nil}
}

func (r *rootfs) add(name, content string) {
	dir := r.tree.Root
	parts := strings.Split(strings.Trim(name, "/"), "/")
	for _, p := range parts[:len(parts)-1] {
		if dir.Children[p] == nil {
			dir.Children[p] = &image.Node{Name: p, Mode: 0o40755, Children: map[string]*image.Node{}}
		}
		dir = dir.Children[p]
	}
	base := parts[len(parts)-1]
	n := &image.Node{Name: base, Mode: 0o100755, Size: int64(len(content))}
	if to, ok := strings.CutPrefix(content, "->"); ok {
		n = &image.Node{Name: base, Mode: 0o120777, Link: to}
		content = ""
	}
	for b := range slices.Chunk([]byte(content), store.ChunkSize) {
		d := store.Sum(b)
		r.chunks[d], r.owner[d] = b, name
		n.Chunks = append(n.Chunks, store.Chunk{Digest: d, Size: uint32(len(b))})
	}
	dir.Children[base] = n
}

func (r *rootfs) host(t *testing.T, name string) {
	t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	r.add(name, string(b))
}

func (r *rootfs) read(_ context.Context, c store.Chunk, dst []byte) (store.Tier, error) {
	copy(dst, r.chunks[c.Digest])
	return store.FromCache, r.fail
}

// guess gives the files that are named, in order, and what was named in bytes.
func (r *rootfs) guess(s Spec) (files []string, size int64, err error) {
	err = Chunks(context.Background(), r.tree, r.read, s, func(l []store.Chunk) {
		for _, c := range l {
			size += int64(c.Size)
			if name := r.owner[c.Digest]; !slices.Contains(files, name) {
				files = append(files, name)
			}
		}
	})
	return files, size, err
}

// What is named for a program of this machine is what ldd says that it is linked with.
func TestLibraries(t *testing.T) {
	program, err := filepath.EvalSymlinks("/bin/ls")
	require.NoError(t, err)
	out, err := exec.Command("ldd", program).Output()
	require.NoError(t, err)
	r := newRootfs()
	r.host(t, program)
	want := []string{program}
	for _, m := range regexp.MustCompile(`(?m)(/\S+) \(0x`).FindAllSubmatch(out, -1) {
		real, err := filepath.EvalSymlinks(string(m[1]))
		require.NoError(t, err)
		r.host(t, real)
		if real != string(m[1]) {
			r.add(string(m[1]), "->"+real)
		}
		want = append(want, real)
	}
	require.Greater(t, len(want), 2, "%s", out)
	r.add("/etc/ld.so.cache", "cache")
	r.add("/bin/other", "->"+program)
	got, _, err := r.guess(Spec{Args: []string{"other"}, Env: []string{"PATH=/nothing:/bin"}})
	require.NoError(t, err)
	require.ElementsMatch(t, append(want, "/etc/ld.so.cache"), got)
}

// Of a large library everything but the code is named.
func TestLargeLibrary(t *testing.T) {
	program, err := os.Executable() // a Go program of more than 12 MiB has debug sections, too
	require.NoError(t, err)
	b, err := os.ReadFile(program)
	require.NoError(t, err)
	f, err := elf.NewFile(bytes.NewReader(b))
	require.NoError(t, err)
	r := newRootfs()
	b = append(b, bytes.Repeat([]byte{1}, max(0, wholeLibrary+1-len(b)))...)
	r.add("/lib/big", string(b))
	_, size, err := r.guess(Spec{Args: []string{"/lib/big"}})
	require.NoError(t, err)
	require.Greater(t, size, int64(f.Section(".data").FileSize))
	require.Less(t, size, int64(len(b))-int64(f.Section(".text").Size)/2)
}

func TestScript(t *testing.T) {
	r := newRootfs()
	r.add("/usr/bin/env", "not ELF")
	r.add("/usr/bin/node", "not ELF either")
	r.add("/app/run", "#!/usr/bin/env -S node --flag\nx")
	r.add("/app/loop", "#!/app/loop\n")
	for _, c := range []struct {
		s    Spec
		want []string
	}{
		{Spec{Args: []string{"/app/run"}}, []string{"/app/run", "/usr/bin/env", "/usr/bin/node"}},
		{Spec{Args: []string{"./run"}, Workdir: "/app"}, []string{"/app/run", "/usr/bin/env", "/usr/bin/node"}},
		{Spec{Args: []string{"/app/loop"}}, []string{"/app/loop"}},
		{Spec{Args: []string{"gone"}}, nil},
		{Spec{Args: []string{"/app"}}, nil},
	} {
		got, _, err := r.guess(c.s)
		require.NoError(t, err)
		require.Equal(t, c.want, got, "%v", c.s)
	}
	_, _, err := r.guess(Spec{})
	require.Error(t, err)
}

// installation is one of Python, with compiled modules of 3.11, of which one is looked into.
func installation(t *testing.T) *rootfs {
	r := newRootfs()
	r.add("/usr/bin/python3.11", "not ELF")
	r.add("/usr/bin/python3", "->python3.11")
	lib := "/usr/lib/python3.11/"
	for _, m := range []string{"os", "encodings/__init__", "encodings/utf_8", "json/__init__", "json/decoder", "unused", "tomllib/__init__", "string"} {
		r.add(lib+m+".py", "source of "+m)
		r.add(filepath.Join(lib, filepath.Dir(m), "__pycache__", filepath.Base(m)+".cpython-311.pyc"), "compiled "+m)
	}
	site := "/usr/local/lib/python3.11/dist-packages/"
	b, err := os.ReadFile("testdata/sample.cpython-311.pyc")
	require.NoError(t, err)
	r.add(site+"top/__init__.py", "import string")
	r.add(site+"top/mid/__init__.py", "from .sample import x\nfrom .._fast import y")
	r.add(site+"top/mid/sample.py", "source")
	r.add(site+"top/mid/__pycache__/sample.cpython-311.pyc", string(b))
	r.add(site+"top/mid/near.py", "near")
	r.add(site+"top/above/__init__.py", "above")
	r.add(site+"top/above/it.py", "it")
	r.add(site+"top/_fast.cpython-311-x86_64-linux-gnu.so", "extension")
	r.add(site+"top/data.bin", "data")
	r.add(site+"extra.pth", "a path")
	return r
}

func TestPython(t *testing.T) {
	const site = "/usr/local/lib/python3.11/dist-packages/"
	got, _, err := installation(t).guess(Spec{Args: []string{"/usr/bin/python3", "/app/main.py"}, Modules: []string{"top.mid"}})
	require.NoError(t, err)
	require.ElementsMatch(t, []string{
		"/usr/bin/python3.11", site + "extra.pth",
		"/usr/lib/python3.11/encodings/__pycache__/__init__.cpython-311.pyc",
		"/usr/lib/python3.11/encodings/__pycache__/utf_8.cpython-311.pyc",
		site + "top/__init__.py", site + "top/mid/__init__.py",
		"/usr/lib/python3.11/__pycache__/string.cpython-311.pyc",
		site + "top/mid/__pycache__/sample.cpython-311.pyc",
		site + "top/_fast.cpython-311-x86_64-linux-gnu.so",
		site + "top/mid/near.py", site + "top/above/__init__.py", site + "top/above/it.py",
		"/usr/lib/python3.11/json/__pycache__/__init__.cpython-311.pyc",
		"/usr/lib/python3.11/tomllib/__pycache__/__init__.cpython-311.pyc",
	}, got)
	for _, args := range [][]string{{"-c", "import json.decoder"}, {"-m", "json.decoder"}} {
		got, _, err = installation(t).guess(Spec{Args: append([]string{"/usr/bin/python3"}, args...)})
		require.NoError(t, err)
		require.Contains(t, got, "/usr/lib/python3.11/json/__pycache__/decoder.cpython-311.pyc")
	}
	r := installation(t)
	r.add("/app/main.py", "import helper")
	r.add("/app/helper.py", "import json")
	got, _, err = r.guess(Spec{Args: []string{"/usr/bin/python3", "main.py"}, Workdir: "/app"})
	require.NoError(t, err)
	require.Subset(t, got, []string{"/app/main.py", "/app/helper.py", "/usr/lib/python3.11/json/__pycache__/__init__.cpython-311.pyc"})
}

func TestGuessIsBounded(t *testing.T) {
	r := installation(t)
	_, all, err := r.guess(Spec{Args: []string{"/usr/bin/python3"}, Modules: []string{"top"}})
	require.NoError(t, err)
	_, half, err := r.guess(Spec{Args: []string{"/usr/bin/python3"}, Modules: []string{"top"}, Limit: all / 2})
	require.NoError(t, err)
	require.LessOrEqual(t, half, all/2)
	require.Positive(t, half)
}

func TestImageThatCannotBeRead(t *testing.T) {
	r := installation(t)
	r.fail = errors.New("gone")
	_, _, err := r.guess(Spec{Args: []string{"/usr/bin/python3"}})
	require.ErrorIs(t, err, r.fail)
	r.fail = nil
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, Chunks(ctx, r.tree, r.read, Spec{Args: []string{"/usr/bin/python3"}}, func([]store.Chunk) {}), context.Canceled)
}

func TestLinksInTheImageStayInIt(t *testing.T) {
	r := newRootfs()
	r.add("/bin/up", "->../../../../bin/x")
	r.add("/bin/x", "x")
	r.add("/bin/round", "->round")
	r.add("/bin/abs", "->/bin/up")
	r.add("/bin/into", "->x/y")
	for name, want := range map[string][]string{"up": {"/bin/x"}, "round": nil, "abs": {"/bin/x"}, "into": nil} {
		got, _, err := r.guess(Spec{Args: []string{"/bin/" + name}})
		require.NoError(t, err)
		require.Equal(t, want, got, name)
	}
}

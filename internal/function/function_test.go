package function

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

func mean() Function {
	f := Function{Workspace: "default", App: "stats", Name: "mean", Module: "stats", Qualname: "mean", Image: store.Sum([]byte("image")), SDK: store.Sum([]byte("sdk"))}
	f.Spec.EnsureDefaults()
	return f
}

func TestDigestCoversEverything(t *testing.T) {
	base := mean()
	seen := map[store.Digest]string{base.Digest(): "the function itself"}
	for name, change := range map[string]func(*Function){
		"code":      func(f *Function) { f.Code = "sha256:x" },
		"name":      func(f *Function) { f.Name = "median" },
		"qualname":  func(f *Function) { f.Qualname = "median" },
		"image":     func(f *Function) { f.Image = store.Sum([]byte("other")) },
		"sdk":       func(f *Function) { f.SDK = store.Sum([]byte("other")) },
		"memory":    func(f *Function) { f.Spec.Memory = 4096 },
		"env":       func(f *Function) { f.Spec.Env = map[string]string{"A": "1"} },
		"workspace": func(f *Function) { f.Workspace = "other" },
	} {
		f := mean()
		change(&f)
		require.Empty(t, seen[f.Digest()], name)
		seen[f.Digest()] = name
	}
	again := mean()
	require.Equal(t, base.Digest(), again.Digest())
}

func TestValidateNamesWhatIsWrong(t *testing.T) {
	for want, change := range map[string]func(*Function){
		`app name "a/b": want 1 to 128 letters, digits, '_', '-', '.'`: func(f *Function) { f.App = "a/b" },
		`module "a b" of function mean: want a dotted Python name`:     func(f *Function) { f.Module = "a b" },
		`code "x" of function mean: want sha256:HEX`:                   func(f *Function) { f.Code = "x" },
		`memory=1: want 64 to 4194304 MiB`:                             func(f *Function) { f.Spec.Memory = 1 },
		`timeout=0.01: want 0.1 seconds to 7 days`:                     func(f *Function) { f.Spec.Timeout = 0.01 },
		`allow_networks: "10.0.0.0" is not a CIDR prefix such as 10.1.0.0/16`: func(f *Function) {
			f.Spec.AllowNetworks = []string{"10.0.0.0"}
		},
	} {
		f := mean()
		change(&f)
		err := f.Validate()
		require.EqualError(t, err, want)
		require.True(t, fault.Is(err, fault.Invalid))
	}
}

// uploads is a Blobs of tars in a directory.
type uploads string

func (u uploads) Open(_, id string) (*os.File, error) {
	return os.Open(filepath.Join(string(u), id))
}

type entry struct {
	name, body, link string
	kind             byte
}

func upload(t *testing.T, dir, id string, entries ...entry) {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: e.name, Typeflag: e.kind, Size: int64(len(e.body)), Linkname: e.link, Mode: 0o600}))
		_, err := w.Write([]byte(e.body))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	require.NoError(t, os.WriteFile(filepath.Join(dir, id), b.Bytes(), 0o600))
}

func TestCodeIsUnpackedOnce(t *testing.T) {
	up, dir := t.TempDir(), t.TempDir()
	upload(t, up, "sha256:aa", entry{name: "pkg", kind: tar.TypeDir}, entry{name: "pkg/mod.py", body: "x = 1\n", kind: tar.TypeReg})
	c, err := OpenCode(dir, uploads(up))
	require.NoError(t, err)
	got, err := c.Dir("default", "sha256:aa")
	require.NoError(t, err)
	b, err := os.ReadFile(filepath.Join(got, "pkg/mod.py"))
	require.NoError(t, err)
	require.Equal(t, "x = 1\n", string(b))
	require.NoError(t, os.Remove(filepath.Join(up, "sha256:aa")))
	again, err := c.Dir("default", "sha256:aa")
	require.NoError(t, err)
	require.Equal(t, got, again)
	_, err = c.Dir("other", "sha256:aa")
	require.Error(t, err, "another workspace has not uploaded it")
}

func TestSweepRemovesCodeThatNobodyWants(t *testing.T) {
	up, dir := t.TempDir(), t.TempDir()
	var dirs []string
	c, err := OpenCode(dir, uploads(up))
	require.NoError(t, err)
	for _, id := range []string{"sha256:aa", "sha256:bb", "sha256:cc"} {
		upload(t, up, id, entry{name: "pkg/mod.py", body: "x = 1\n", kind: tar.TypeReg})
		d, err := c.Dir("default", id)
		require.NoError(t, err)
		dirs = append(dirs, d)
	}
	empty, err := c.Dir("default", "")
	require.NoError(t, err)
	keep := func(workspace, id string) bool { return workspace == "default" && id == "sha256:aa" }
	n, _, err := c.Sweep(time.Now().Add(-time.Hour), keep, false)
	require.NoError(t, err)
	require.Zero(t, n, "all are in use")
	old := time.Now().Add(-2 * time.Hour)
	for _, d := range dirs {
		require.NoError(t, os.Chtimes(d, old, old))
	}
	_, err = c.Dir("default", "sha256:bb")
	require.NoError(t, err)
	for _, dry := range []bool{true, false} {
		n, bytes, err := c.Sweep(time.Now().Add(-time.Hour), keep, dry)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.EqualValues(t, 6, bytes)
	}
	require.DirExists(t, dirs[0])
	require.DirExists(t, dirs[1])
	require.NoDirExists(t, dirs[2])
	require.DirExists(t, empty)
	again, err := c.Dir("default", "sha256:cc")
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(again, "pkg/mod.py"))
	left, err := filepath.Glob(filepath.Join(dir, "tmp-*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestDamagedCodeIsUnpackedAgain(t *testing.T) {
	up, dir := t.TempDir(), t.TempDir()
	upload(t, up, "new", entry{name: "a.py", body: "x = 1\n", kind: tar.TypeReg}, entry{name: "b.py", body: "y = 1\n", kind: tar.TypeReg})
	b, err := os.ReadFile(filepath.Join(up, "new"))
	require.NoError(t, err)
	id := "sha256:" + fmt.Sprintf("%x", sha256.Sum256(b))
	require.NoError(t, os.Rename(filepath.Join(up, "new"), filepath.Join(up, id)))
	path := func() string {
		t.Helper()
		c, err := OpenCode(dir, uploads(up))
		require.NoError(t, err)
		got, err := c.Dir("default", id)
		require.NoError(t, err)
		return filepath.Join(got, "b.py")
	}
	for name, damage := range map[string]func(p string) error{
		"changed": func(p string) error { return os.WriteFile(p, []byte("y = 2\n"), 0o600) },
		"cut off": func(p string) error { return os.Truncate(p, 0) },
		"gone":    os.Remove,
	} {
		require.NoError(t, damage(path()), name)
		b, err := os.ReadFile(path())
		require.NoError(t, err, name)
		require.Equal(t, "y = 1\n", string(b), name)
	}

	// A tar that is damaged itself proves nothing.
	p := path()
	require.NoError(t, os.Truncate(p, 0))
	require.NoError(t, os.Truncate(filepath.Join(up, id), 512))
	require.FileExists(t, path())
}

func TestHostileCodeIsRefusedAndLeavesNothing(t *testing.T) {
	for name, e := range map[string]entry{
		"parent":   {name: "../evil.py", body: "x", kind: tar.TypeReg},
		"absolute": {name: "/evil.py", body: "x", kind: tar.TypeReg},
		"symlink":  {name: "a", link: "/etc", kind: tar.TypeSymlink},
		"hardlink": {name: "a", link: "/etc/passwd", kind: tar.TypeLink},
		"device":   {name: "a", kind: tar.TypeChar},
	} {
		t.Run(name, func(t *testing.T) {
			up, dir := t.TempDir(), t.TempDir()
			upload(t, up, "sha256:aa", e)
			c, err := OpenCode(dir, uploads(up))
			require.NoError(t, err)
			_, err = c.Dir("default", "sha256:aa")
			require.Equal(t, fault.Invalid, fault.ClassOf(err))
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

func TestTruncatedCode(t *testing.T) {
	up, dir := t.TempDir(), t.TempDir()
	upload(t, up, "sha256:aa", entry{name: "a.py", body: "x = 1\n", kind: tar.TypeReg})
	require.NoError(t, os.Truncate(filepath.Join(up, "sha256:aa"), 514))
	c, err := OpenCode(dir, uploads(up))
	require.NoError(t, err)
	_, err = c.Dir("default", "sha256:aa")
	require.Error(t, err)
}

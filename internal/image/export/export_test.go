package export

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/image/importer"
	"brisk.dev/brisk/internal/image/registry"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a store, a registry of images, an importer and an exporter.
type world struct {
	t  testing.TB
	in importer.Importer
	x  Exporter
	s  *store.Store
}

func newWorld(t testing.TB) *world {
	dir := t.TempDir()
	origin, err := store.OpenDir(filepath.Join(dir, "store"))
	require.NoError(t, err)
	stores := storetest.Workspaces(t, store.WorkspacesOptions{Dir: filepath.Join(dir, "local"), Origin: origin})
	s := storetest.Store(t, stores, image.DefaultWorkspace)
	images, err := image.Open(t.Context(), image.Options{Dir: filepath.Join(dir, "images"), Stores: stores})
	require.NoError(t, err)
	tmp := filepath.Join(dir, "tmp")
	require.NoError(t, os.Mkdir(tmp, 0o700))
	return &world{t, importer.Importer{Images: images, TempDir: tmp, Client: registry.Client{Pause: time.Millisecond}}, Exporter{Chunks: s, TempDir: tmp}, s}
}

// file is a file of a test's tree.
type file struct {
	path, content, link string
	hard                bool
	mode                uint32 // with S_IFMT; 0 is a regular file 0644, or a directory if path ends in /
	uid, gid            uint32
	s                   int64
	ns                  uint32
	xattrs              map[string]string
	hole                int64 // before the content
}

// make makes an image.
func (w *world) make(cfg image.Config, files ...file) *image.Image {
	w.t.Helper()
	t := image.NewTree()
	batch := w.s.Begin(w.t.Context())
	adder := image.NewAdder(batch)
	layer := t.NewLayer()
	for _, f := range files {
		name := strings.TrimSuffix(f.path, "/")
		e := &image.LayerEntry{Path: name}
		if f.hard {
			e.Action, e.Link = image.HardLink, f.link
		} else {
			n := &image.Node{Mode: f.mode, UID: f.uid, GID: f.gid, MtimeS: f.s, MtimeNS: f.ns, Xattrs: f.xattrs, Link: f.link}
			switch {
			case n.Mode == 0 && name != f.path:
				n.Mode = unix.S_IFDIR | 0o755
			case n.Mode == 0 && f.link != "":
				n.Mode = unix.S_IFLNK | 0o777
			case n.Mode == 0:
				n.Mode = unix.S_IFREG | 0o644
			}
			if n.Mode&unix.S_IFMT == unix.S_IFCHR || n.Mode&unix.S_IFMT == unix.S_IFBLK {
				n.Major, n.Minor = 4000, 1_000_000
			}
			if n.IsRegular() {
				r := io.MultiReader(io.LimitReader(zeroReader{}, f.hole), strings.NewReader(f.content))
				require.NoError(w.t, adder.Add(w.t.Context(), n, r, f.hole+int64(len(f.content))))
			}
			e.Node = n
		}
		require.NoError(w.t, layer.Apply(e))
	}
	img, _, err := w.in.Images.Write(w.t.Context(), t, cfg, batch, "default", "")
	require.NoError(w.t, err)
	return img
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// nasty is everything that images have.
func nasty() []file {
	return []file{
		{path: "./", mode: unix.S_IFDIR | 0o700, uid: 1, s: 5, ns: 7},
		{path: "d/", mode: unix.S_IFDIR | 0o1777, uid: 70_000, gid: 4_000_000_000, s: -1, ns: 999_999_999},
		{path: "d/setuid", content: "x", mode: unix.S_IFREG | 0o6755, s: 1 << 33, ns: 1,
			xattrs: map[string]string{"security.capability": "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "user.note": "a\nb=c\x00d", "user.empty": ""}},
		{path: "d/acl", mode: unix.S_IFREG | 0o664, xattrs: map[string]string{
			"system.posix_acl_access": "\x02\x00\x00\x00\x01\x00\x06\x00\xff\xff\xff\xff\x02\x00\x06\x00\x39\x30\x00\x00\x04\x00\x04\x00\xff\xff\xff\xff\x10\x00\x06\x00\xff\xff\xff\xff\x20\x00\x04\x00\xff\xff\xff\xff"}},
		{path: "sparse", hole: 5 << 20, content: "end"},
		{path: "all-hole", hole: 300_000},
		{path: "big", content: strings.Repeat("0123456789", 50_000), s: 1_700_000_000, ns: 123_456_789},
		{path: "e/"},
		{path: "e/link", hard: true, link: "big"},
		{path: "a-link", hard: true, link: "big"},
		{path: "soft", link: "../../nowhere", s: 9},
		{path: "soft-hard", hard: true, link: "soft"},
		{path: "null", mode: unix.S_IFCHR | 0o666}, {path: "disk", mode: unix.S_IFBLK | 0o660}, {path: "pipe", mode: unix.S_IFIFO | 0o600},
		{path: "not-utf8-\xff\xfe", content: "bytes"}, {path: "sp ace\nnewline", content: "n"},
		{path: strings.Repeat("n", 255), content: "long"},
		{path: "deep/" + strings.Repeat(strings.Repeat("p", 200)+"/", 6) + "end", content: "far down"},
		{path: "empty"}, {path: "empty-dir/"},
	}
}

var config = image.Config{
	Env: []string{"PATH=/bin", "A=b"}, Entrypoint: []string{"/e"}, Cmd: []string{"c", "d"}, Workdir: "/w", User: "1:2", Labels: map[string]string{"k": "v"},
}

func (w *world) archive(img *image.Image, o Options) ([]byte, Report) {
	w.t.Helper()
	var b bytes.Buffer
	r, err := w.x.Archive(w.t.Context(), img, &b, o, nil)
	require.NoError(w.t, err)
	left, err := os.ReadDir(w.x.TempDir)
	require.NoError(w.t, err)
	require.Empty(w.t, left)
	return b.Bytes(), r
}

func (w *world) importFrom(path string) importer.Report {
	w.t.Helper()
	r, err := w.in.Import(w.t.Context(), importer.Request{Path: path, Workspace: "default", Name: "again"}, nil)
	require.NoError(w.t, err)
	return r
}

func (w *world) write(b []byte) string {
	p := filepath.Join(w.t.TempDir(), "f")
	require.NoError(w.t, os.WriteFile(p, b, 0o600))
	return p
}

func TestAnExportedImageThatIsImportedIsTheSame(t *testing.T) {
	for name, o := range map[string]Options{
		"gzip": {}, "zstd": {Compression: Zstd}, "none": {Compression: Uncompressed}, "many layers": {LayerBytes: 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			img := w.make(config, nasty()...)
			o.Name = "team/web:1"
			b, r := w.archive(img, o)
			again, _ := w.archive(img, o)
			require.True(t, bytes.Equal(b, again), "equal images give equal bytes")
			require.Empty(t, r.LeftOut)
			if o.LayerBytes == 1 {
				require.Greater(t, r.Layers, 5)
			} else {
				require.Equal(t, 1, r.Layers)
			}

			other := newWorld(t) // where nothing of it is known
			got := other.importFrom(other.write(b))
			require.Equal(t, importer.OCIArchive, got.Kind)
			require.Equal(t, img.Digest, got.Digest)
		})
	}
}

func TestTar(t *testing.T) {
	w := newWorld(t)
	img := w.make(image.Config{}, append(nasty(), file{path: ".wh.name", content: "no whiteout"}, file{path: "sock", mode: unix.S_IFSOCK | 0o755})...)
	var b bytes.Buffer
	r, err := w.x.Tar(t.Context(), img, &b, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"/sock (a socket)"}, r.LeftOut)
	require.EqualValues(t, b.Len(), r.Bytes)
	want := w.make(image.Config{}, append(nasty(), file{path: ".wh.name", content: "no whiteout"})...)
	require.Equal(t, want.Digest, w.importFrom(w.write(b.Bytes())).Digest)
}

// members lists the members of every layer of an exported image.
func members(t *testing.T, b []byte) (layers [][]string) {
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		files[h.Name], err = io.ReadAll(r)
		require.NoError(t, err)
	}
	manifest := string(files["manifest.json"])
	_, list, _ := strings.Cut(manifest, `"Layers":[`)
	list, _, _ = strings.Cut(list, "]")
	for name := range strings.SplitSeq(list, ",") {
		var l []string
		for r := tar.NewReader(bytes.NewReader(files[strings.Trim(name, `"`)])); ; {
			h, err := r.Next()
			if err == io.EOF {
				break
			}
			require.NoError(t, err)
			l = append(l, h.Name)
		}
		layers = append(layers, l)
	}
	return layers
}

func TestLayersOfABaseComeFirst(t *testing.T) {
	w := newWorld(t)
	base := []file{
		{path: "bin/"}, {path: "bin/sh", content: "shell"}, {path: "etc/"}, {path: "etc/conf", content: "1"}, {path: "etc/gone/"}, {path: "etc/gone/f", content: "f"},
		{path: "one", content: "linked"}, {path: "two", hard: true, link: "one"}, {path: "was-dir/"}, {path: "was-dir/f"}, {path: "was-file", content: "f"},
	}
	own := []file{
		{path: "bin/"}, {path: "bin/sh", content: "shell"}, {path: "etc/"}, {path: "etc/conf", content: "2"}, {path: "etc/new", content: "n"},
		{path: "one", content: "linked"}, {path: "bin/three", hard: true, link: "one"}, {path: "two", hard: true, link: "one"},
		{path: "was-dir", content: "now a file"}, {path: "was-file/"}, {path: "was-file/f", content: "x"},
	}
	below, img := w.make(config, base...), w.make(config, own...)
	b, r := w.archive(img, Options{Base: below, Compression: Uncompressed})
	require.Equal(t, 2, r.Layers)
	require.Equal(t, [][]string{
		{"./", "bin/", "bin/sh", "etc/", "etc/conf", "etc/gone/", "etc/gone/f", "one", "two", "was-dir/", "was-dir/f", "was-file"},
		{"./", "bin/", "bin/three", "one", "two", "etc/", "etc/.wh.gone", "etc/conf", "etc/new", "was-dir", "was-file/", "was-file/f"},
	}, members(t, b))
	require.Equal(t, img.Digest, w.importFrom(w.write(b)).Digest)

	alone, _ := w.archive(below, Options{Compression: Uncompressed})
	require.Equal(t, members(t, alone)[0], members(t, b)[0])
	// Nothing above the base is nothing.
	_, same := w.archive(below, Options{Base: below})
	require.Equal(t, 1, same.Layers)
}

func TestAnEmptyImageHasALayer(t *testing.T) {
	w := newWorld(t)
	img := w.make(config)
	b, r := w.archive(img, Options{})
	require.Equal(t, 1, r.Layers)
	require.Equal(t, img.Digest, w.importFrom(w.write(b)).Digest)
}

func TestWhatCannotBeSaidIsRefused(t *testing.T) {
	w := newWorld(t)
	for want, f := range map[string]file{
		`".wh.x" would be taken for a whiteout`: {path: ".wh.x"},
		"a tar cannot hold it":                  {path: "f", xattrs: map[string]string{"user.a=b": "v"}},
	} {
		_, err := w.x.Archive(t.Context(), w.make(config, f), io.Discard, Options{}, nil)
		require.Equal(t, fault.Invalid, fault.ClassOf(err), "%v", err)
		require.ErrorContains(t, err, want)
	}
	_, err := w.x.Archive(t.Context(), w.make(config), io.Discard, Options{Compression: "lzma"}, nil)
	require.ErrorContains(t, err, `the compression "lzma" is not known`)
}

// TestAnyTreeOnAnyBase exports random images on random bases.
func TestAnyTreeOnAnyBase(t *testing.T) {
	w := newWorld(t)
	tree := rapid.Custom(func(t *rapid.T) []file {
		var l []file
		dirs := []string{""}
		regular := []string{}
		for i := range rapid.IntRange(0, 12).Draw(t, "files") {
			p := rapid.SampledFrom(dirs).Draw(t, "dir") + rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "name")
			if slices.ContainsFunc(l, func(f file) bool { return strings.TrimSuffix(f.path, "/") == p }) {
				continue
			}
			f := file{path: p, content: rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "content"), s: rapid.Int64Range(0, 2).Draw(t, "s")}
			switch kind := rapid.IntRange(0, 4).Draw(t, "kind"); {
			case kind == 0 || i == 0:
				f.path, f.content = p+"/", ""
				dirs = append(dirs, f.path)
			case kind == 1:
				f.link, f.content = "target", ""
			case kind == 2 && len(regular) > 0:
				f = file{path: p, hard: true, link: rapid.SampledFrom(regular).Draw(t, "to")}
			default:
				regular = append(regular, p)
			}
			l = append(l, f)
		}
		return l
	})
	rapid.Check(t, func(rt *rapid.T) {
		base, img := w.make(config, tree.Draw(rt, "base")...), w.make(config, tree.Draw(rt, "image")...)
		b, _ := w.archive(img, Options{Base: base, Compression: Uncompressed, LayerBytes: rapid.Int64Range(1, 4).Draw(rt, "layer")})
		require.Equal(rt, img.Digest, w.importFrom(w.write(b)).Digest)
	})
}

// TestUmociUnpacksTheSameFiles has another tool unpack an export: the directory is the image.
func TestUmociUnpacksTheSameFiles(t *testing.T) {
	umoci, err := exec.LookPath("umoci")
	if err != nil {
		t.Skip("umoci is not installed")
	}
	if os.Getuid() != 0 {
		t.Skip("needs root: owners, devices")
	}
	files := slices.DeleteFunc(nasty(), func(f file) bool {
		// 0.4.7 makes hard links to symbolic links copies, and Go's lchtimes cannot go beyond 2262.
		return f.path == "soft-hard"
	})
	for i := range files { // nor does it set extended attributes without a value
		files[i].xattrs = maps.Clone(files[i].xattrs)
		maps.DeleteFunc(files[i].xattrs, func(_, value string) bool { return value == "" })
	}
	for name, o := range map[string]Options{"one layer": {Name: "x"}, "many": {Name: "x", LayerBytes: 1}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			img := w.make(image.Config{}, files...)
			b, _ := w.archive(img, o)
			dir := t.TempDir()
			layout := filepath.Join(dir, "layout")
			require.NoError(t, os.Mkdir(layout, 0o755))
			untar := exec.Command("tar", "-C", layout, "-xf", "-")
			untar.Stdin = bytes.NewReader(b)
			out, err := untar.CombinedOutput()
			require.NoError(t, err, string(out))
			out, err = exec.Command(umoci, "unpack", "--image", layout+":x", filepath.Join(dir, "bundle")).CombinedOutput()
			require.NoError(t, err, string(out))
			r := w.importFrom(filepath.Join(dir, "bundle", "rootfs"))
			require.Equal(t, w.list(img.Digest.String()), w.list(r.Digest.String()))
			require.Equal(t, img.Digest, r.Digest)
		})
	}
}

// list gives the attributes of every file of an image.
func (w *world) list(name string) (l []string) {
	img, err := w.in.Images.Get(w.t.Context(), image.Ref{Workspace: "default", Name: name})
	require.NoError(w.t, err)
	tree, err := img.Tree(w.t.Context())
	require.NoError(w.t, err)
	require.NoError(w.t, tree.Walk(func(p string, n *image.Node) error {
		f := *n.File()
		l = append(l, fmt.Sprintf("%q %o %d:%d %d.%09d %d %q %d:%d %q %v link=%v", p, f.Mode, f.UID, f.GID, f.MtimeS, f.MtimeNS, f.Size, f.Link, f.Major, f.Minor, f.Xattrs, f.Chunks, n.Target != nil))
		return nil
	}))
	return l
}

func (w *world) push(img *image.Image, ref string, o Options) (Report, error) {
	parsed, err := registry.ParseRef(ref, false)
	require.NoError(w.t, err)
	repo, err := w.in.Client.Open(w.t.Context(), parsed, registry.Auth{}, registry.Push)
	if err != nil {
		return Report{}, err
	}
	defer repo.Close()
	return w.x.Push(w.t.Context(), img, repo, o, nil)
}

func TestAPushedImageThatIsPulledIsTheSame(t *testing.T) {
	inner := ggcr.New(ggcr.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)))
	var disturb func(w http.ResponseWriter, r *http.Request) bool
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if disturb == nil || !disturb(rw, r) {
			inner.ServeHTTP(rw, r)
		}
	}))
	t.Cleanup(s.Close)
	host := strings.TrimPrefix(s.URL, "http://")

	w := newWorld(t)
	base := w.make(config, nasty()...)
	img := w.make(config, append(nasty(), file{path: "more", content: "of it"})...)
	r, err := w.push(base, host+"/app:base", Options{})
	require.NoError(t, err)
	require.Equal(t, []any{1, 0}, []any{r.Layers, r.Present})
	r, err = w.push(img, host+"/app:1", Options{Base: base})
	require.NoError(t, err)
	require.Equal(t, []any{2, 1}, []any{r.Layers, r.Present}, "the base is there")
	require.Less(t, r.Sent, int64(2000))
	r, err = w.push(img, host+"/app:2", Options{Base: base})
	require.NoError(t, err)
	require.Equal(t, []any{3, int64(0)}, []any{r.Present, r.Sent})

	other := newWorld(t)
	for tag, want := range map[string]store.Digest{"base": base.Digest, "1": img.Digest, "2": img.Digest} {
		got, err := other.in.Pull(t.Context(), importer.PullRequest{Ref: host + "/app:" + tag, Workspace: "default", Auth: &registry.Auth{}}, nil)
		require.NoError(t, err)
		require.Equal(t, want, got.Digest)
		if tag != "base" {
			require.True(t, strings.HasSuffix(got.Source, "@"+r.Digest), "%s %s", got.Source, r.Digest)
		}
	}

	t.Run("refused", func(t *testing.T) {
		disturb = func(rw http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPost {
				http.Error(rw, `{"errors":[{"code":"DENIED","message":"read only"}]}`, http.StatusForbidden)
			}
			return r.Method == http.MethodPost
		}
		_, err := w.push(img, host+"/other:1", Options{})
		require.Equal(t, fault.Invalid, fault.ClassOf(err), "%v", err)
		require.ErrorContains(t, err, "it answers denied: read only")
		require.Contains(t, fault.HintOf(err), "docker login")
	})
	t.Run("at first not there", func(t *testing.T) {
		fails := 3
		disturb = func(rw http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPut && fails > 0 {
				fails--
				rw.WriteHeader(http.StatusBadGateway)
				return true
			}
			return false
		}
		_, err := w.push(img, host+"/other:1", Options{})
		require.NoError(t, err)
		require.Zero(t, fails)
	})
	t.Run("no place to send to", func(t *testing.T) {
		disturb = func(rw http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPost {
				rw.WriteHeader(http.StatusAccepted)
			}
			return r.Method == http.MethodPost
		}
		_, err := w.push(w.make(config, file{path: "new", content: "it has all blobs of others"}), host+"/third:1", Options{})
		require.Equal(t, fault.Corrupt, fault.ClassOf(err), "%v", err)
	})
	left, err := os.ReadDir(w.x.TempDir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// failing is a store in which one chunk cannot be read.
type failing struct {
	Chunks
	bad store.Digest
}

func (f failing) ReadChunk(ctx context.Context, c store.Chunk, dst []byte) (store.Tier, error) {
	if c.Digest == f.bad {
		return 0, fault.New(fault.Corrupt, "no good copy of %s", c)
	}
	return f.Chunks.ReadChunk(ctx, c, dst)
}

type fullDisk struct{ room int }

func (f *fullDisk) Write(p []byte) (int, error) {
	if f.room -= len(p); f.room < 0 {
		return 0, unix.ENOSPC
	}
	return len(p), nil
}

func TestFaultsEndAnExport(t *testing.T) {
	w := newWorld(t)
	img := w.make(config, nasty()...)
	good := w.x.Chunks
	w.x.Chunks = failing{good, store.Sum([]byte("far down"))}
	_, err := w.x.Archive(t.Context(), img, io.Discard, Options{}, nil)
	require.Equal(t, fault.Corrupt, fault.ClassOf(err), "%v", err)
	require.ErrorContains(t, err, "export image "+img.Digest.Short())
	w.x.Chunks = good
	for _, room := range []int{0, 3000, 10_000} {
		_, err = w.x.Archive(t.Context(), img, &fullDisk{room}, Options{}, nil)
		require.True(t, errors.Is(err, unix.ENOSPC), "%v", err)
		require.Equal(t, fault.DiskFull, fault.ClassOf(err))
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = w.x.Archive(ctx, img, io.Discard, Options{LayerBytes: 1}, func(done, _ int64) {
		if done > 0 {
			cancel()
		}
	})
	cancel()
	require.Equal(t, fault.Cancelled, fault.ClassOf(err), "%v", err)
	left, err := os.ReadDir(w.x.TempDir)
	require.NoError(t, err)
	require.Empty(t, left)
}

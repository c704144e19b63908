package importer

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	ocilayout "github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/image/memo"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is an importer with a store of its own.
type bench struct {
	*Importer
	t      *testing.T
	dir    string
	stores *store.Workspaces
	store  *store.Store // of the workspace default
}

func newBench(t *testing.T) *bench { return newBenchIn(t, t.TempDir()) }

func newBenchIn(t *testing.T, dir string) *bench {
	ctx := t.Context()
	origin, err := store.OpenDir(filepath.Join(dir, "store"))
	require.NoError(t, err)
	stores := storetest.Workspaces(t, store.WorkspacesOptions{Dir: filepath.Join(dir, "local"), Origin: origin})
	images, err := image.Open(ctx, image.Options{Dir: filepath.Join(dir, "images"), Stores: stores})
	require.NoError(t, err)
	m, err := memo.Open(filepath.Join(dir, "imports"))
	require.NoError(t, err)
	tmp := filepath.Join(dir, "tmp")
	require.NoError(t, os.MkdirAll(tmp, 0o700))
	return &bench{&Importer{Images: images, Memo: m, TempDir: tmp}, t, dir, stores, storetest.Store(t, stores, "default")}
}

func (b *bench) do(path string) (Report, error) {
	return b.Import(b.t.Context(), Request{Path: path, Workspace: "default", Name: "test"}, nil)
}

func (b *bench) ok(path string) (Report, *image.Tree) {
	b.t.Helper()
	r, err := b.do(path)
	require.NoError(b.t, err)
	return r, b.tree("test")
}

func (b *bench) tree(name string) *image.Tree {
	b.t.Helper()
	img, err := b.Images.Get(b.t.Context(), image.Ref{Workspace: "default", Name: name})
	require.NoError(b.t, err)
	tree, err := img.Tree(b.t.Context())
	require.NoError(b.t, err)
	return tree
}

// files lists every file below the bench's directory but the store's copy of the
// packs' indexes, which is not content.
func (b *bench) files() []string {
	var l []string
	err := filepath.WalkDir(b.dir, func(p string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && !strings.HasPrefix(e.Name(), "packs.idx") {
			l = append(l, strings.TrimPrefix(p, b.dir))
		}
		return err
	})
	require.NoError(b.t, err)
	return l
}

// content reads a file of an image.
func (b *bench) content(n *image.Node) string {
	var out bytes.Buffer
	for _, c := range n.File().Chunks {
		buf := make([]byte, c.Size)
		if !c.Digest.IsZero() {
			_, err := b.store.ReadChunk(b.t.Context(), c, buf)
			require.NoError(b.t, err)
		}
		out.Write(buf)
	}
	return out.String()
}

// list gives a tree as lines: "path kind mode content".
func (b *bench) list(tree *image.Tree) []string {
	var l []string
	first := map[*image.Node]string{}
	err := tree.Walk(func(p string, n *image.Node) error {
		f := n.File()
		if at, again := first[f]; again {
			l = append(l, p+" = "+at)
			return nil
		}
		switch {
		case f.IsDir():
			l = append(l, fmt.Sprintf("%s/ %o", strings.TrimSuffix(p, "/"), f.Mode&0o7777))
			return nil
		case f.IsSymlink():
			l = append(l, p+" -> "+f.Link)
		case f.IsRegular():
			l = append(l, fmt.Sprintf("%s %o %q", p, f.Mode&0o7777, b.content(f)))
		default:
			l = append(l, fmt.Sprintf("%s %o %d:%d", p, f.Mode, f.Major, f.Minor))
		}
		first[f] = p
		return nil
	})
	require.NoError(b.t, err)
	return l
}

// makeTar makes a tar. Headers get sizes and modes from what is given.
func makeTar(t testing.TB, entries ...entry) []byte {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: 0o644, Size: int64(len(e.data)), Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		switch {
		case e.link != "" && e.hard:
			h.Typeflag, h.Linkname = tar.TypeLink, e.link
		case e.link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
		case strings.HasSuffix(e.name, "/"):
			h.Typeflag, h.Mode = tar.TypeDir, 0o755
		case e.device:
			h.Typeflag, h.Devmajor, h.Devminor = tar.TypeChar, 1, 3
		}
		if e.mode != 0 {
			h.Mode = e.mode
		}
		h.PAXRecords = e.pax
		require.NoError(t, w.WriteHeader(h))
		_, err := io.WriteString(w, e.data)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return buf.Bytes()
}

type entry struct {
	name, data, link string
	hard, device     bool
	mode             int64
	pax              map[string]string
}

// layerOf makes a gzipped layer.
func layerOf(t *testing.T, entries ...entry) v1.Layer {
	b := makeTar(t, entries...)
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil })
	require.NoError(t, err)
	return l
}

func imageOf(t *testing.T, layers ...v1.Layer) v1.Image {
	img, err := mutate.AppendLayers(empty.Image, layers...)
	require.NoError(t, err)
	f, err := img.ConfigFile()
	require.NoError(t, err)
	f = f.DeepCopy()
	f.OS, f.Architecture = "linux", "amd64"
	f.Config = v1.Config{
		Env: []string{"PATH=/bin", "A=b"}, Entrypoint: []string{"/bin/e"}, Cmd: []string{"c"},
		WorkingDir: "/w", User: "1000:1000", Labels: map[string]string{"l": "v"},
	}
	img, err = mutate.ConfigFile(img, f)
	require.NoError(t, err)
	return img
}

// layered is an image whose layers need everything that layers can do.
func layered(t *testing.T) (v1.Image, []string) {
	img := imageOf(t,
		layerOf(t,
			entry{name: "bin/"}, entry{name: "bin/tool", data: "tool", mode: 0o4755},
			entry{name: "bin/same", link: "bin/tool", hard: true},
			entry{name: "etc/"}, entry{name: "etc/gone", data: "1"}, entry{name: "etc/kept", data: "2"},
			entry{name: "opaque/"}, entry{name: "opaque/old", data: "3"},
			entry{name: "link", link: "/etc/kept"},
			entry{name: "big", data: strings.Repeat("0123456789abcdef", 20000)}),
		layerOf(t,
			entry{name: "etc/.wh.gone"},
			entry{name: "opaque/"}, entry{name: "opaque/.wh..wh..opq"}, entry{name: "opaque/new", data: "4"},
			entry{name: "bin/third", link: "bin/tool", hard: true},
			entry{name: "etc/attr", data: "5", pax: map[string]string{"SCHILY.xattr.user.x": "a\x00b"}}),
		layerOf(t, entry{name: "etc/kept", data: "6"}))
	return img, []string{
		"/ 755",
		fmt.Sprintf("/big 644 %q", strings.Repeat("0123456789abcdef", 20000)),
		"/bin/ 755", `/bin/same 4755 "tool"`, "/bin/third = /bin/same", "/bin/tool = /bin/same",
		"/etc/ 755", `/etc/attr 644 "5"`, `/etc/kept 644 "6"`,
		"/link -> /etc/kept",
		"/opaque/ 755", `/opaque/new 644 "4"`,
	}
}

func writeLayout(t *testing.T, images ...v1.Image) string {
	dir := t.TempDir()
	p, err := ocilayout.Write(dir, empty.Index)
	require.NoError(t, err)
	for _, img := range images {
		require.NoError(t, p.AppendImage(img))
	}
	return dir
}

func writeDocker(t *testing.T, img v1.Image, tags ...string) string {
	file := filepath.Join(t.TempDir(), "image.tar")
	refs := map[name.Tag]v1.Image{}
	for _, s := range tags {
		tag, err := name.NewTag(s)
		require.NoError(t, err)
		refs[tag] = img
	}
	require.NoError(t, tarball.MultiWriteToFile(file, refs))
	return file
}

// tarOf packs a directory, as `tar -C DIR -c .` does.
func tarOf(t *testing.T, dir string) []byte {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	require.NoError(t, w.AddFS(os.DirFS(dir)))
	require.NoError(t, w.Close())
	return buf.Bytes()
}

func write(t *testing.T, b []byte) string {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, b, 0o600))
	return file
}

func gzipped(t *testing.T, b []byte) []byte {
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	_, err := w.Write(b)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return buf.Bytes()
}

func zstded(t *testing.T, b []byte) []byte {
	w, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	return w.EncodeAll(b, nil)
}

func TestEveryFormOfAnImageIsTheSameImage(t *testing.T) {
	img, want := layered(t)
	dir := writeLayout(t, img)
	archive := tarOf(t, dir)
	docker := writeDocker(t, img, "web:1")
	dockerBytes, err := os.ReadFile(docker)
	require.NoError(t, err)
	var first store.Digest
	for _, c := range []struct {
		name, path string
		kind       Kind
	}{
		{"layout", dir, OCILayout},
		{"archive", write(t, archive), OCIArchive},
		{"archive.gz", write(t, gzipped(t, archive)), OCIArchive},
		{"archive.zst", write(t, zstded(t, archive)), OCIArchive},
		{"docker", docker, DockerArchive},
		{"docker.gz", write(t, gzipped(t, dockerBytes)), DockerArchive},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			var last, total int64
			r, err := b.Import(t.Context(), Request{Path: c.path, Workspace: "default", Name: "test"}, func(d, n int64) { last, total = d, n })
			require.NoError(t, err)
			require.Equal(t, c.kind, r.Kind)
			require.Equal(t, want, b.list(b.tree("test")))
			require.EqualValues(t, 10, r.Files)
			require.EqualValues(t, 320000+4+1+1+1, r.Bytes)
			require.EqualValues(t, 6, r.Chunks, "two of the big file's are equal")
			require.EqualValues(t, 9, r.NewChunks, "three that later layers hide are stored too")
			require.Positive(t, total)
			require.Equal(t, total, last)
			require.Empty(t, mustRead(t, b.TempDir))

			got, err := b.Images.Get(t.Context(), image.Ref{Workspace: "default", Name: "test"})
			require.NoError(t, err)
			require.Equal(t, image.Config{
				Env: []string{"PATH=/bin", "A=b"}, Entrypoint: []string{"/bin/e"}, Cmd: []string{"c"},
				Workdir: "/w", User: "1000:1000", Labels: map[string]string{"l": "v"},
			}, got.Config())
			if first.IsZero() {
				first = r.Digest
			}
			require.Equal(t, first, r.Digest)
		})
	}
}

func mustRead(t *testing.T, dir string) []string {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestAnUnchangedImageIsNotReadAgain(t *testing.T) {
	img, _ := layered(t)
	b := newBench(t)
	first, _ := b.ok(writeLayout(t, img))

	dir := writeLayout(t, img)
	for _, l := range must(img.Layers()) { // whoever reads a layer notices
		h := must(l.Digest())
		p := filepath.Join(dir, "blobs", h.Algorithm, h.Hex)
		require.NoError(t, os.WriteFile(p, make([]byte, must(l.Size())), 0o600))
	}
	again, err := b.Import(t.Context(), Request{Path: dir, Workspace: "default", Name: "other"}, nil)
	require.NoError(t, err)
	require.Equal(t, first.Digest, again.Digest)
	require.Equal(t, first.Chunks, again.Chunks)
	require.Equal(t, first.Files, again.Files)
	require.Zero(t, again.NewChunks)
	require.Zero(t, again.NewBytes)
	require.Equal(t, b.list(b.tree("test")), b.list(b.tree("other")))

	// Another workspace does not learn what this one has imported.
	_, err = b.Import(t.Context(), Request{Path: dir, Workspace: "else", Name: "x"}, nil)
	require.Equal(t, fault.Corrupt, fault.ClassOf(err), "%v", err)

	// Nor is it answered from memory once the image is gone.
	require.NoError(t, b.Images.Remove(t.Context(), image.Ref{Workspace: "default", Name: first.Digest.String()}))
	_, err = b.do(dir)
	require.Equal(t, fault.Corrupt, fault.ClassOf(err), "%v", err)
	r, _ := b.ok(writeLayout(t, img))
	require.Equal(t, first.Digest, r.Digest)
	require.EqualValues(t, 9, r.NewChunks)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestImportMendsDamageInTheStore(t *testing.T) {
	img, want := layered(t)
	dir := writeLayout(t, img)
	b := newBench(t)
	b.ok(dir)
	for _, p := range b.files() {
		if !strings.HasPrefix(p, "/store/default/packs/") {
			continue
		}
		// The chunks come first in a pack: damage the one in the middle.
		raw, err := os.ReadFile(b.dir + p)
		require.NoError(t, err)
		raw[100] ^= 1
		require.NoError(t, os.Chmod(b.dir+p, 0o600))
		require.NoError(t, os.WriteFile(b.dir+p, raw, 0o600))
	}
	damaged := func() (bad int) {
		require.NoError(t, b.tree("test").Walk(func(_ string, n *image.Node) error {
			for _, c := range n.File().Chunks {
				if _, err := b.store.ReadChunk(t.Context(), c, make([]byte, c.Size)); err != nil {
					require.Equal(t, fault.Corrupt, fault.ClassOf(err))
					bad++
				}
			}
			return nil
		}))
		return bad
	}
	require.NotZero(t, damaged())
	b.ok(dir)
	require.Zero(t, damaged())
	require.Equal(t, want, b.list(b.tree("test")))
}

func TestPlatforms(t *testing.T) {
	amd, arm := imageOf(t, layerOf(t, entry{name: "amd", data: "1"})), imageOf(t, layerOf(t, entry{name: "arm", data: "2"}))
	armFile := must(arm.ConfigFile()).DeepCopy()
	armFile.Architecture = "arm64"
	arm = must(mutate.ConfigFile(arm, armFile))
	index := func(adds ...mutate.IndexAddendum) v1.ImageIndex { return mutate.AppendManifests(empty.Index, adds...) }
	on := func(img mutate.Appendable, arch string) mutate.IndexAddendum {
		a := mutate.IndexAddendum{Add: img}
		if arch != "" {
			a.Descriptor.Platform = &v1.Platform{OS: "linux", Architecture: arch}
		}
		return a
	}
	for _, c := range []struct {
		name  string
		index v1.ImageIndex
		err   string
	}{
		{"the one for this machine", index(on(arm, "arm64"), on(amd, "amd64")), ""},
		{"without a platform", index(on(arm, "arm64"), on(amd, "")), ""},
		{"in an index in an index", index(on(index(on(index(on(amd, "amd64"), on(arm, "arm64")), "")), "")), ""},
		{"an attestation beside it", index(on(amd, "amd64"), mutate.IndexAddendum{Add: imageOf(t), Descriptor: v1.Descriptor{
			Annotations: map[string]string{"vnd.docker.reference.type": "attestation-manifest"}, Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"}}}), ""},
		{"twice the same", index(on(amd, "amd64"), on(amd, "amd64")), ""},
		{"only for another", index(on(arm, "arm64")), "the image is for linux/arm64, and this machine runs linux/amd64"},
		{"only the configuration says so", index(on(arm, "")), "the image is for linux/arm64, and this machine runs linux/amd64"},
		{"none", index(), "it holds no image"},
		{"two", index(on(amd, "amd64"), on(imageOf(t), "amd64")), "it holds 2 images: sha256:"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			dir := t.TempDir()
			_, err := ocilayout.Write(dir, c.index)
			require.NoError(t, err)
			for _, path := range []string{dir, write(t, tarOf(t, dir))} {
				_, err := b.do(path)
				if c.err == "" {
					require.NoError(t, err)
					require.Equal(t, []string{"/ 755", `/amd 644 "1"`}, b.list(b.tree("test")))
					continue
				}
				require.Equal(t, fault.Invalid, fault.ClassOf(err), "%v", err)
				require.ErrorContains(t, err, c.err)
			}
		})
	}
}

func TestDockerArchiveWithSeveralImagesNamesThem(t *testing.T) {
	b := newBench(t)
	file := filepath.Join(t.TempDir(), "two.tar")
	require.NoError(t, tarball.MultiWriteToFile(file, map[name.Tag]v1.Image{
		must(name.NewTag("web:1")): imageOf(t, layerOf(t, entry{name: "a"})),
		must(name.NewTag("db:2")):  imageOf(t, layerOf(t, entry{name: "b"})),
	}))
	_, err := b.do(file)
	require.Equal(t, fault.Invalid, fault.ClassOf(err))
	require.ErrorContains(t, err, "it holds 2 images: ")
	require.ErrorContains(t, err, "web:1")
	require.ErrorContains(t, err, "db:2")
	require.Equal(t, "Say with --tag which one you want.", fault.HintOf(err))
}

// An image of several is asked for by its name, by what follows the repository in it, or by digest.
func TestTag(t *testing.T) {
	web, db := imageOf(t, layerOf(t, entry{name: "web"})), imageOf(t, layerOf(t, entry{name: "db"}))
	saved := filepath.Join(t.TempDir(), "two.tar")
	require.NoError(t, tarball.MultiWriteToFile(saved, map[name.Tag]v1.Image{must(name.NewTag("web:1")): web, must(name.NewTag("localhost:5000/db:2")): db}))
	layout := t.TempDir()
	at, err := ocilayout.Write(layout, empty.Index)
	require.NoError(t, err)
	for ref, img := range map[string]v1.Image{"web:1": web, "localhost:5000/db:2": db} {
		require.NoError(t, at.AppendImage(img, ocilayout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": ref})))
	}
	for kind, path := range map[string]string{"docker archive": saved, "layout": layout, "archived layout": write(t, tarOf(t, layout))} {
		t.Run(kind, func(t *testing.T) {
			b := newBench(t)
			digest := must(web.Digest())
			if kind == "docker archive" {
				digest = must(web.ConfigName())
			}
			for tag, want := range map[string]string{"1": "/web", "web:1": "/web", digest.String(): "/web", "2": "/db", "localhost:5000/db:2": "/db"} {
				_, err := b.Import(t.Context(), Request{Path: path, Tag: tag, Workspace: "default", Name: "test"}, nil)
				require.NoError(t, err)
				require.Equal(t, []string{"/ 755", want + ` 644 ""`}, b.list(b.tree("test")), tag)
			}
			for _, tag := range []string{"3", "web", "eb:1", "sha256:00"} {
				_, err := b.Import(t.Context(), Request{Path: path, Tag: tag, Workspace: "default", Name: "test"}, nil)
				require.Equal(t, fault.NotFound, fault.ClassOf(err), tag)
				require.ErrorContains(t, err, "web:1")
			}
		})
	}
	b := newBench(t)
	for _, path := range []string{t.TempDir(), write(t, makeTar(t, entry{name: "f"}))} {
		_, err := b.Import(t.Context(), Request{Path: path, Tag: "1", Workspace: "default", Name: "test"}, nil)
		require.Equal(t, fault.Invalid, fault.ClassOf(err))
		require.ErrorContains(t, err, "in which nothing has a tag")
	}
}

func TestOldDockerArchive(t *testing.T) {
	layer := makeTar(t, entry{name: "f", data: "x"})
	sum, _, err := v1.SHA256(bytes.NewReader(layer))
	require.NoError(t, err)
	config := []byte(fmt.Sprintf(`{"architecture":"amd64","os":"linux","config":{"Cmd":["x"]},"rootfs":{"type":"layers","diff_ids":[%q,%q]}}`, sum, sum))
	id, _, err := v1.SHA256(bytes.NewReader(config))
	require.NoError(t, err)
	a, z := strings.Repeat("a", 64), strings.Repeat("b", 64)
	manifest := must(json.Marshal([]dockerSave{{Config: id.Hex + ".json", Layers: []string{a + "/layer.tar", z + "/layer.tar"}}}))
	b := newBench(t)
	_, tree := b.ok(write(t, makeTar(t,
		entry{name: a + "/"}, entry{name: a + "/VERSION", data: "1.0"}, entry{name: a + "/json", data: "{}"}, entry{name: a + "/layer.tar", data: string(layer)},
		entry{name: z + "/"}, entry{name: z + "/layer.tar", link: "../" + a + "/layer.tar"},
		entry{name: id.Hex + ".json", data: string(config)}, entry{name: "manifest.json", data: string(manifest)},
		entry{name: "repositories", data: "{}"})))
	require.Equal(t, []string{"/ 755", `/f 644 "x"`}, b.list(tree))
}

func TestRootFilesystemTar(t *testing.T) {
	raw := makeTar(t, entry{name: "./"}, entry{name: "./bin/"}, entry{name: "./bin/.wh.x", data: "a name like any other"},
		entry{name: "./blobs/"}, entry{name: "./dev", device: true}, entry{name: "./manifest.json", data: "[]"})
	for name, b := range map[string][]byte{"plain": raw, "gzip": gzipped(t, raw), "zstd": zstded(t, raw), "bzip2": bzipped(t)} {
		t.Run(name, func(t *testing.T) {
			bench := newBench(t)
			r, tree := bench.ok(write(t, b))
			require.Equal(t, Tar, r.Kind)
			if name == "bzip2" {
				require.Equal(t, []string{"/ 755", `/hello 644 "world\n"`}, bench.list(tree))
				return
			}
			require.Equal(t, []string{"/ 755", "/bin/ 755", `/bin/.wh.x 644 "a name like any other"`, "/blobs/ 755", "/dev 20644 1:3", `/manifest.json 644 "[]"`}, bench.list(tree))
		})
	}
}

// bzipped is a tar with "hello", which says "world": Go writes no bzip2.
func bzipped(t *testing.T) []byte {
	b, err := os.ReadFile("testdata/hello.tar.bz2")
	require.NoError(t, err)
	return b
}

// TestHostileInput: each is refused with one clear message, in its class, and
// leaves nothing behind.
func TestHostileInput(t *testing.T) {
	random := make([]byte, 100_000)
	rng := rand.NewChaCha8([32]byte{1})
	rng.Read(random)
	good := makeTar(t, entry{name: "d/"}, entry{name: "d/f", data: string(random)}, entry{name: "d/g", data: "x"})
	gz := gzipped(t, good)
	flipped := slices.Clone(gz)
	flipped[len(flipped)/2] ^= 0x10
	img, _ := layered(t)
	layout := func(change func(dir string)) string {
		dir := writeLayout(t, img)
		change(dir)
		return dir
	}
	blob := func(dir string, h v1.Hash) string { return filepath.Join(dir, "blobs", h.Algorithm, h.Hex) }
	layer0 := must(must(img.Layers())[0].Digest())
	docker := must(os.ReadFile(writeDocker(t, img, "web:1")))

	type c struct {
		name, path string
		class      fault.Class
		err        string
	}
	cases := []c{
		{"nothing there", filepath.Join(t.TempDir(), "none"), fault.NotFound, "no such file or directory"},
		{"empty file", write(t, nil), fault.Invalid, "the file is empty"},
		{"text", write(t, []byte("hello, this is no archive\n")), fault.Invalid, "it is neither a tar archive nor a directory"},
		{"long text", write(t, bytes.Repeat([]byte("hello\n"), 1000)), fault.Invalid, "it is neither a tar archive nor a directory"},
		{"an empty tar", write(t, make([]byte, 1024)), fault.Invalid, "it is empty"},
		{"gzipped text", write(t, gzipped(t, []byte("hello"))), fault.Invalid, "it is neither a tar archive nor a directory"},
		{"xz", write(t, append([]byte{0xfd, '7', 'z', 'X', 'Z', 0}, random...)), fault.Invalid, "it is compressed with xz, which Brisk does not read"},
		{"zip", write(t, append([]byte("PK\x03\x04"), random...)), fault.Invalid, "it is compressed with zip, which Brisk does not read"},
		{"damaged gzip", write(t, flipped), fault.Invalid, "the gzip data is damaged"},
		{"path above the root", write(t, makeTar(t, entry{name: "a"}, entry{name: "../../etc/passwd", data: "x"})), fault.Invalid, "../../etc/passwd"},
		{"path above the root in the middle", write(t, makeTar(t, entry{name: "a/../../b", data: "x"})), fault.Invalid, "a/../../b"},
		{"hard link out of the root", write(t, makeTar(t, entry{name: "a"}, entry{name: "b", link: "../../etc/passwd", hard: true})), fault.Invalid, "hard link to"},
		{"hard link to a file of the host", write(t, makeTar(t, entry{name: "a"}, entry{name: "b", link: "/etc/passwd", hard: true})), fault.Invalid, "there is no such file"},
		{"a petabyte of hole", write(t, sparseTar(1<<50)), fault.Invalid, "exceed"},
		{"docker archive without its end", write(t, docker[:len(docker)/2]), fault.Invalid, "truncated"},
		{"layer missing", layout(func(d string) { os.Remove(blob(d, layer0)) }), fault.Corrupt, "its layer 1, " + layer0.String() + ", is missing"},
		{"layer cut off", layout(func(d string) { os.Truncate(blob(d, layer0), 100) }), fault.Invalid, "should have"},
		{"layer changed", layout(func(d string) { flip(t, blob(d, layer0)) }), fault.Corrupt, "its content should have the digest " + layer0.String()},
		{"manifest changed", layout(func(d string) { flip(t, blob(d, must(img.Digest()))) }), fault.Corrupt, "its manifest should have the digest"},
		{"configuration changed", layout(func(d string) { flip(t, blob(d, must(img.ConfigName()))) }), fault.Corrupt, "its configuration should have the digest"},
		{"configuration missing", layout(func(d string) { os.Remove(blob(d, must(img.ConfigName()))) }), fault.Corrupt, "is missing"},
		{"index missing", layout(func(d string) { os.Remove(filepath.Join(d, "index.json")) }), fault.Corrupt, "without index.json"},
		{"index no JSON", layout(func(d string) { os.WriteFile(filepath.Join(d, "index.json"), []byte("{"), 0o600) }), fault.Corrupt, "index.json does not read"},
		{"blob a directory", layout(func(d string) {
			os.Remove(blob(d, layer0))
			os.Mkdir(blob(d, layer0), 0o700)
		}), fault.Corrupt, "is not a regular file"},
		{"device", "/dev/null", fault.Invalid, "it is neither a file nor a directory"},
	}
	for n := 1; n < len(good)-1024; n += 9973 {
		cases = append(cases, c{fmt.Sprintf("tar cut at %d", n), write(t, good[:n]), "", ""})
	}
	for _, n := range []int{512, 1024, len(good) - 1024, len(good) - 1536, len(good) - 1025, len(good) - 2048} {
		cases = append(cases, c{fmt.Sprintf("tar cut at %d", n), write(t, good[:n]), "", ""})
	}
	for n := 20; n < len(gz); n += 9973 {
		cases = append(cases, c{fmt.Sprintf("tar.gz cut at %d", n), write(t, gz[:n]), "", ""})
	}
	cases = append(cases, c{"tar.gz without its last byte", write(t, gz[:len(gz)-1]), fault.Invalid, "truncated"})
	for n := 512; n < len(docker)-1024; n += 7777 {
		cases = append(cases, c{fmt.Sprintf("docker cut at %d", n), write(t, docker[:n]), "", ""})
	}

	b := newBench(t)
	before := b.files()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := b.do(c.path)
			require.Error(t, err)
			require.True(t, strings.HasPrefix(err.Error(), "import "+c.path+": "), "%v", err)
			require.NotContains(t, err.Error(), "\n")
			if c.class != "" {
				require.Equal(t, c.class, fault.ClassOf(err), "%v", err)
				require.ErrorContains(t, err, c.err)
			} else {
				require.Contains(t, []fault.Class{fault.Corrupt, fault.Invalid}, fault.ClassOf(err), "%v", err)
				require.Regexp(t, "truncated|cut off|neither a tar|is missing|has no member|it is empty", err.Error())
			}
			require.Equal(t, before, b.files())
			l, err := b.Images.List(t.Context(), "default")
			require.NoError(t, err)
			require.Empty(t, l)
		})
	}
}

func flip(t *testing.T, file string) {
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	b[len(b)/2] ^= 1
	require.NoError(t, os.WriteFile(file, b, 0o600))
}

// sparseTar is a tar with one GNU sparse file of nothing but a hole.
func sparseTar(size int64) []byte {
	var h [512]byte
	copy(h[0:], "hole")
	copy(h[100:], "0000644\x00")
	copy(h[108:], "0000000\x00")
	copy(h[116:], "0000000\x00")
	copy(h[124:], "00000000000\x00")
	copy(h[136:], "00000000000\x00")
	h[156] = 'S'
	copy(h[257:], "ustar  \x00")
	base256 := func(field []byte, v int64) {
		field[0] = 0x80
		for i := len(field) - 1; i > 0; i, v = i-1, v>>8 {
			field[i] = byte(v)
		}
	}
	base256(h[386:398], size) // one piece of data, of no length, at the end
	copy(h[398:], "00000000000\x00")
	base256(h[483:495], size)
	copy(h[148:], "        ")
	sum := 0
	for _, c := range h {
		sum += int(c)
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
	return append(h[:], make([]byte, 1024)...)
}

func TestBombsCostNothing(t *testing.T) {
	b := newBench(t)
	t.Run("hole", func(t *testing.T) {
		const size = 256 << 20
		r, tree := b.ok(write(t, sparseTar(size)))
		require.EqualValues(t, size, r.Bytes)
		require.Zero(t, r.NewBytes)
		require.EqualValues(t, size, must(tree.Lookup("/hole")).Size)
	})
	t.Run("gzip", func(t *testing.T) {
		var buf bytes.Buffer
		gz := gzip.NewWriter(&buf)
		w := tar.NewWriter(gz)
		const size = 16 << 20
		require.NoError(t, w.WriteHeader(&tar.Header{Name: "zeros", Size: size, Mode: 0o644}))
		_, err := io.CopyN(w, zeroReader{}, size)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		require.NoError(t, gz.Close())
		r, _ := b.ok(write(t, buf.Bytes()))
		require.EqualValues(t, size, r.Bytes)
		require.Zero(t, r.NewBytes)
	})
	t.Run("behind the end", func(t *testing.T) {
		before := b.files()
		var buf bytes.Buffer
		gz := gzip.NewWriter(&buf)
		_, err := gz.Write(makeTar(t, entry{name: "f", data: "x"}))
		require.NoError(t, err)
		_, err = io.CopyN(gz, zeroReader{}, maxTrailer+1)
		require.NoError(t, err)
		require.NoError(t, gz.Close())
		_, err = b.do(write(t, buf.Bytes()))
		require.Equal(t, fault.Invalid, fault.ClassOf(err))
		require.ErrorContains(t, err, "follow the end of the tar")
		require.Equal(t, before, b.files())
	})
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestWhatIsHarmlessStaysAsItIs(t *testing.T) {
	b := newBench(t)
	_, tree := b.ok(write(t, makeTar(t,
		entry{name: "out", link: "/../../etc"}, entry{name: "out/file", data: "inside"}, entry{name: "dev", device: true})))
	require.Equal(t, []string{"/ 755", "/dev 20644 1:3", "/etc/ 755", `/etc/file 644 "inside"`, "/out -> /../../etc"}, b.list(tree))
}

func TestNamesAreCheckedFirst(t *testing.T) {
	b := newBench(t)
	for _, r := range []Request{{Path: "/nowhere", Workspace: "default", Name: "no spaces"}, {Path: "/nowhere", Workspace: "../x"}} {
		_, err := b.Import(t.Context(), r, nil)
		require.Equal(t, fault.Invalid, fault.ClassOf(err), "%v", err)
	}
}

func TestCancelLeavesNothing(t *testing.T) {
	img, _ := layered(t)
	for _, path := range []string{writeLayout(t, img), writeDocker(t, img, "a:b"), writeTree(t)} {
		b := newBench(t)
		before := b.files()
		ctx, cancel := context.WithCancel(t.Context())
		_, err := b.Import(ctx, Request{Path: path, Workspace: "default", Name: "x"}, func(done, _ int64) {
			if done > 0 {
				cancel()
			}
		})
		cancel()
		require.Equal(t, fault.Cancelled, fault.ClassOf(err), "%v", err)
		require.Equal(t, before, b.files())
	}
}

func layerOfBytes(t *testing.T, b []byte) v1.Layer {
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil })
	require.NoError(t, err)
	return l
}

package fidelity

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	ocilayout "github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/stretchr/testify/require"
)

const tag = "test"

// entry is one member of a layer's tar.
type entry struct {
	tar.Header
	body string
}

var then = time.Unix(1_600_000_000, 123_456_789)

func member(kind byte, name string, mode int64) entry {
	return entry{Header: tar.Header{Typeflag: kind, Name: name, Mode: mode, ModTime: then, Format: tar.FormatPAX}}
}

func dir(name string) entry { return member(tar.TypeDir, name, 0o755) }

func reg(name, body string) entry {
	e := member(tar.TypeReg, name, 0o644)
	e.body, e.Size = body, int64(len(body))
	return e
}

func symlink(name, to string) entry {
	e := member(tar.TypeSymlink, name, 0o777)
	e.Linkname = to
	return e
}

func hardlink(name, to string) entry {
	e := member(tar.TypeLink, name, 0o644)
	e.Linkname = to
	return e
}

func device(kind byte, name string, major, minor int64) entry {
	e := member(kind, name, 0o600)
	e.Devmajor, e.Devminor = major, minor
	return e
}

func (e entry) owned(uid, gid int) entry { e.Uid, e.Gid = uid, gid; return e }
func (e entry) perm(mode int64) entry    { e.Mode = mode; return e }
func (e entry) at(t time.Time) entry     { e.ModTime = t; return e }
func (e entry) as(f tar.Format) entry    { e.Format = f; return e }
func (e entry) xattr(name, v string) entry {
	records := map[string]string{"SCHILY.xattr." + name: v}
	maps.Copy(records, e.PAXRecords)
	e.PAXRecords = records
	return e
}

// archived is a tar of entries.
func archived(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		require.NoError(t, w.WriteHeader(&e.Header), e.Name)
		_, err := io.WriteString(w, e.body)
		require.NoError(t, err, e.Name)
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

// layer makes a layer of entries.
func layer(t testing.TB, entries ...entry) v1.Layer {
	t.Helper()
	b := archived(t, entries...)
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil },
		tarball.WithMediaType(types.OCILayer))
	require.NoError(t, err)
	return l
}

// layout writes an image of layers as an OCI layout and gives its directory.
func layout(t testing.TB, layers ...v1.Layer) string {
	t.Helper()
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	cfg, err := img.ConfigFile()
	require.NoError(t, err)
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture = "linux", "amd64"
	img, err = mutate.ConfigFile(img, cfg)
	require.NoError(t, err)
	img, err = mutate.AppendLayers(img, layers...)
	require.NoError(t, err)
	at := filepath.Join(t.TempDir(), "layout")
	p, err := ocilayout.Write(at, empty.Index)
	require.NoError(t, err)
	require.NoError(t, p.AppendImage(img, ocilayout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": tag})))
	return at
}

// noise is content that does not compress and differs for each seed.
func noise(seed uint64, n int) string {
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 1})
	b := make([]byte, n)
	_, _ = r.Read(b)
	return string(b)
}

const (
	capability = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	// user::rw- user:1000:rwx group::r-- mask::rwx other::r--
	acl = "\x02\x00\x00\x00" + "\x01\x00\x06\x00\xff\xff\xff\xff" + "\x02\x00\x07\x00\xe8\x03\x00\x00" +
		"\x04\x00\x04\x00\xff\xff\xff\xff" + "\x10\x00\x07\x00\xff\xff\xff\xff" + "\x20\x00\x04\x00\xff\xff\xff\xff"
)

// nasty are images in which something is hard to get right. Each begins with the
// root directory, whose attributes the reference would otherwise invent.
var nasty = map[string]func(t testing.TB) []v1.Layer{
	"attributes": func(t testing.TB) []v1.Layer {
		return []v1.Layer{layer(t, dir("./").perm(0o711).owned(7, 8),
			dir("bin").perm(0o1777),
			reg("bin/setuid", "s").perm(0o4755),
			reg("bin/setgid", "g").perm(0o2755),
			reg("bin/all", "a").perm(0o7777),
			reg("bin/none", "n").perm(0),
			reg("bin/capable", "c").perm(0o755).xattr("security.capability", capability),
			reg("acl", "acl").xattr("system.posix_acl_access", acl).perm(0o674),
			dir("acls").xattr("system.posix_acl_default", acl),
			reg("xattrs", "x").xattr("user.binary", "\x01\xff\x02").xattr("trusted.long", strings.Repeat("v", 2000)),
			symlink("soft", "bin/setuid").owned(3, 4),
			reg("large ids", "i").owned(70_000, 3_000_000_000),
			reg("before 1970", "t").at(time.Unix(-1_000_000, 999_999_999)),
			reg("1970", "t").at(time.Unix(0, 0)),
			reg("after 2038", "t").at(time.Unix(4_000_000_000, 1)),
			device(tar.TypeChar, "null", 1, 3),
			device(tar.TypeBlock, "disk", 259, 65_537),
			member(tar.TypeFifo, "fifo", 0o620),
			reg("empty", ""))}
	},
	"names": func(t testing.TB) []v1.Layer {
		long := strings.Repeat("n", 255)
		return []v1.Layer{layer(t, dir("./"),
			dir(long), reg(long+"/"+long, "long"), dir(long+"/"+strings.Repeat("é", 127)),
			reg(long+"/"+strings.Repeat("é", 127)+"/x", "deep"),
			reg("not UTF-8 \xff\xfe", "bytes").as(tar.FormatGNU),
			reg("new\nline", "n"), reg(" ", "space"), reg("back\\slash", "b"), reg("-rf", "dash"), reg("...", "dots"),
			reg("wh.no", "no whiteout"), reg(".whx", "neither"),
			symlink("far", strings.Repeat("t", 4000)), symlink("self", "self"), symlink("dangling", "/no/such"), symlink("up", "../../../../etc"))}
	},
	"links": func(t testing.TB) []v1.Layer {
		return []v1.Layer{
			layer(t, dir("./"), dir("a"), dir("z"), reg("a/one", "first").perm(0o600).owned(5, 5), hardlink("z/two", "a/one"), hardlink("a/three", "./a/one"),
				symlink("soft", "a/one"), hardlink("soft too", "soft"), member(tar.TypeFifo, "a/fifo", 0o600), hardlink("z/fifo", "a/fifo")),
			// Another name for a file of the layer below; one of its names replaced, one removed.
			layer(t, dir("./"), dir("z"), hardlink("z/four", "z/two"), reg("a/three", "its own"), reg("z/.wh.two", "")),
		}
	},
	"whiteouts": func(t testing.TB) []v1.Layer {
		return []v1.Layer{
			layer(t, dir("./"), dir("gone"), reg("gone/inside", "i"), dir("kept"), reg("kept/x", "x"), reg("kept/y", "y"), dir("emptied"), reg("emptied/a", "a"),
				dir("emptied/b"), reg("emptied/b/c", "c"), reg("file", "f"), dir("again"), reg("again/old", "o"), symlink("link", "kept")),
			layer(t, dir("./"), reg(".wh.gone", ""), dir("kept"), reg("kept/.wh.x", ""), dir("emptied"), reg("emptied/new", "n"), reg("emptied/.wh..wh..opq", ""),
				reg(".wh.file", ""), reg(".wh.again", ""), reg(".wh.never was", ""), reg(".wh.link", "")),
			layer(t, dir("./"), dir("again").perm(0o700), reg("again/new", "n"), reg("gone", "a file now")),
		}
	},
	"changes of kind": func(t testing.TB) []v1.Layer {
		return []v1.Layer{
			layer(t, dir("./"), dir("d2f"), reg("d2f/x", "x"), reg("f2d", "f"), symlink("l2d", "d2f"), dir("d2l"), reg("d2l/x", "x"), reg("f2l", "f"),
				symlink("l2f", "/etc/passwd"), reg("f2n", "n"), dir("mode").perm(0o755), reg("mode/kept", "k"), reg("f2f", noise(1, 300_000))),
			layer(t, dir("./"), reg("d2f", "file"), dir("f2d"), reg("f2d/x", "in"), dir("l2d").perm(0o750), reg("l2d/y", "y"), symlink("d2l", "f2d"), symlink("f2l", "f2d"),
				reg("l2f", "no link"), device(tar.TypeChar, "f2n", 5, 1), dir("mode").perm(0o700).owned(9, 9), reg("f2f", noise(1, 299_999))),
		}
	},
	"twice in one layer": func(t testing.TB) []v1.Layer {
		return []v1.Layer{layer(t, dir("./"), reg("f", "first, and longer"), reg("./f", "second").perm(0o600), dir("d"), reg("d/x", "x"), dir("d/").perm(0o700), reg("d/y", "y"))}
	},
	"content": func(t testing.TB) []v1.Layer {
		return []v1.Layer{layer(t, dir("./"),
			reg("one byte", "1"), reg("block", noise(2, 4096)), reg("block and one", noise(3, 4097)), reg("chunk", noise(4, 128<<10)),
			reg("chunk less one", noise(5, 128<<10-1)), reg("chunk and one", noise(6, 128<<10+1)), reg("three", noise(7, 3*128<<10+17)),
			reg("zeros", strings.Repeat("\x00", 1<<20)), reg("zeros, then one", strings.Repeat("\x00", 1<<20)+"1"), reg("one, then zeros", "1"+strings.Repeat("\x00", 1<<20)),
			reg("same", noise(7, 3*128<<10+17)), reg("same start", noise(7, 2*128<<10)))}
	},
	"deep": func(t testing.TB) []v1.Layer {
		entries, at := []entry{dir("./")}, ""
		for i := range 300 {
			at += fmt.Sprintf("d%d/", i%10)
			entries = append(entries, dir(at))
		}
		return []v1.Layer{layer(t, append(entries, reg(at+"bottom", "b"))...)}
	},
}

func TestNasty(t *testing.T) {
	t.Parallel()
	needRoot(t)
	for name, layers := range nasty {
		t.Run(name, func(t *testing.T) {
			at := layout(t, layers(t)...)
			want, err := survey(unpacked(t, at, tag))
			require.NoError(t, err)
			w := newWorld(t)
			img := w.load(at)
			w.mounts(t, img, func(t *testing.T, root string) { same(t, want, root) })
		})
	}
}

// TestManyInADirectory has GNU tar for a reference, which is quicker at it.
func TestManyInADirectory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	entries := []entry{dir("./"), dir("many")}
	for i := range 100_000 {
		entries = append(entries, reg(fmt.Sprintf("many/%07d", i), ""))
	}
	archive := filepath.Join(t.TempDir(), "many.tar")
	require.NoError(t, os.WriteFile(archive, archived(t, entries...), 0o600))
	src := t.TempDir()
	out, err := exec.Command("tar", "-C", src, "-xpf", archive).CombinedOutput()
	require.NoError(t, err, string(out))
	want, err := survey(src)
	require.NoError(t, err)
	require.Len(t, want, 100_002)
	img := w.load(archive)
	w.mounts(t, img, func(t *testing.T, root string) { same(t, want, root) })
}

// TestSparse compares with the file itself: a tar with holes is read by few tools.
func TestSparse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	src := t.TempDir()
	f, err := os.Create(filepath.Join(src, "sparse"))
	require.NoError(t, err)
	for i, at := range []int64{0, 4095, 5 << 30, 6<<30 - 1} {
		_, err = f.WriteAt([]byte{byte(i + 1)}, at)
		require.NoError(t, err)
	}
	require.NoError(t, f.Truncate(7<<30+123))
	require.NoError(t, f.Close())
	want, err := survey(src)
	require.NoError(t, err)
	img := w.load(src)
	w.mounts(t, img, func(t *testing.T, root string) {
		same(t, want, root)
		f, err := os.Open(filepath.Join(root, "sparse"))
		require.NoError(t, err)
		defer f.Close()
		for i, at := range []int64{0, 4095, 5 << 30, 6<<30 - 1} {
			b := make([]byte, 1)
			_, err := f.ReadAt(b, at)
			require.NoError(t, err)
			require.Equal(t, byte(i+1), b[0])
		}
	})
}

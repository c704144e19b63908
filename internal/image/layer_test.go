package image

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// memory is a chunkSink that keeps everything.
type memory map[store.Digest][]byte

func (m memory) Add(data []byte) (store.Chunk, bool, error) {
	if bytes.Equal(data, zeros[:len(data)]) {
		return store.Chunk{Size: uint32(len(data))}, false, nil
	}
	c := store.Chunk{Digest: store.Sum(data), Size: uint32(len(data))}
	_, known := m[c.Digest]
	m[c.Digest] = bytes.Clone(data)
	return c, !known, nil
}

var zeros [store.ChunkSize]byte

func (m memory) content(n *Node) string {
	var b []byte
	for _, c := range n.File().Chunks {
		if c.Digest.IsZero() {
			b = append(b, make([]byte, c.Size)...)
		} else {
			b = append(b, m[c.Digest]...)
		}
	}
	return string(b)
}

// entries of a test archive.
func file(name, content string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Linkname: content}
}
func dirEntry(name string) tar.Header {
	return tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}
}
func symlink(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777}
}
func hardlink(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to}
}
func whiteoutDevice(name string) tar.Header { return tar.Header{Typeflag: tar.TypeChar, Name: name} }
func opaqueDir(name string) tar.Header {
	h := dirEntry(name)
	h.PAXRecords = map[string]string{"SCHILY.xattr.trusted.overlay.opaque": "y"}
	return h
}

// archive writes entries; the content of a regular file is in its Linkname.
func archive(t testing.TB, entries ...tar.Header) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		content := ""
		if h.Typeflag == tar.TypeReg {
			content, h.Linkname = h.Linkname, ""
			h.Size = int64(len(content))
		}
		require.NoError(t, w.WriteHeader(&h), h.Name)
		_, err := io.WriteString(w, content)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

// list writes a tree down: "/a=content", "/d/", "/l->target", "/h==/a" for a hard link.
func list(t *Tree, m memory) []string {
	var out []string
	first := map[*Node]string{}
	t.Walk(func(p string, n *Node) error {
		f := n.File()
		switch {
		case p == "/":
		case f.IsDir():
			out = append(out, p+"/")
		case first[f] != "":
			out = append(out, p+"=="+first[f])
		case f.IsSymlink():
			out = append(out, p+"->"+f.Link)
		case f.IsRegular():
			out = append(out, p+"="+m.content(f))
		default:
			out = append(out, fmt.Sprintf("%s %o %d:%d", p, f.Mode, f.Major, f.Minor))
		}
		first[f] = p
		return nil
	})
	slices.Sort(out)
	return out
}

func TestApplyTar(t *testing.T) {
	lower := []tar.Header{
		dirEntry("./"), dirEntry("d/"), file("d/a", "lower a"), file("d/b", "lower b"), dirEntry("d/sub"), file("d/sub/c", "lower c"),
		symlink("abs", "/d"), symlink("rel", "d/sub"), symlink("loop", "loop"), symlink("out", "../../d"), hardlink("hard", "d/a"),
	}
	rest := func(without ...string) []string {
		all := []string{"/abs->/d", "/d/", "/d/a=lower a", "/d/b=lower b", "/d/sub/", "/d/sub/c=lower c",
			"/hard==/d/a", "/loop->loop", "/out->../../d", "/rel->d/sub"}
		return slices.DeleteFunc(all, func(s string) bool {
			return slices.ContainsFunc(without, func(w string) bool { return strings.HasPrefix(s, w) })
		})
	}
	plus := func(l []string, more ...string) []string {
		l = append(l, more...)
		slices.Sort(l)
		return l
	}
	long := strings.Repeat("n", 256)
	for name, c := range map[string]struct {
		whiteouts Whiteouts
		layer     []tar.Header
		want      []string
		err       string
	}{
		"nothing":                  {OCI, nil, rest(), ""},
		"last wins":                {OCI, []tar.Header{file("n", "1"), file("n", "2")}, plus(rest(), "/n=2"), ""},
		"dot and absolute":         {OCI, []tar.Header{file("./n", "1"), file("/m", "2"), file("//d/./x/../k", "3")}, plus(rest(), "/n=1", "/m=2", "/d/k=3"), ""},
		"parents are made":         {OCI, []tar.Header{file("p/q/r", "1")}, plus(rest(), "/p/", "/p/q/", "/p/q/r=1"), ""},
		"climbing":                 {OCI, []tar.Header{file("../etc/passwd", "x")}, nil, `entry "../etc/passwd": the name leads outside of the image`},
		"climbing inside":          {OCI, []tar.Header{file("d/../../etc/passwd", "x")}, nil, "the name leads outside of the image"},
		"climbing absolute":        {OCI, []tar.Header{file("/../x", "x")}, nil, "the name leads outside of the image"},
		"long part":                {OCI, []tar.Header{file(long, "x")}, nil, "a part of the name is 256 bytes long; the limit is 255"},
		"long path":                {OCI, []tar.Header{file(strings.Repeat("12345/", 700)+"f", "x")}, nil, "the name is 4201 bytes long; the limit is 4096"},
		"below absolute link":      {OCI, []tar.Header{file("abs/n", "1")}, plus(rest(), "/d/n=1"), ""},
		"below relative link":      {OCI, []tar.Header{file("rel/n", "1")}, plus(rest(), "/d/sub/n=1"), ""},
		"below climbing link":      {OCI, []tar.Header{file("out/n", "1")}, plus(rest(), "/d/n=1"), ""},
		"link to outside":          {OCI, []tar.Header{symlink("esc", "/../../../tmp"), file("esc/n", "1")}, plus(rest(), "/esc->/../../../tmp", "/tmp/", "/tmp/n=1"), ""},
		"below loop":               {OCI, []tar.Header{file("loop/n", "1")}, nil, `entry "loop/n": more than 40 symbolic links on the way: a loop`},
		"two loops":                {OCI, []tar.Header{symlink("l1", "l2"), symlink("l2", "l1"), file("l1/n", "1")}, nil, "a loop"},
		"below a file":             {OCI, []tar.Header{file("d/a/n", "1")}, nil, `entry "d/a/n": it is below a file that is not a directory`},
		"below below a file":       {OCI, []tar.Header{file("d/a/n/m", "1")}, nil, `is below a file that is not a directory`},
		"file over directory":      {OCI, []tar.Header{file("d/sub", "1")}, plus(rest("/d/sub"), "/d/sub=1"), ""},
		"directory over file":      {OCI, []tar.Header{dirEntry("d/b"), file("d/b/n", "1")}, plus(rest("/d/b"), "/d/b/", "/d/b/n=1"), ""},
		"directory over directory": {OCI, []tar.Header{dirEntry("d/sub/")}, rest(), ""},
		"directory over link":      {OCI, []tar.Header{dirEntry("abs")}, plus(rest("/abs"), "/abs/"), ""},
		"file over link":           {OCI, []tar.Header{file("abs", "1")}, plus(rest("/abs"), "/abs=1"), ""},
		"file over root":           {OCI, []tar.Header{file(".", "1")}, nil, "the root must be a directory"},
		"hard link":                {OCI, []tar.Header{hardlink("h", "/d/b")}, plus(rest(), "/h==/d/b"), ""},
		"hard link to link":        {OCI, []tar.Header{hardlink("zabs", "abs")}, plus(rest(), "/zabs==/abs"), ""},
		"hard link below link":     {OCI, []tar.Header{hardlink("h", "rel/c")}, plus(rest(), "/h==/d/sub/c"), ""},
		"hard link to a name":      {OCI, []tar.Header{hardlink("hard2", "hard")}, plus(rest(), "/hard2==/hard"), ""},
		"hard link to itself":      {OCI, []tar.Header{hardlink("d/b", "d/b")}, rest(), ""},
		"hard link to its file":    {OCI, []tar.Header{hardlink("d/a", "hard")}, rest(), ""},
		"hard link to nothing":     {OCI, []tar.Header{hardlink("h", "no/such")}, nil, `entry "h": hard link to "no/such": there is no such file`},
		"hard link to directory":   {OCI, []tar.Header{hardlink("h", "d")}, nil, `hard link to "d": it is a directory`},
		"hard link outside":        {OCI, []tar.Header{hardlink("h", "../../etc/shadow")}, nil, `hard link to "../../etc/shadow": the name leads outside of the image`},
		"hard link survives":       {OCI, []tar.Header{file("d/a", "new a")}, plus(rest("/d/a", "/hard"), "/d/a=new a", "/hard=lower a"), ""},
		"devices": {OCI, []tar.Header{{Typeflag: tar.TypeBlock, Name: "sda", Mode: 0o660, Devmajor: 8, Devminor: 300}, {Typeflag: tar.TypeFifo, Name: "pipe", Mode: 0o600}, whiteoutDevice("zero")},
			plus(rest(), "/pipe 10600 0:0", "/sda 60660 8:300", "/zero 20000 0:0"), ""},

		"OCI whiteout":            {OCI, []tar.Header{file("d/.wh.a", "")}, plus(rest("/d/a", "/hard"), "/hard=lower a"), ""},
		"OCI whiteout of dir":     {OCI, []tar.Header{file("d/.wh.sub", "")}, rest("/d/sub"), ""},
		"OCI whiteout of nothing": {OCI, []tar.Header{file("no/such/.wh.a", ""), file("d/.wh.zz", "")}, rest(), ""},
		"OCI whiteout, then new":  {OCI, []tar.Header{file(".wh.d", ""), dirEntry("d"), file("d/n", "1")}, plus(rest("/d", "/hard"), "/d/", "/d/n=1", "/hard=lower a"), ""},
		"OCI new, then whiteout":  {OCI, []tar.Header{dirEntry("d"), file("d/n", "1"), file(".wh.d", "")}, plus(rest("/d", "/hard"), "/d/", "/d/n=1", "/hard=lower a"), ""},
		"OCI keeps implicit":      {OCI, []tar.Header{file("d/sub/n", "1"), file("d/.wh.sub", "")}, plus(rest("/d/sub/c"), "/d/sub/n=1"), ""},
		"OCI opaque":              {OCI, []tar.Header{file("d/n", "1"), file("d/.wh..wh..opq", ""), file("d/m", "2")}, plus(rest("/d/", "/hard"), "/d/", "/d/n=1", "/d/m=2", "/hard=lower a"), ""},
		"OCI housekeeping":        {OCI, []tar.Header{dirEntry(".wh..wh.plnk"), file(".wh..wh.plnk/1.2", ""), file(".wh..wh.aufs", "")}, rest(), ""},
		"OCI whiteout of dot-dot": {OCI, []tar.Header{file("d/.wh...", "")}, nil, `a whiteout of ".."`},
		"OCI whiteout of no name": {OCI, []tar.Header{file("d/.wh.", "")}, nil, `a whiteout of ""`},
		"OCI whiteout below loop": {OCI, []tar.Header{file("loop/.wh.a", "")}, nil, "a loop"},
		"overlay whiteout":        {Overlay, []tar.Header{whiteoutDevice("d/a")}, plus(rest("/d/a", "/hard"), "/hard=lower a"), ""},
		"overlay whiteout of dir": {Overlay, []tar.Header{whiteoutDevice("d/sub")}, rest("/d/sub"), ""},
		"overlay opaque":          {Overlay, []tar.Header{opaqueDir("d"), file("d/n", "1")}, plus(rest("/d", "/hard"), "/d/", "/d/n=1", "/hard=lower a"), ""},
		"overlay opaque, new":     {Overlay, []tar.Header{opaqueDir("fresh")}, plus(rest(), "/fresh/"), ""},
		"overlay knows no .wh.":   {Overlay, []tar.Header{file("d/.wh.a", "1")}, plus(rest(), "/d/.wh.a=1"), ""},
		"overlay redirect":        {Overlay, []tar.Header{{Typeflag: tar.TypeDir, Name: "r", PAXRecords: map[string]string{"SCHILY.xattr.trusted.overlay.redirect": "/d"}}}, nil, "the overlay was used with redirect, which a layer cannot express"},
		"no whiteouts":            {NoWhiteouts, []tar.Header{file("d/.wh.a", "1"), whiteoutDevice("d/zero")}, plus(rest(), "/d/.wh.a=1", "/d/zero 20000 0:0"), ""},
		"long target":             {OCI, []tar.Header{{Typeflag: tar.TypeSymlink, Name: "l", Linkname: strings.Repeat("x", 4096)}}, nil, "which cannot be"},
		"owner":                   {OCI, []tar.Header{{Typeflag: tar.TypeReg, Name: "o", Uid: -5}}, nil, "owner -5:0 cannot be"},
		"device":                  {OCI, []tar.Header{{Typeflag: tar.TypeChar, Name: "c", Devmajor: 5000}}, nil, "device 5000:0 cannot be"},
		"xattr":                   {OCI, []tar.Header{{Typeflag: tar.TypeReg, Name: "x", PAXRecords: map[string]string{"SCHILY.xattr.user.a": strings.Repeat("v", 70_000)}}}, nil, `entry "x": extended attribute "user.a" has a value of 70000 bytes; the limit is 65535`},
	} {
		t.Run(name, func(t *testing.T) {
			m, tree := memory{}, NewTree()
			_, err := tree.applyTar(t.Context(), bytes.NewReader(archive(t, lower...)), m, LayerOptions{})
			require.NoError(t, err)
			before := list(tree, m)
			parent := tree.Clone()
			_, err = tree.applyTar(t.Context(), bytes.NewReader(archive(t, c.layer...)), m, LayerOptions{Whiteouts: c.whiteouts})
			require.Equal(t, before, list(parent, m), "a clone must not change with its original")
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				require.True(t, fault.Is(err, fault.Invalid), err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, list(tree, m))
			_, _, _, err = encodeTree(tree)
			require.NoError(t, err)
		})
	}
}

func TestApplyTarAttributes(t *testing.T) {
	m, tree := memory{}, NewTree()
	h := file("f", "content")
	h.Mode, h.Uid, h.Gid, h.ModTime, h.Format = 0o6755, 3_000_000_000, 65_536, time.Unix(1_600_000_000, 123_456_789), tar.FormatPAX
	h.PAXRecords = map[string]string{
		"SCHILY.xattr.security.capability":  "\x01\x00\x00\x02\x00",
		"SCHILY.xattr.user.empty":           "",
		"SCHILY.xattr.com.apple.quarantine": "dropped",
		"comment":                           "not an xattr",
	}
	root := dirEntry(".")
	root.Mode, root.Uid = 0o700, 7
	stats, err := tree.applyTar(t.Context(), bytes.NewReader(archive(t, root, h)), m, LayerOptions{})
	require.NoError(t, err)
	require.Equal(t, LayerStats{Entries: 2, Files: 1, Bytes: 7, DroppedXattrs: 1}, stats)
	require.Equal(t, uint32(unix.S_IFDIR|0o700), tree.Root.Mode)
	require.Equal(t, uint32(7), tree.Root.UID)
	require.Equal(t, &Node{
		Name: "f", Mode: unix.S_IFREG | 0o6755, UID: 3_000_000_000, GID: 65_536, MtimeS: 1_600_000_000, MtimeNS: 123_456_789, Size: 7,
		Xattrs: map[string]string{"security.capability": "\x01\x00\x00\x02\x00", "user.empty": ""},
		Chunks: []store.Chunk{{Digest: store.Sum([]byte("content")), Size: 7}},
	}, tree.Root.Children["f"])
}

func TestApplyTarLimits(t *testing.T) {
	b := archive(t, file("a", "12345"), file("b", "12345"), file("c", "12345"))
	for name, c := range map[string]struct {
		opt  LayerOptions
		want string
	}{
		"entries": {LayerOptions{MaxEntries: 2}, "the archive has more than 2 entries"},
		"bytes":   {LayerOptions{MaxBytes: 14}, `entry "c": the files of the archive exceed 14 bytes in all`},
		"exactly": {LayerOptions{MaxEntries: 3, MaxBytes: 15}, ""},
		"drop":    {LayerOptions{MaxBytes: 10, Drop: func(p string) bool { return p == "/b" }}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewTree().applyTar(t.Context(), bytes.NewReader(b), memory{}, c.opt)
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.want)
			require.True(t, fault.Is(err, fault.Invalid), err)
		})
	}
}

// TestApplyTarCutOff cuts an archive everywhere. In the padding between entries that is
// not noticed, since many archives lack the mark of the end; but no file is ever half there.
func TestApplyTarCutOff(t *testing.T) {
	long := "d/long" + strings.Repeat("x", 200)
	b := archive(t, dirEntry("d"), file(long, strings.Repeat("y", 1000)), file("z", "1"))
	for n := range len(b) - 1024 {
		m, tree := memory{}, NewTree()
		_, err := tree.applyTar(t.Context(), bytes.NewReader(b[:n]), m, LayerOptions{})
		if err != nil {
			require.True(t, fault.Is(err, fault.Invalid), "cut at %d: %v", n, err)
			continue
		}
		for path, content := range map[string]string{long: strings.Repeat("y", 1000), "z": "1"} {
			if n, err := tree.Lookup(path); err == nil {
				require.Equal(t, content, m.content(n))
			}
		}
	}
	_, err := NewTree().applyTar(t.Context(), bytes.NewReader(b[:2000]), memory{}, LayerOptions{})
	require.ErrorContains(t, err, "the archive is cut off")
	_, err = NewTree().applyTar(t.Context(), strings.NewReader(strings.Repeat("not a tar ", 200)), memory{}, LayerOptions{})
	require.ErrorContains(t, err, "the archive is damaged, or not a tar")
}

// TestSparseBomb has GNU tar write a file of 10 GiB that is one hole but for its
// end, in both of its formats.
func TestSparseBomb(t *testing.T) {
	gnutar, err := exec.LookPath("tar")
	if err != nil {
		t.Skip("tar is not installed")
	}
	const size = 10<<30 + 5
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "bomb"))
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("fuse!"), size-5)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	for _, format := range []string{"gnu", "posix"} {
		t.Run(format, func(t *testing.T) {
			b, err := exec.Command(gnutar, "-C", dir, "-S", "--format="+format, "-cf", "-", "bomb").Output()
			require.NoError(t, err)
			require.Less(t, len(b), 64<<10)
			m, tree := memory{}, NewTree()
			stats, err := tree.applyTar(t.Context(), bytes.NewReader(b), m, LayerOptions{})
			require.NoError(t, err)
			require.Equal(t, int64(size), stats.Bytes)
			n := tree.Root.Children["bomb"]
			require.Equal(t, int64(size), n.Size)
			require.Len(t, n.Chunks, 10<<30/store.ChunkSize+1)
			require.Equal(t, memory{store.Sum([]byte("fuse!")): []byte("fuse!")}, m)
		})
	}
}

func TestLookup(t *testing.T) {
	m, tree := memory{}, NewTree()
	_, err := tree.applyTar(t.Context(), bytes.NewReader(archive(t,
		file("usr/bin/tool", "tool"), symlink("bin", "usr/bin"), symlink("usr/bin/alias", "../../bin/tool"), hardlink("hard", "usr/bin/tool"), symlink("self", "self"))), m, LayerOptions{})
	require.NoError(t, err)
	for path, want := range map[string]string{
		"/bin/tool": "tool", "usr/bin/tool": "tool", "/hard": "tool", "/../bin/./../bin//tool": "tool",
	} {
		n, err := tree.Lookup(path)
		require.NoError(t, err, path)
		require.Equal(t, want, m.content(n), path)
	}
	n, err := tree.Lookup("/bin/alias")
	require.NoError(t, err)
	require.Equal(t, "../../bin/tool", n.Link)
	n, err = tree.Follow("/bin/alias")
	require.NoError(t, err)
	require.Equal(t, "tool", m.content(n))
	n, err = tree.Lookup("/")
	require.NoError(t, err)
	require.Same(t, tree.Root, n)
	for path, class := range map[string]fault.Class{"/no": fault.NotFound, "/usr/no/x": fault.NotFound, "/hard/x": fault.Invalid, "/self/x": fault.Invalid} {
		_, err := tree.Lookup(path)
		require.True(t, fault.Is(err, class), "%s: %v", path, err)
	}
}

func FuzzApplyTar(f *testing.F) {
	f.Add(archive(f, dirEntry("d"), file("d/a", "content"), symlink("l", "d"), hardlink("h", "l/a"), file("d/.wh.a", ""), whiteoutDevice("w"), opaqueDir("d")), uint8(0))
	f.Fuzz(func(t *testing.T, b []byte, whiteouts uint8) {
		tree := NewTree()
		_, err := tree.applyTar(t.Context(), bytes.NewReader(b), memory{}, LayerOptions{Whiteouts: Whiteouts(whiteouts % 3), MaxBytes: 16 << 20})
		if err != nil {
			require.True(t, fault.Is(err, fault.Invalid), err)
			return
		}
		_, _, _, err = encodeTree(tree)
		require.NoError(t, err)
	})
}

func BenchmarkApplyTar(b *testing.B) {
	var entries []tar.Header
	content := strings.Repeat("some text of a Python module, about 8 KB\n", 200)
	for i := range 5000 {
		entries = append(entries, file(fmt.Sprintf("usr/lib/python3/p%d/m%d.py", i/25, i), content+fmt.Sprint(i)))
	}
	data := archive(b, entries...)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := NewTree().applyTar(b.Context(), bytes.NewReader(data), discard{}, LayerOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// discard hashes and keeps nothing.
type discard struct{}

func (discard) Add(data []byte) (store.Chunk, bool, error) {
	return store.Chunk{Digest: store.Sum(data), Size: uint32(len(data))}, true, nil
}

package erofs_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image/erofs"
	"brisk.dev/brisk/internal/store"
)

// flat writes a tree down, with hard links by the first name of each inode.
func flat(root *erofs.Inode) []string {
	var out []string
	seen := map[*erofs.Inode]string{}
	var walk func(path string, n *erofs.Inode)
	walk = func(path string, n *erofs.Inode) {
		if first, ok := seen[n]; ok {
			out = append(out, fmt.Sprintf("%q = %q", path, first))
			return
		}
		seen[n] = path
		var x []string
		for k, v := range n.Xattrs {
			x = append(x, fmt.Sprintf("%q=%q", k, v))
		}
		slices.Sort(x)
		out = append(out, fmt.Sprintf("%q %o %d:%d %d.%09d %d %d:%d %q %v %v",
			path, n.Mode, n.UID, n.GID, n.MtimeS, n.MtimeNS, n.Size, n.Major, n.Minor, n.Link, x, n.Addrs))
		for _, e := range n.Entries {
			walk(path+"/"+e.Name, e.Inode)
		}
	}
	walk("", root)
	return out
}

func TestRoundTrip(t *testing.T) {
	h := everything(5000)
	m, err := erofs.Encode(h.root, h.blocks())
	require.NoError(t, err)
	again, err := erofs.Encode(everything(5000).root, h.blocks())
	require.NoError(t, err)
	require.True(t, bytes.Equal(m.Bytes, again.Bytes), "equal trees must give equal bytes")

	root, blocks, err := erofs.Decode(m.Bytes)
	require.NoError(t, err)
	require.Equal(t, h.blocks(), blocks)
	require.Equal(t, flat(h.root), flat(root))
}

// TestFormat pins the bytes: a change of format must be meant.
func TestFormat(t *testing.T) {
	h := newHostile()
	h.add("etc/hostname", h.file([]byte("brisk\n")))
	h.add("bin", &erofs.Inode{Mode: unix.S_IFLNK | 0o777, Link: "usr/bin"})
	h.add("x", h.file([]byte("x"))).Xattrs = map[string]string{"user.a": "b"}
	m, err := erofs.Encode(h.seal().root, h.blocks())
	require.NoError(t, err)
	require.Equal(t, 8192, len(m.Bytes))
	require.Equal(t, 5, m.Inodes)
	require.Equal(t, wantRelocs, m.Relocs)
	require.Equal(t, wantSuper, hex.EncodeToString(m.Bytes[1024:1152]))
	require.Equal(t, wantDigest, store.Sum(m.Bytes).String())
}

// TestRelocs checks that the positions are those of the addresses, all and in order.
func TestRelocs(t *testing.T) {
	h := everything(10)
	m, err := erofs.Encode(h.root, h.blocks())
	require.NoError(t, err)
	require.True(t, slices.IsSorted(m.Relocs))

	moved := bytes.Clone(m.Bytes)
	for _, at := range m.Relocs {
		a := uint32(moved[at]) | uint32(moved[at+1])<<8 | uint32(moved[at+2])<<16 | uint32(moved[at+3])<<24
		a += 7
		moved[at], moved[at+1], moved[at+2], moved[at+3] = byte(a), byte(a>>8), byte(a>>16), byte(a>>24)
	}
	want := everything(10)
	seen := map[*erofs.Inode]bool{}
	var shift func(n *erofs.Inode)
	shift = func(n *erofs.Inode) {
		for i, a := range n.Addrs {
			if a != erofs.Hole && !seen[n] {
				n.Addrs[i] = a + 7
			}
		}
		seen[n] = true
		for _, e := range n.Entries {
			shift(e.Inode)
		}
	}
	shift(want.root)
	device, err := erofs.Encode(want.root, h.blocks()+7)
	require.NoError(t, err)
	// The device's size and with it UUID and checksum differ, and are not patched.
	require.True(t, bytes.Equal(device.Bytes[erofs.BlockSize:], moved[erofs.BlockSize:]))
}

func TestLimits(t *testing.T) {
	file := func() *erofs.Inode { return &erofs.Inode{Mode: unix.S_IFREG | 0o644} }
	one := func(name string, n *erofs.Inode) *erofs.Inode {
		d := dir(0o755)
		d.Entries = []erofs.Entry{{Name: name, Inode: n}}
		return d
	}
	with := func(x map[string]string) *erofs.Inode {
		n := file()
		n.Xattrs = x
		return one("f", n)
	}
	many := map[string]string{}
	for i := range 5 {
		many[fmt.Sprintf("user.%d", i)] = strings.Repeat("v", 60_000)
	}
	loop := dir(0o755)
	loop.Entries = []erofs.Entry{{Name: "loop", Inode: loop}}
	twice := dir(0o755)
	twice.Entries = []erofs.Entry{{Name: "b", Inode: file()}, {Name: "a", Inode: file()}}
	deep := dir(0o755)
	for range erofs.MaxDepth + 1 {
		deep = one("d", deep)
	}
	for name, c := range map[string]struct {
		root *erofs.Inode
		want string
	}{
		"no root":         {nil, "the root of an image must be a directory"},
		"root file":       {file(), "the root of an image must be a directory"},
		"long name":       {one(strings.Repeat("n", 256), file()), "the name is 256 bytes long; the limit is 255"},
		"slash":           {one("a/b", file()), "the name contains a slash or a NUL"},
		"NUL":             {one("a\x00b", file()), "the name contains a slash or a NUL"},
		"dot":             {one("..", file()), `/..: ".." cannot be a file's name`},
		"no name":         {one("", file()), `/: "" cannot be a file's name`},
		"nothing":         {one("f", nil), "/f: the name has no file"},
		"unsorted":        {twice, "/a: names are not sorted, or there are two of this one"},
		"loop":            {loop, "/loop: a directory cannot have two names"},
		"deep":            {deep, "directories are nested deeper than 4096"},
		"mode":            {one("f", &erofs.Inode{Mode: 0o644}), "/f: mode 0644 is of no kind of file"},
		"size":            {one("f", &erofs.Inode{Mode: unix.S_IFREG, Size: 1}), "/f: a file of 1 bytes has 0 chunks"},
		"address":         {one("f", &erofs.Inode{Mode: unix.S_IFREG, Size: 4097, Addrs: []uint32{9}}), "/f: chunk 0 lies at block 9 of a device of 10"},
		"no target":       {one("f", &erofs.Inode{Mode: unix.S_IFLNK}), "target is 0 bytes long; 1 to 4095 are possible"},
		"long target":     {one("f", &erofs.Inode{Mode: unix.S_IFLNK, Link: strings.Repeat("l", 4096)}), "target is 4096 bytes long"},
		"device":          {one("f", &erofs.Inode{Mode: unix.S_IFCHR, Major: 4096}), "/f: device 4096:0; the limits are 4095 and 1048575"},
		"time":            {one("f", &erofs.Inode{Mode: unix.S_IFREG, MtimeNS: 1e9}), "/f: a time of 1000000000 nanoseconds"},
		"xattr namespace": {with(map[string]string{"com.apple.quarantine": "q"}), `/f: extended attribute "com.apple.quarantine" has a namespace that EROFS cannot hold`},
		"xattr value":     {with(map[string]string{"user.a": strings.Repeat("v", 65_536)}), `/f: extended attribute "user.a" has a value of 65536 bytes; the limit is 65535`},
		"xattrs":          {with(many), "/f: the extended attributes take 300052 bytes; the limit is 262148"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := erofs.Encode(c.root, 10)
			require.ErrorContains(t, err, c.want)
			require.True(t, fault.Is(err, fault.Invalid), err)
		})
	}
}

// TestDamage flips every bit of every byte (of some, in short): whatever Decode makes of it, it
// returns, and with an error only of the class for damage.
func TestDamage(t *testing.T) {
	h := newHostile()
	h.add("a/file", h.file(bytes.Repeat([]byte("x"), erofs.ChunkSize+1)))
	h.add("a/link", &erofs.Inode{Mode: unix.S_IFLNK | 0o777, Link: "file"}).Xattrs = map[string]string{"trusted.a": "b"}
	h.add("b", h.file([]byte("y")))
	m, err := erofs.Encode(h.seal().root, h.blocks())
	require.NoError(t, err)
	b := bytes.Clone(m.Bytes)
	step := 1
	if testing.Short() {
		step = 13
	}
	for i := 0; i < len(b); i += step {
		for bit := range 8 {
			b[i] ^= 1 << bit
			if _, _, err := erofs.Decode(b); err != nil && !fault.Is(err, fault.Corrupt) {
				t.Fatalf("byte %d, bit %d: %v", i, bit, err)
			} else if err == nil && i >= 1024 && i < 4096 {
				t.Fatalf("byte %d, bit %d: the superblock's checksum has not seen it", i, bit)
			}
			b[i] ^= 1 << bit
		}
	}
	for n := 0; n < len(b); n += step {
		_, _, err := erofs.Decode(b[:n])
		require.True(t, fault.Is(err, fault.Corrupt), "cut to %d: %v", n, err)
	}
}

func TestRandomTrees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const blocks = 1 << 20
		root := genDir(t, 3, blocks, &[]*erofs.Inode{})
		m, err := erofs.Encode(root, blocks)
		if err != nil {
			t.Fatal(err)
		}
		got, n, err := erofs.Decode(m.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if n != blocks || !slices.Equal(flat(root), flat(got)) {
			t.Fatalf("%d blocks\n%s\nbecame\n%s", n, strings.Join(flat(root), "\n"), strings.Join(flat(got), "\n"))
		}
	})
}

func genDir(t *rapid.T, depth int, blocks uint32, files *[]*erofs.Inode) *erofs.Inode {
	n := genAttrs(t, unix.S_IFDIR)
	names := rapid.SliceOfNDistinct(rapid.OneOf(
		rapid.StringMatching(`[!-.0-z]{1,12}`),
		rapid.StringN(1, 200, 255),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 1, 255), func(b []byte) string { return string(b) }),
	).Filter(func(s string) bool { return s != "." && s != ".." && !strings.ContainsAny(s, "/\x00") }), 0, 30, rapid.ID).Draw(t, "names")
	for _, name := range names {
		var c *erofs.Inode
		kind := rapid.IntRange(0, 9).Draw(t, "kind")
		switch {
		case kind == 0 && len(*files) > 0:
			c = rapid.SampledFrom(*files).Draw(t, "hard link")
		case kind <= 2 && depth > 0:
			c = genDir(t, depth-1, blocks, files)
		default:
			c = genFile(t, blocks)
			*files = append(*files, c)
		}
		n.Entries = append(n.Entries, erofs.Entry{Name: name, Inode: c})
	}
	erofs.Sort(n.Entries)
	return n
}

func genFile(t *rapid.T, blocks uint32) *erofs.Inode {
	n := genAttrs(t, rapid.SampledFrom([]uint32{
		unix.S_IFREG, unix.S_IFREG, unix.S_IFREG, unix.S_IFLNK, unix.S_IFCHR, unix.S_IFBLK, unix.S_IFIFO, unix.S_IFSOCK}).Draw(t, "type"))
	switch n.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		n.Size = rapid.OneOf(rapid.Int64Range(0, 1<<20), rapid.Int64Range(0, 3)).Draw(t, "size")
		for range (n.Size + erofs.ChunkSize - 1) / erofs.ChunkSize {
			n.Addrs = append(n.Addrs, rapid.OneOf(rapid.Uint32Range(0, blocks-32), rapid.Just(uint32(erofs.Hole))).Draw(t, "address"))
		}
	case unix.S_IFLNK:
		n.Link = rapid.OneOf(rapid.StringMatching(`[a-z/.]{1,30}`), long(`/`, 3900, 4095)).Draw(t, "target")
	case unix.S_IFCHR, unix.S_IFBLK:
		n.Major, n.Minor = rapid.Uint32Range(0, 4095).Draw(t, "major"), rapid.Uint32Range(0, 1<<20-1).Draw(t, "minor")
	}
	return n
}

func long(of string, from, to int) *rapid.Generator[string] {
	return rapid.Map(rapid.IntRange(from, to), func(n int) string { return strings.Repeat(of, n) })
}

func genAttrs(t *rapid.T, kind uint32) *erofs.Inode {
	n := &erofs.Inode{
		Mode: kind | rapid.Uint32Range(0, 0o7777).Draw(t, "mode"),
		UID:  rapid.Uint32().Draw(t, "uid"), GID: rapid.Uint32().Draw(t, "gid"),
		MtimeS: rapid.Int64().Draw(t, "seconds"), MtimeNS: rapid.Uint32Range(0, 999_999_999).Draw(t, "nanoseconds"),
	}
	if rapid.IntRange(0, 3).Draw(t, "has xattrs") == 0 {
		n.Xattrs = rapid.MapOfN(
			rapid.StringMatching(`(user|trusted|security)\.[a-z.]{1,30}|system\.posix_acl_(access|default)`),
			rapid.OneOf(rapid.StringN(0, 20, 40), long("v", 3000, 9000)), 1, 4).Draw(t, "xattrs")
	}
	return n
}

func FuzzDecode(f *testing.F) {
	h := newHostile() // small seeds: the fuzzer is slow with large ones
	h.add("a/file", h.file(bytes.Repeat([]byte("x"), erofs.ChunkSize+1))).Xattrs = map[string]string{"user.a": "b"}
	h.add("b", h.add("a/link", &erofs.Inode{Mode: unix.S_IFLNK | 0o777, Link: "file"}))
	for i := range 20 {
		h.add(fmt.Sprintf("long/%s%03d", strings.Repeat("z", 252), i), &erofs.Inode{Mode: unix.S_IFIFO})
	}
	m, err := erofs.Encode(h.seal().root, h.blocks())
	require.NoError(f, err)
	f.Add(m.Bytes[erofs.BlockSize:], uint64(m.Inodes), h.blocks())
	m, err = erofs.Encode(dir(0o755), 0)
	require.NoError(f, err)
	f.Add(m.Bytes[erofs.BlockSize:], uint64(1), uint32(0))
	// The input is all but block 0, so that the fuzzer need not guess its checksum.
	f.Fuzz(func(t *testing.T, area []byte, inodes uint64, blocks uint32) {
		b := erofs.Seal(area, inodes, blocks)
		root, n, err := erofs.Decode(b)
		if err != nil {
			require.True(t, fault.Is(err, fault.Corrupt), err)
			return
		}
		// What Decode accepts is a tree that Encode can write, and it is the same tree.
		again, err := erofs.Encode(root, n)
		require.NoError(t, err)
		root2, _, err := erofs.Decode(again.Bytes)
		require.NoError(t, err)
		require.Equal(t, flat(root), flat(root2))
	})
}

func BenchmarkEncode(b *testing.B) {
	h := thirtyThousand()
	for b.Loop() {
		if _, err := erofs.Encode(h.root, h.blocks()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	h := thirtyThousand()
	m, err := erofs.Encode(h.root, h.blocks())
	require.NoError(b, err)
	b.SetBytes(int64(len(m.Bytes)))
	for b.Loop() {
		if _, _, err := erofs.Decode(m.Bytes); err != nil {
			b.Fatal(err)
		}
	}
}

// thirtyThousand is a tree of about the shape of a Python image.
func thirtyThousand() *hostile {
	h := newHostile()
	n := h.file([]byte("x"))
	for i := range 30_000 {
		c := *n
		h.add(fmt.Sprintf("usr/lib/python3/dist-packages/package%d/module_%d.py", i/25, i), &c)
	}
	return h.seal()
}

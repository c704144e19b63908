package erofs_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/image/erofs"
)

// hostile is a tree with everything that is hard to keep, and its device.
type hostile struct {
	root   *erofs.Inode
	device []byte
	dirs   map[string]*erofs.Inode
}

func newHostile() *hostile {
	h := &hostile{root: dir(0o755)}
	h.dirs = map[string]*erofs.Inode{"": h.root}
	return h
}

func dir(perm uint32) *erofs.Inode {
	return &erofs.Inode{Mode: unix.S_IFDIR | perm, MtimeS: 1_700_000_000}
}

// add puts a file at a path, whose directories it makes. It keeps entries unsorted; seal sorts.
func (h *hostile) add(path string, n *erofs.Inode) *erofs.Inode {
	at := strings.LastIndexByte(path, '/')
	parent := h.dir(path[:max(at, 0)])
	parent.Entries = append(parent.Entries, erofs.Entry{Name: path[at+1:], Inode: n})
	if n.Mode&unix.S_IFMT == unix.S_IFDIR {
		h.dirs[path] = n
	}
	return n
}

func (h *hostile) dir(path string) *erofs.Inode {
	if d := h.dirs[path]; d != nil {
		return d
	}
	return h.add(path, dir(0o755))
}

// file makes a regular file with content, in which runs of zeros become holes.
func (h *hostile) file(content []byte) *erofs.Inode {
	n := &erofs.Inode{Mode: unix.S_IFREG | 0o644, Size: int64(len(content)), MtimeS: 1_600_000_000, MtimeNS: 123_456_789}
	for len(content) > 0 {
		c := content[:min(len(content), erofs.ChunkSize)]
		content = content[len(c):]
		if len(bytes.Trim(c, "\x00")) == 0 {
			n.Addrs = append(n.Addrs, erofs.Hole)
			continue
		}
		n.Addrs = append(n.Addrs, uint32(len(h.device)/erofs.BlockSize))
		h.device = append(h.device, c...)
		h.device = append(h.device, make([]byte, -len(h.device)&(erofs.BlockSize-1))...)
	}
	return n
}

func (h *hostile) blocks() uint32 { return uint32(len(h.device) / erofs.BlockSize) }

func (h *hostile) seal() *hostile {
	for _, d := range h.dirs {
		erofs.Sort(d.Entries)
	}
	return h
}

// everything makes the whole zoo, with a directory of many entries.
func everything(many int) *hostile {
	r := rand.New(rand.NewPCG(1, 2))
	random := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	h := newHostile()
	h.root.Xattrs = map[string]string{"trusted.root": "on the root itself"}
	link := func(to string) *erofs.Inode {
		return &erofs.Inode{Mode: unix.S_IFLNK | 0o777, Link: to, MtimeS: 5}
	}

	h.add("empty", h.file(nil))
	h.add("one", h.file([]byte("x")))
	h.add("chunk", h.file(random(erofs.ChunkSize)))
	h.add("chunk+1", h.file(random(erofs.ChunkSize+1)))
	h.add("!before-dot", h.file([]byte("sorts before .")))
	h.add(".hidden", h.file([]byte("sorts after ..")))
	sparse := make([]byte, 5*erofs.ChunkSize+100)
	copy(sparse[2*erofs.ChunkSize:], random(3000))
	h.add("sparse", h.file(sparse))
	huge := h.file(nil) // 6 GiB and a bit, all holes but the first and the last chunk
	huge.Size = 6<<30 + 11
	first, last := h.file(random(erofs.ChunkSize)), h.file(random(11))
	huge.Addrs = make([]uint32, 6<<30/erofs.ChunkSize+1)
	for i := range huge.Addrs {
		huge.Addrs[i] = erofs.Hole
	}
	huge.Addrs[0], huge.Addrs[len(huge.Addrs)-1] = first.Addrs[0], last.Addrs[0]
	h.add("huge", huge)

	hard := h.add("links/a", h.file([]byte("three names")))
	h.add("links/b", hard)
	h.add("else/where", hard)
	soft := h.add("links/soft", link("a"))
	h.add("links/soft2", soft)
	h.add("links/dangling", link("/no/such/file"))
	h.add("links/longest", link("/"+strings.Repeat("x", erofs.MaxLink-1)))
	h.add("links/tail", link(strings.Repeat("y", erofs.BlockSize-64)))

	for i, m := range []uint32{0, 0o4755, 0o2755, 0o1777, 0o7777, 0o400} {
		h.add(fmt.Sprintf("modes/%d", i), h.file([]byte("m"))).Mode = unix.S_IFREG | m
	}
	h.dir("modes/sticky").Mode |= 0o1777
	owned := h.add("owned", h.file([]byte("o")))
	owned.UID, owned.GID = 3_000_000_000, 65_536
	for _, s := range []int64{0, -86_400, 1 << 34} {
		n := h.add(fmt.Sprintf("times/%d", s), h.file([]byte("t")))
		n.MtimeS, n.MtimeNS = s, 999_999_999
	}

	h.add("dev/null", &erofs.Inode{Mode: unix.S_IFCHR | 0o666, Major: 1, Minor: 3})
	h.add("dev/big", &erofs.Inode{Mode: unix.S_IFBLK | 0o600, Major: 4095, Minor: 1<<20 - 1})
	h.add("dev/fifo", &erofs.Inode{Mode: unix.S_IFIFO | 0o600})
	h.add("dev/sock", &erofs.Inode{Mode: unix.S_IFSOCK | 0o700})

	acl := "\x02\x00\x00\x00" + // version 2; entries: user, user 1234, group, mask, other
		"\x01\x00\x06\x00\xff\xff\xff\xff" + "\x02\x00\x04\x00\xd2\x04\x00\x00" + "\x04\x00\x04\x00\xff\xff\xff\xff" +
		"\x10\x00\x04\x00\xff\xff\xff\xff" + "\x20\x00\x04\x00\xff\xff\xff\xff"
	caps := "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	h.add("x/acl", h.file([]byte("acl"))).Xattrs = map[string]string{"system.posix_acl_access": acl}
	h.dir("x/dacl").Xattrs = map[string]string{"system.posix_acl_default": acl}
	h.add("x/caps", h.file([]byte("caps"))).Xattrs = map[string]string{"security.capability": caps}
	for _, n := range []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 100, 4000, 5000, 30_000} {
		x := h.add(fmt.Sprintf("x/value%d", n), h.file(random(2*erofs.ChunkSize+n)))
		x.Xattrs = map[string]string{"user.value": strings.Repeat("v", n), "trusted.t": "t"}
	}
	h.add("x/limit", h.file([]byte("l"))).Xattrs = map[string]string{
		"user." + strings.Repeat("n", erofs.MaxXattrName-5): strings.Repeat("v", erofs.MaxXattrValue), "user.second": "2"}
	h.add("x/link", link("target")).Xattrs = map[string]string{"trusted.on": "a link"}
	h.add("x/biglink", link("target")).Xattrs = map[string]string{"trusted.on": strings.Repeat("v", 4000)}
	bigDir := h.dir("x/dir")
	bigDir.Xattrs = map[string]string{"user.a": strings.Repeat("v", 9000)}
	h.add("x/dir/file", h.file([]byte("in it")))

	h.add("names/"+strings.Repeat("n", 255), h.file([]byte("255")))
	h.add("names/\xff\xfe not UTF-8 \x80", h.file([]byte("8")))
	h.add("names/new\nline and \\", h.file([]byte("n")))
	for i := range 40 {
		h.add(fmt.Sprintf("long/%s%03d", strings.Repeat("z", 252), i), h.file([]byte{byte(i)}))
	}
	h.dir("emptydir")
	deep := "deep"
	for range 200 {
		deep += "/d"
	}
	h.add(deep+"/bottom", h.file([]byte("200 below")))
	for i := range many {
		h.add(fmt.Sprintf("many/%06d", i), hard)
	}
	return h.seal()
}

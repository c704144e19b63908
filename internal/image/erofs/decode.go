package erofs

import (
	"bytes"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// Decode reads what Encode wrote and returns the root and the size of the
// external device in blocks. The result shares no memory with meta.
//
// Its work and memory are linear in len(meta): every byte of the input may be
// part of at most one thing, which a budget enforces, and a directory that is met
// twice is an error, so there are no cycles.
func Decode(meta []byte) (root *Inode, deviceBlocks uint32, err error) {
	d := decoder{meta: meta, budget: int64(len(meta)), seen: map[uint64]*seenInode{}}
	rootNID, inodes, err := d.superblock()
	if err != nil {
		return nil, 0, err
	}
	if root, err = d.directory(rootNID, rootNID); err != nil {
		return nil, 0, err
	}
	if uint64(len(d.seen)) != inodes {
		return nil, 0, corrupt("%d inodes are reachable, the superblock says %d", len(d.seen), inodes)
	}
	for nid, s := range d.seen {
		if s.names != s.nlink {
			return nil, 0, corrupt("inode %d has %d names and a link count of %d", nid, s.names, s.nlink)
		}
	}
	return root, d.deviceBlocks, nil
}

type seenInode struct {
	inode        *Inode
	nlink, names uint32
}

type decoder struct {
	meta         []byte
	budget       int64 // bytes of meta that nothing has used
	depth        int
	seen         map[uint64]*seenInode
	deviceBlocks uint32
}

func corrupt(format string, args ...any) error {
	return fault.New(fault.Corrupt, "EROFS metadata: %s", fmt.Sprintf(format, args...))
}

func (d *decoder) superblock() (root, inodes uint64, err error) {
	m := d.meta
	if len(m) < BlockSize || len(m)%BlockSize != 0 || int64(len(m)) > MaxMetadata {
		return 0, 0, corrupt("%d bytes are not a number of blocks that can be", len(m))
	}
	sb := m[superOffset:]
	switch {
	case le.Uint32(sb) != magic:
		return 0, 0, corrupt("no superblock")
	case le.Uint32(sb[4:]) != checksum(m):
		return 0, 0, corrupt("the superblock's checksum does not match")
	case le.Uint32(sb[8:]) != compat || le.Uint32(sb[80:]) != incompat || sb[12] != blockBits ||
		le.Uint32(sb[40:]) != areaStart/BlockSize || le.Uint16(sb[86:]) != 1 || le.Uint16(sb[88:]) != deviceOffset/deviceSize:
		return 0, 0, corrupt("the superblock has features that Brisk does not write")
	case int64(le.Uint32(sb[36:]))*BlockSize != int64(len(m)):
		return 0, 0, corrupt("it is %d bytes long, the superblock says %d blocks", len(m), le.Uint32(sb[36:]))
	}
	d.deviceBlocks = le.Uint32(m[deviceOffset+64:])
	return uint64(le.Uint16(sb[14:])), le.Uint64(sb[16:]), nil
}

// take checks that [off, off+n) is inside the inode area and unused as far as the
// budget can tell, and returns it.
func (d *decoder) take(off, n int64, what string) ([]byte, error) {
	if off < areaStart || n < 0 || off > int64(len(d.meta))-n {
		return nil, corrupt("%s at %d, %d bytes long, is outside", what, off, n)
	}
	if d.budget -= n; d.budget < 0 {
		return nil, corrupt("%s at %d overlaps something", what, off)
	}
	return d.meta[off : off+n], nil
}

// raw is an inode's fixed part and where things are that follow it.
type raw struct {
	inode  Inode
	layout uint8
	size   int64
	union  uint32
	nlink  uint32
	end    int64 // position behind the xattrs
}

func (d *decoder) raw(nid uint64) (r raw, err error) {
	if nid >= uint64(len(d.meta))/slotSize {
		return r, corrupt("inode %d is outside", nid)
	}
	pos := areaStart + int64(nid)*slotSize
	b, err := d.take(pos, inodeSize, "an inode")
	if err != nil {
		return r, err
	}
	format := le.Uint16(b)
	r.layout = uint8(format >> 1)
	if format&1 == 0 || format>>4 != 0 || le.Uint16(b[6:]) != 0 || le.Uint32(b[20:]) != uint32(nid) {
		return r, corrupt("inode %d is of no form that Brisk writes", nid)
	}
	r.inode = Inode{
		Mode: uint32(le.Uint16(b[4:])), UID: le.Uint32(b[24:]), GID: le.Uint32(b[28:]),
		MtimeS: int64(le.Uint64(b[32:])), MtimeNS: le.Uint32(b[40:]),
	}
	r.size, r.union, r.nlink = int64(le.Uint64(b[8:])), le.Uint32(b[16:]), le.Uint32(b[44:])
	if r.size < 0 || r.inode.MtimeNS >= 1e9 {
		return r, corrupt("inode %d has a size or a time that cannot be", nid)
	}
	r.end = pos + inodeSize
	if count := le.Uint16(b[2:]); count > 0 {
		n := int64(xattrHeader) + 4*(int64(count)-1)
		x, err := d.take(r.end, n, "an inode's xattrs")
		if err != nil {
			return r, err
		}
		if r.inode.Xattrs, err = readXattrs(x[xattrHeader:]); err != nil {
			return r, err
		}
		r.end += n
	}
	return r, nil
}

func readXattrs(b []byte) (map[string]string, error) {
	m := map[string]string{}
	for len(b) > 0 {
		if len(b) < 4 {
			return nil, corrupt("an xattr is cut off")
		}
		nameLen, valueLen := int(b[0]), int(le.Uint16(b[2:]))
		n := int(align(int64(4+nameLen+valueLen), 4))
		if n > len(b) {
			return nil, corrupt("an xattr is cut off")
		}
		name, ok := joinXattr(b[1], string(b[4:4+nameLen]))
		if _, twice := m[name]; !ok || twice || strings.IndexByte(name, 0) >= 0 {
			return nil, corrupt("xattr %q of namespace %d is there twice or cannot be", b[4:4+nameLen], b[1])
		}
		m[name] = string(b[4+nameLen : 4+nameLen+valueLen])
		b = b[n:]
	}
	if len(m) == 0 {
		return nil, corrupt("xattrs without one")
	}
	return m, nil
}

// data returns what a directory or symbolic link consists of.
func (d *decoder) data(r *raw, nid uint64) ([]byte, error) {
	switch r.layout {
	case layoutInline:
		if r.end/BlockSize != (r.end+r.size-1)/BlockSize || r.size > BlockSize {
			return nil, corrupt("inode %d has inline data across blocks", nid)
		}
		return d.take(r.end, r.size, "inline data")
	case layoutPlain:
		return d.take(int64(r.union)*BlockSize, r.size, "data")
	}
	return nil, corrupt("inode %d has data layout %d", nid, r.layout)
}

// file reads an inode that is no directory, or finds it again under another name.
func (d *decoder) file(nid uint64) (*Inode, error) {
	if s := d.seen[nid]; s != nil {
		if s.inode.kind() == unix.S_IFDIR {
			return nil, corrupt("directory %d has two names", nid)
		}
		s.names++
		return s.inode, nil
	}
	r, err := d.raw(nid)
	if err != nil {
		return nil, err
	}
	n := &r.inode
	switch n.kind() {
	case unix.S_IFREG:
		n.Size = r.size
		err = d.addrs(n, &r, nid)
	case unix.S_IFLNK:
		if r.size == 0 || r.size > MaxLink {
			return nil, corrupt("symbolic link %d of %d bytes", nid, r.size)
		}
		var b []byte
		b, err = d.data(&r, nid)
		if n.Link = string(b); bytes.IndexByte(b, 0) >= 0 {
			return nil, corrupt("symbolic link %d has a NUL in it", nid)
		}
	case unix.S_IFCHR, unix.S_IFBLK:
		n.Major, n.Minor = r.union>>8&0xfff, r.union&0xff|r.union>>12&^0xff
		fallthrough
	case unix.S_IFIFO, unix.S_IFSOCK:
		if r.size != 0 || r.layout != layoutPlain {
			return nil, corrupt("special file %d has content", nid)
		}
	default:
		return nil, corrupt("inode %d has mode %#o", nid, n.Mode)
	}
	if err != nil {
		return nil, err
	}
	d.seen[nid] = &seenInode{inode: n, nlink: r.nlink, names: 1}
	return n, nil
}

func (d *decoder) addrs(n *Inode, r *raw, nid uint64) error {
	if n.Size == 0 && r.layout == layoutPlain {
		return nil
	}
	if n.Size == 0 || r.layout != layoutChunks || r.union != chunkFormat {
		return corrupt("file %d of %d bytes has data layout %d", nid, n.Size, r.layout)
	}
	count := (n.Size-1)/ChunkSize + 1
	if count > int64(len(d.meta))/indexSize {
		return corrupt("file %d has %d chunks", nid, count)
	}
	b, err := d.take(align(r.end, indexSize), count*indexSize, "chunk addresses")
	if err != nil {
		return err
	}
	n.Addrs = make([]uint32, count)
	for i := range n.Addrs {
		a, dev := le.Uint32(b[addrInIndex:]), le.Uint32(b)>>16
		blocks := align(min(n.Size-int64(i)*ChunkSize, ChunkSize), BlockSize) / BlockSize
		switch {
		case le.Uint16(b) != 0, a == Hole && dev != 0, a != Hole && dev != 1:
			return corrupt("file %d: address %d is on no device of ours", nid, i)
		case a != Hole && int64(a)+blocks > int64(d.deviceBlocks):
			return corrupt("file %d: chunk %d lies behind the device's end", nid, i)
		}
		n.Addrs[i] = a
		b = b[indexSize:]
	}
	return nil
}

// directory reads a directory and all below it.
func (d *decoder) directory(nid, parent uint64) (*Inode, error) {
	if d.depth++; d.depth > MaxDepth+1 {
		return nil, corrupt("directories are nested deeper than %d", MaxDepth)
	}
	defer func() { d.depth-- }()
	if d.seen[nid] != nil {
		return nil, corrupt("directory %d has two names", nid)
	}
	r, err := d.raw(nid)
	if err != nil {
		return nil, err
	}
	n := &r.inode
	if n.kind() != unix.S_IFDIR {
		return nil, corrupt("inode %d should be a directory", nid)
	}
	self := &seenInode{inode: n, nlink: r.nlink, names: 2}
	d.seen[nid] = self
	b, err := d.data(&r, nid)
	if err != nil {
		return nil, err
	}
	dots, last := 0, ""
	for first := true; len(b) > 0; first = false {
		block := b[:min(len(b), BlockSize)]
		b = b[len(block):]
		err := eachDirent(block, len(b) > 0, func(name string, child uint64, kind uint8) error {
			if !first && name <= last || name == "" {
				return corrupt("directory %d: %q is out of order", nid, name)
			}
			first, last = false, name
			if name == "." || name == ".." {
				if dots++; kind != 2 || name == "." && child != nid || name == ".." && child != parent {
					return corrupt("directory %d: %q leads to inode %d", nid, name, child)
				}
				return nil
			}
			c, err := d.child(nid, child, kind)
			if err != nil {
				return err
			}
			if kind == 2 {
				self.names++
			}
			n.Entries = append(n.Entries, Entry{Name: name, Inode: c})
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if dots != 2 {
		return nil, corrupt("directory %d lacks %q or %q", nid, ".", "..")
	}
	return n, nil
}

func (d *decoder) child(dir, nid uint64, kind uint8) (c *Inode, err error) {
	if kind == 2 {
		return d.directory(nid, dir)
	}
	if c, err = d.file(nid); err != nil {
		return nil, err
	}
	if fileType(c.Mode) != kind {
		return nil, corrupt("directory %d gives inode %d the kind %d", dir, nid, kind)
	}
	return c, nil
}

// eachDirent lists one block of a directory. In a full block, which is any but
// the last, zeros may follow the last name.
func eachDirent(b []byte, full bool, fn func(name string, nid uint64, kind uint8) error) error {
	if len(b) < direntSize {
		return corrupt("a block of a directory is cut off")
	}
	table := int(le.Uint16(b[8:]))
	if table < direntSize || table%direntSize != 0 || table > len(b) {
		return corrupt("a block of a directory has its names at %d", table)
	}
	nameAt := table
	for at := 0; at < table; at += direntSize {
		q := b[at:]
		end := len(b)
		if at+direntSize < table {
			end = int(le.Uint16(q[direntSize+8:]))
		} else if full {
			end = nameAt + len(bytes.TrimRight(b[min(nameAt, len(b)):], "\x00"))
		}
		if int(le.Uint16(q[8:])) != nameAt || end < nameAt || end > len(b) || q[11] != 0 {
			return corrupt("an entry of a directory is malformed")
		}
		name := b[nameAt:end]
		if len(name) > MaxName || bytes.ContainsAny(name, "/\x00") {
			return corrupt("%q cannot be a file's name", name)
		}
		if err := fn(string(name), le.Uint64(q), q[10]); err != nil {
			return err
		}
		nameAt = end
	}
	return nil
}

package erofs

import (
	"fmt"
	"sort"
	"strings"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// Metadata is an encoded tree.
type Metadata struct {
	// Bytes is the filesystem: a whole number of blocks, ready to be mounted.
	Bytes []byte
	// Relocs are the byte offsets in Bytes of all block addresses on the device
	// (32 bits, little endian; holes left out), ascending. Whoever keeps the
	// chunks at other places than the tree said patches these and nothing else:
	// no checksum covers them.
	Relocs []uint32
	// Inodes is how many there are: hard links count once.
	Inodes int
}

// Encode writes a tree whose files lie on a device of deviceBlocks blocks. It
// reads the tree only, so trees may be shared. What EROFS cannot hold is an
// error of class fault.Invalid that names the file and the limit.
func Encode(root *Inode, deviceBlocks uint32) (*Metadata, error) {
	e := encoder{deviceBlocks: deviceBlocks, index: make(map[*Inode]int32)}
	if root == nil || root.kind() != unix.S_IFDIR {
		return nil, fault.New(fault.Invalid, "the root of an image must be a directory")
	}
	if err := e.collect(root, 0); err != nil {
		return nil, err
	}
	if err := e.place(); err != nil {
		return nil, err
	}
	e.write()
	return &Metadata{Bytes: e.out, Relocs: e.relocs, Inodes: len(e.items)}, nil
}

// item is an inode on its way out.
type item struct {
	node    *Inode
	parent  int32 // of a directory: index of the directory above; the root's own
	nlink   uint32
	layout  uint8
	nid     uint32
	xattrs  int64  // bytes in its encoded xattrs
	size    int64  // i_size
	block   uint32 // where the data of layoutPlain begins
	bigData bool   // data is in whole blocks and exists
}

type encoder struct {
	deviceBlocks uint32
	items        []item
	index        map[*Inode]int32 // into items
	path         []string         // of what collect is at, for messages
	dirents      []dirent         // reused
	out          []byte
	relocs       []uint32
	chunks       int
}

type dirent struct {
	name string
	item int32
}

func (e *encoder) invalid(format string, args ...any) error {
	return fault.New(fault.Invalid, "/%s: %s", strings.Join(e.path, "/"), fmt.Sprintf(format, args...))
}

// collect numbers the inodes at and below n, depth first in the order of names,
// and checks all that can be wrong with them.
func (e *encoder) collect(n *Inode, parent int32) error {
	self := int32(len(e.items))
	it := item{node: n, parent: parent, nlink: 1, size: n.Size}
	if err := e.check(n); err != nil {
		return err
	}
	var err error
	if it.xattrs, err = e.xattrSize(n.Xattrs); err != nil {
		return err
	}
	switch n.kind() {
	case unix.S_IFDIR:
		it.nlink, it.size = 2, 0
	case unix.S_IFLNK:
		it.size = int64(len(n.Link))
	case unix.S_IFREG:
		e.chunks += len(n.Addrs)
	default:
		it.size = 0
	}
	e.index[n] = self
	e.items = append(e.items, it)
	if n.kind() != unix.S_IFDIR {
		return nil
	}
	if len(e.path) >= MaxDepth {
		return e.invalid("directories are nested deeper than %d", MaxDepth)
	}
	for i, entry := range n.Entries {
		e.path = append(e.path, entry.Name)
		if err := e.checkName(entry.Name); err != nil {
			return err
		}
		if i > 0 && n.Entries[i-1].Name >= entry.Name {
			return e.invalid("names are not sorted, or there are two of this one")
		}
		if entry.Inode == nil {
			return e.invalid("the name has no file")
		}
		isDir := entry.Inode.kind() == unix.S_IFDIR
		if at, seen := e.index[entry.Inode]; seen {
			if isDir {
				return e.invalid("a directory cannot have two names")
			}
			e.items[at].nlink++
		} else if err := e.collect(entry.Inode, self); err != nil {
			return err
		}
		if isDir {
			e.items[self].nlink++
		}
		e.path = e.path[:len(e.path)-1]
	}
	return nil
}

func (e *encoder) checkName(name string) error {
	switch {
	case name == "" || name == "." || name == "..":
		return e.invalid("%q cannot be a file's name", name)
	case len(name) > MaxName:
		return e.invalid("the name is %d bytes long; the limit is %d", len(name), MaxName)
	case strings.ContainsAny(name, "/\x00"):
		return e.invalid("the name contains a slash or a NUL")
	}
	return nil
}

func (e *encoder) check(n *Inode) error {
	if fileType(n.Mode) == 0 || n.Mode > 0xffff {
		return e.invalid("mode %#o is of no kind of file", n.Mode)
	}
	if n.MtimeNS >= 1e9 {
		return e.invalid("a time of %d nanoseconds", n.MtimeNS)
	}
	switch n.kind() {
	case unix.S_IFREG:
		if n.Size < 0 || int64(len(n.Addrs)) != chunksOf(n.Size) {
			return e.invalid("a file of %d bytes has %d chunks", n.Size, len(n.Addrs))
		}
		for i, a := range n.Addrs {
			if a == Hole {
				continue
			}
			size := min(n.Size-int64(i)*ChunkSize, ChunkSize)
			if int64(a)+align(size, BlockSize)/BlockSize > int64(e.deviceBlocks) {
				return e.invalid("chunk %d lies at block %d of a device of %d", i, a, e.deviceBlocks)
			}
		}
	case unix.S_IFLNK:
		if l := len(n.Link); l == 0 || l > MaxLink {
			return e.invalid("the symbolic link's target is %d bytes long; 1 to %d are possible", l, MaxLink)
		}
		if strings.IndexByte(n.Link, 0) >= 0 {
			return e.invalid("the symbolic link's target contains a NUL")
		}
	case unix.S_IFCHR, unix.S_IFBLK:
		if n.Major >= 1<<12 || n.Minor >= 1<<20 {
			return e.invalid("device %d:%d; the limits are 4095 and 1048575", n.Major, n.Minor)
		}
	}
	return nil
}

func (e *encoder) xattrSize(m map[string]string) (int64, error) {
	if len(m) == 0 {
		return 0, nil
	}
	size := int64(xattrHeader)
	for name, value := range m {
		if err := XattrFits(name, value); err != nil {
			return 0, e.invalid("%s", err)
		}
		_, suffix, _ := splitXattr(name)
		size += align(int64(4+len(suffix)+len(value)), 4)
	}
	if size > MaxXattrs {
		return 0, e.invalid("the extended attributes take %d bytes; the limit is %d", size, MaxXattrs)
	}
	return size, nil
}

// place gives every inode its number and all data inside the metadata its blocks.
func (e *encoder) place() error {
	pos := int64(areaStart + firstNID*slotSize)
	for i := range e.items {
		it := &e.items[i]
		head, tail := inodeSize+it.xattrs, int64(0)
		switch it.node.kind() {
		case unix.S_IFREG:
			if it.size > 0 {
				it.layout = layoutChunks
				head, tail = align(head, indexSize), int64(len(it.node.Addrs))*indexSize
			}
		case unix.S_IFDIR:
			l := e.entries(int32(i))
			_, it.size = dirSplit(len(l), func(i int) int { return len(l[i].name) })
			tail = e.inline(it, head)
		case unix.S_IFLNK:
			tail = e.inline(it, head)
		}
		// An inode must not straddle blocks, nor may inline data or what leads to
		// it: kernels before 6.13 refuse such symbolic links.
		if room := BlockSize - pos%BlockSize; room < inodeSize || it.layout == layoutInline && room < head+tail {
			pos = align(pos, BlockSize)
		}
		it.nid = uint32((pos - areaStart) / slotSize)
		pos = align(pos+head+tail, slotSize)
		if pos > MaxMetadata {
			return e.tooBig()
		}
	}
	pos = align(pos, BlockSize)
	for i := range e.items {
		if it := &e.items[i]; it.bigData {
			it.block = uint32(pos / BlockSize)
			pos += align(it.size, BlockSize)
			if pos > MaxMetadata {
				return e.tooBig()
			}
		}
	}
	e.out = make([]byte, pos)
	e.relocs = make([]uint32, 0, e.chunks)
	return nil
}

func (e *encoder) tooBig() error {
	return fault.New(fault.Invalid, "the image has too many files: its metadata would exceed %d bytes", int64(MaxMetadata))
}

// inline decides where the data of a directory or symbolic link goes, and returns
// how much of it follows the inode.
func (e *encoder) inline(it *item, head int64) int64 {
	if head+it.size <= BlockSize {
		it.layout = layoutInline
		return it.size
	}
	it.layout, it.bigData = layoutPlain, true
	return 0
}

// entries lists a directory with "." and ".." at their places in the order of
// bytes. The result is valid until the next call.
func (e *encoder) entries(dir int32) []dirent {
	l := e.dirents[:0]
	special := []dirent{{".", dir}, {"..", e.items[dir].parent}}
	for _, entry := range e.items[dir].node.Entries {
		for len(special) > 0 && special[0].name < entry.Name {
			l, special = append(l, special[0]), special[1:]
		}
		l = append(l, dirent{entry.Name, e.index[entry.Inode]})
	}
	e.dirents = append(l, special...)
	return e.dirents
}

func (e *encoder) write() {
	for i := range e.items {
		e.writeInode(int32(i))
	}
	writeSuper(e.out, uint64(len(e.items)), e.deviceBlocks)
}

// writeSuper fills block 0 of a filesystem that is complete otherwise.
func writeSuper(out []byte, inodes uint64, deviceBlocks uint32) {
	sb := out[superOffset:]
	le.PutUint32(sb, magic)
	le.PutUint32(sb[8:], compat)
	sb[12] = blockBits
	le.PutUint16(sb[14:], firstNID)
	le.PutUint64(sb[16:], inodes)
	le.PutUint32(sb[36:], uint32(len(out)/BlockSize))
	le.PutUint32(sb[40:], areaStart/BlockSize)
	le.PutUint32(sb[80:], incompat)
	le.PutUint16(sb[86:], 1)
	le.PutUint16(sb[88:], deviceOffset/deviceSize)
	le.PutUint32(out[deviceOffset+64:], deviceBlocks)
	sum := blake3.Sum256(out)
	copy(sb[48:64], sum[:])
	sb[48+6] = sb[48+6]&0x0f | 0x80 // UUID version 8: of the maker's own making
	sb[48+8] = sb[48+8]&0x3f | 0x80
	le.PutUint32(sb[4:], checksum(out))
}

func (e *encoder) writeInode(i int32) {
	it := &e.items[i]
	n := it.node
	pos := areaStart + int64(it.nid)*slotSize
	b := e.out[pos:]
	le.PutUint16(b, 1|uint16(it.layout)<<1)
	if it.xattrs > 0 {
		le.PutUint16(b[2:], uint16((it.xattrs-xattrHeader)/4+1))
		writeXattrs(b[inodeSize+xattrHeader:], n.Xattrs)
	}
	le.PutUint16(b[4:], uint16(n.Mode))
	le.PutUint64(b[8:], uint64(it.size))
	le.PutUint32(b[20:], it.nid)
	le.PutUint32(b[24:], n.UID)
	le.PutUint32(b[28:], n.GID)
	le.PutUint64(b[32:], uint64(n.MtimeS))
	le.PutUint32(b[40:], n.MtimeNS)
	le.PutUint32(b[44:], it.nlink)

	data := b[inodeSize+it.xattrs:]
	if it.bigData {
		le.PutUint32(b[16:], it.block)
		data = e.out[int64(it.block)*BlockSize:]
	}
	switch n.kind() {
	case unix.S_IFREG:
		if it.layout == layoutChunks {
			le.PutUint32(b[16:], chunkFormat)
			head := align(inodeSize+it.xattrs, indexSize)
			e.writeAddrs(n.Addrs, pos+head)
		}
	case unix.S_IFDIR:
		writeDir(data, e.entries(i), e.items)
	case unix.S_IFLNK:
		copy(data, n.Link)
	case unix.S_IFCHR, unix.S_IFBLK:
		le.PutUint32(b[16:], n.Minor&0xff|n.Major<<8|n.Minor&^0xff<<12)
	}
}

func (e *encoder) writeAddrs(addrs []uint32, pos int64) {
	for _, a := range addrs {
		b := e.out[pos:]
		le.PutUint32(b[addrInIndex:], a)
		if a != Hole {
			le.PutUint16(b[2:], 1) // the first external device
			e.relocs = append(e.relocs, uint32(pos+addrInIndex))
		}
		pos += indexSize
	}
}

func writeDir(out []byte, l []dirent, items []item) {
	starts, _ := dirSplit(len(l), func(i int) int { return len(l[i].name) })
	for bi, from := range starts {
		to := len(l)
		if bi+1 < len(starts) {
			to = starts[bi+1]
		}
		b := out[bi*BlockSize:]
		nameAt := (to - from) * direntSize
		for i, d := range l[from:to] {
			q := b[i*direntSize:]
			le.PutUint64(q, uint64(items[d.item].nid))
			le.PutUint16(q[8:], uint16(nameAt))
			q[10] = fileType(items[d.item].node.Mode)
			nameAt += copy(b[nameAt:], d.name)
		}
	}
}

func writeXattrs(b []byte, m map[string]string) {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		index, suffix, _ := splitXattr(name)
		value := m[name]
		b[0], b[1] = uint8(len(suffix)), index
		le.PutUint16(b[2:], uint16(len(value)))
		copy(b[4:], suffix)
		copy(b[4+len(suffix):], value)
		b = b[align(int64(4+len(suffix)+len(value)), 4):]
	}
}

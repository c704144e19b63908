package erofs

import (
	"fmt"
	"math"
	"sort"

	"golang.org/x/sys/unix"
)

// Sizes of the format.
const (
	BlockSize = 4 << 10   // bytes in a block, of the metadata and of the device
	ChunkSize = 128 << 10 // bytes of a file that one address covers
)

// Hole is the address of a chunk that is all zeros and lies nowhere.
const Hole = math.MaxUint32

// Limits of the format (names, xattrs) and of this package (depth).
const (
	MaxName       = 255                        // bytes in an entry's name
	MaxLink       = 4095                       // bytes in a symbolic link's target, as Linux has it
	MaxXattrName  = 255                        // bytes in an xattr's name after its namespace
	MaxXattrValue = 65535                      // bytes in an xattr's value
	MaxXattrs     = xattrHeader + 4*(0xffff-1) // bytes in all xattrs of an inode, encoded
	MaxDepth      = 4096                       // directories below one another
	MaxMetadata   = 1<<32 - BlockSize          // bytes of it, so that a position fits 32 bits
)

// Inode is one file of any kind. Fields that do not apply to its kind are zero.
type Inode struct {
	Mode    uint32 // S_IFMT bits and the 12 permission bits
	UID     uint32
	GID     uint32
	MtimeS  int64  // seconds since 1970
	MtimeNS uint32 // and nanoseconds, below 1e9
	Size    int64  // bytes, of a regular file
	Major   uint32 // of a device, below 2^12
	Minor   uint32 // of a device, below 2^20
	Link    string // target of a symbolic link, 1 to MaxLink bytes
	Xattrs  map[string]string
	Addrs   []uint32 // of a regular file: a device block for every ChunkSize bytes begun, or Hole
	Entries []Entry  // of a directory: sorted by name, without "." and ".."
}

// Entry is a name in a directory. Several entries with the same Inode are hard links.
type Entry struct {
	Name  string
	Inode *Inode
}

// Sort puts entries into the order that Encode asks for.
func Sort(entries []Entry) {
	sort.Slice(entries, func(i, j int) bool { return entries[i].Name < entries[j].Name })
}

func (n *Inode) kind() uint32 { return n.Mode & unix.S_IFMT }

// chunksOf is the number of addresses of a file of size bytes.
func chunksOf(size int64) int64 { return (size + ChunkSize - 1) / ChunkSize }

// fileType is the kind as directory entries have it; 0 is no kind.
func fileType(mode uint32) uint8 {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return 1
	case unix.S_IFDIR:
		return 2
	case unix.S_IFCHR:
		return 3
	case unix.S_IFBLK:
		return 4
	case unix.S_IFIFO:
		return 5
	case unix.S_IFSOCK:
		return 6
	case unix.S_IFLNK:
		return 7
	}
	return 0
}

// namespaces are the xattr prefixes that EROFS has numbers for.
var namespaces = []struct {
	prefix string
	index  uint8
	whole  bool // the prefix is the full name
}{
	{"user.", 1, false},
	{"system.posix_acl_access", 2, true},
	{"system.posix_acl_default", 3, true},
	{"trusted.", 4, false},
	{"security.", 6, false},
}

// XattrFits reports why an extended attribute cannot be kept, or nil.
func XattrFits(name, value string) error {
	_, suffix, ok := splitXattr(name)
	switch {
	case !ok:
		return fmt.Errorf("extended attribute %q has a namespace that EROFS cannot hold", name)
	case len(suffix) > MaxXattrName:
		return fmt.Errorf("extended attribute %.40q... has a name of %d bytes; the limit is %d", name, len(suffix), MaxXattrName)
	case len(value) > MaxXattrValue:
		return fmt.Errorf("extended attribute %q has a value of %d bytes; the limit is %d", name, len(value), MaxXattrValue)
	}
	return nil
}

func splitXattr(name string) (index uint8, suffix string, ok bool) {
	for _, ns := range namespaces {
		switch {
		case ns.whole && name == ns.prefix:
			return ns.index, "", true
		case !ns.whole && len(name) > len(ns.prefix) && name[:len(ns.prefix)] == ns.prefix:
			return ns.index, name[len(ns.prefix):], true
		}
	}
	return 0, "", false
}

func joinXattr(index uint8, suffix string) (name string, ok bool) {
	for _, ns := range namespaces {
		if ns.index == index && ns.whole == (suffix == "") {
			return ns.prefix + suffix, true
		}
	}
	return "", false
}

// XattrKnown reports whether the name is in a namespace that EROFS has.
func XattrKnown(name string) bool {
	_, _, ok := splitXattr(name)
	return ok
}

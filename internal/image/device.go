package image

import (
	"math"
	"sort"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image/erofs"
	"brisk.dev/brisk/internal/store"
)

// device is the order of an image's chunks and where each begins.
type device struct {
	chunks []store.Chunk
	starts []uint32 // block at which each begins, and at the end the size in blocks
}

func newDevice(chunks []store.Chunk) (*device, error) {
	d := &device{chunks: chunks, starts: make([]uint32, 1, len(chunks)+1)}
	if len(chunks) > maxTableCount {
		return nil, fault.New(fault.Invalid, "the image is too large: it has %d chunks, the limit is %d", len(chunks), maxTableCount)
	}
	at := uint64(0)
	for _, c := range chunks {
		at += uint64(blocksOf(c.Size))
		if at >= math.MaxUint32 {
			return nil, fault.New(fault.Invalid, "the image is too large: its distinct content must stay below 16 TiB")
		}
		d.starts = append(d.starts, uint32(at))
	}
	return d, nil
}

func blocksOf(size uint32) uint32 { return (size + store.BlockSize - 1) / store.BlockSize }

// blocks is the device's size.
func (d *device) blocks() uint32 { return d.starts[len(d.starts)-1] }

// at finds the chunk that has a block, which must be inside the device.
func (d *device) at(block uint32) int {
	return sort.Search(len(d.chunks), func(i int) bool { return d.starts[i+1] > block })
}

// encoding is a tree on its way to EROFS.
type encoding struct {
	inodes map[*Node]*erofs.Inode // of files with several names
	addrs  map[store.Digest]uint32
	chunks []store.Chunk
	next   uint64
	files  int64
	bytes  int64
}

// encodeTree lays out the device in the order in which a walk by names meets
// chunks, and makes the metadata.
func encodeTree(t *Tree) (*erofs.Metadata, *device, *encoding, error) {
	if t == nil || t.Root == nil || !t.Root.IsDir() {
		return nil, nil, nil, fault.New(fault.Invalid, "an image without a root directory")
	}
	e := &encoding{inodes: map[*Node]*erofs.Inode{}, addrs: map[store.Digest]uint32{}}
	eachLink(t.Root, func(file *Node) { e.inodes[file] = nil })
	root, err := e.inode(t.Root)
	if err != nil {
		return nil, nil, nil, err
	}
	dev, err := newDevice(e.chunks)
	if err != nil {
		return nil, nil, nil, err
	}
	e.inodes, e.addrs, e.chunks = nil, nil, nil // of a large image they are much, and what follows needs more
	meta, err := erofs.Encode(root, dev.blocks())
	return meta, dev, e, err
}

func (e *encoding) inode(n *Node) (*erofs.Inode, error) {
	n = n.File()
	known, shared := e.inodes[n]
	if known != nil {
		return known, nil
	}
	ino := &erofs.Inode{
		Mode: n.Mode, UID: n.UID, GID: n.GID, MtimeS: n.MtimeS, MtimeNS: n.MtimeNS,
		Major: n.Major, Minor: n.Minor, Link: n.Link, Xattrs: n.Xattrs,
	}
	if shared {
		e.inodes[n] = ino
	}
	e.files++
	switch n.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.bytes += n.Size
		return ino, e.content(ino, n)
	case unix.S_IFDIR:
		ino.Entries = make([]erofs.Entry, 0, len(n.Children))
		for _, c := range n.Sorted() {
			child, err := e.inode(c)
			if err != nil {
				return nil, err
			}
			ino.Entries = append(ino.Entries, erofs.Entry{Name: c.Name, Inode: child})
		}
	}
	return ino, nil
}

func (e *encoding) content(ino *erofs.Inode, n *Node) error {
	ino.Size = n.Size
	ino.Addrs = make([]uint32, len(n.Chunks))
	if int64(len(n.Chunks)) != (n.Size+store.ChunkSize-1)/store.ChunkSize {
		return fault.New(fault.Invalid, "file %s of %d bytes has %d chunks", quote(n.Name), n.Size, len(n.Chunks))
	}
	for i, c := range n.Chunks {
		if want := min(n.Size-int64(i)*store.ChunkSize, store.ChunkSize); int64(c.Size) != want {
			return fault.New(fault.Invalid, "file %s: chunk %d has %d bytes, not %d", quote(n.Name), i, c.Size, want)
		}
		if c.Digest.IsZero() {
			ino.Addrs[i] = erofs.Hole
			continue
		}
		a, known := e.addrs[c.Digest]
		if !known {
			a = uint32(min(e.next, math.MaxUint32-1)) // too large is found out by newDevice
			e.addrs[c.Digest] = a
			e.chunks = append(e.chunks, c)
			e.next += uint64(blocksOf(c.Size))
		}
		ino.Addrs[i] = a
	}
	return nil
}

// decodeTree makes a tree of metadata, with chunks in the place of addresses. The
// nodes of a file with several names are its first by a walk, and Targets to it.
func decodeTree(meta []byte, dev *device) (*Tree, error) {
	root, blocks, err := erofs.Decode(meta)
	if err != nil {
		return nil, err
	}
	if blocks != dev.blocks() {
		return nil, fault.New(fault.Corrupt, "the metadata is for a device of %d blocks, the chunk table for one of %d", blocks, dev.blocks())
	}
	d := decoding{dev: dev, nodes: map[*erofs.Inode]*Node{}}
	n, err := d.node("", root)
	if err != nil {
		return nil, err
	}
	return &Tree{Root: n}, nil
}

type decoding struct {
	dev   *device
	nodes map[*erofs.Inode]*Node // of everything but directories
}

func (d *decoding) node(name string, ino *erofs.Inode) (*Node, error) {
	if first := d.nodes[ino]; first != nil {
		return &Node{Name: name, Target: first}, nil
	}
	n := &Node{
		Name: name, Mode: ino.Mode, UID: ino.UID, GID: ino.GID, MtimeS: ino.MtimeS, MtimeNS: ino.MtimeNS,
		Major: ino.Major, Minor: ino.Minor, Link: ino.Link, Xattrs: ino.Xattrs,
	}
	switch ino.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		if err := d.content(n, ino); err != nil {
			return nil, err
		}
	case unix.S_IFDIR:
		n.Children = make(map[string]*Node, len(ino.Entries))
		for _, e := range ino.Entries {
			c, err := d.node(e.Name, e.Inode)
			if err != nil {
				return nil, err
			}
			n.Children[e.Name] = c
		}
		return n, nil
	}
	d.nodes[ino] = n
	return n, nil
}

func (d *decoding) content(n *Node, ino *erofs.Inode) error {
	n.Size = ino.Size
	if len(ino.Addrs) > 0 {
		n.Chunks = make([]store.Chunk, len(ino.Addrs))
	}
	for i, a := range ino.Addrs {
		size := uint32(min(n.Size-int64(i)*store.ChunkSize, store.ChunkSize))
		if a == erofs.Hole {
			n.Chunks[i] = store.Chunk{Size: size}
			continue
		}
		at := d.dev.at(a) // Decode has checked that a is inside
		c := d.dev.chunks[at]
		if d.dev.starts[at] != a || c.Size != size {
			return fault.New(fault.Corrupt, "file %s: chunk %d is not one of the chunk table's", quote(n.Name), i)
		}
		n.Chunks[i] = c
	}
	return nil
}

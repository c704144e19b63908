package erofs

import (
	"golang.org/x/sys/unix"
)

// Relocate gives a copy of metadata for a device on which the chunks lie
// elsewhere: one of deviceBlocks blocks, on which the piece of content of size
// bytes that was at block addr begins at to(addr, size). It is how an image is
// mounted over a file that other images' chunks, and other people's, lie in as well.
//
// So it is stricter than Decode. In what it returns, there is no way for the
// kernel to come across an address that to did not give: inodes follow each other
// without overlap, names lead to these inodes only, and nothing that names or
// inodes are read from lies where an address was written. The superblock is
// written anew. What Encode makes is of this form; anything else is of class
// fault.Corrupt. Errors of to are returned as they are.
//
// It makes one pass over the bytes and no tree: 30,000 inodes take some milliseconds.
func Relocate(meta []byte, deviceBlocks uint32, to func(addr, size uint32) (uint32, error)) ([]byte, error) {
	d := decoder{meta: meta}
	root, inodes, err := d.superblock()
	if err != nil {
		return nil, err
	}
	r := relocation{
		out: append([]byte(nil), meta...), oldBlocks: d.deviceBlocks, newBlocks: deviceBlocks, to: to,
		isInode: make([]uint64, len(meta)/slotSize/64+1),
	}
	pos := int64(areaStart + firstNID*slotSize)
	for range inodes {
		if pos, err = r.next(pos); err != nil {
			return nil, err
		}
		if pos, err = r.inode(pos); err != nil {
			return nil, err
		}
	}
	if !r.known(root) {
		return nil, corrupt("the root is no inode")
	}
	pos = align(pos, BlockSize)
	for _, x := range r.extents {
		if x.apart && x.off < pos {
			return nil, corrupt("the data at %d lies among the inodes", x.off)
		}
		if !x.dir {
			continue
		}
		if err := r.names(r.out[x.off : x.off+x.size]); err != nil {
			return nil, err
		}
	}
	clear(r.out[:BlockSize])
	writeSuper(r.out, inodes, deviceBlocks)
	return r.out, nil
}

// relocation is a pass over the inodes in the order in which they lie.
type relocation struct {
	out                  []byte
	oldBlocks, newBlocks uint32
	to                   func(addr, size uint32) (uint32, error)
	isInode              []uint64 // a bit for each slot
	extents              []extentOfData
}

// extentOfData is where names, or the target of a symbolic link, are.
type extentOfData struct {
	off, size  int64
	dir, apart bool // apart: in blocks of its own, behind the inodes
}

func (r *relocation) known(nid uint64) bool {
	return nid/64 < uint64(len(r.isInode)) && r.isInode[nid/64]>>(nid%64)&1 == 1
}

// next finds the inode at or behind pos: behind what Encode leaves free at the end
// of a block.
func (r *relocation) next(pos int64) (int64, error) {
	room := BlockSize - pos%BlockSize
	if room < inodeSize || pos < int64(len(r.out)) && r.out[pos]&1 == 0 && room < BlockSize {
		pos += room
	}
	if pos+inodeSize > int64(len(r.out)) {
		return 0, corrupt("inodes are missing")
	}
	return pos, nil
}

// inode relocates one inode and returns where the next may be.
func (r *relocation) inode(pos int64) (end int64, err error) {
	b := r.out[pos : pos+inodeSize]
	nid := uint64(pos-areaStart) / slotSize
	format, kind := le.Uint16(b), uint32(le.Uint16(b[4:]))&unix.S_IFMT
	layout := uint8(format >> 1)
	size, union := int64(le.Uint64(b[8:])), le.Uint32(b[16:])
	if format&1 == 0 || format>>4 != 0 || le.Uint16(b[6:]) != 0 || le.Uint32(b[20:]) != uint32(nid) || size < 0 {
		return 0, corrupt("inode %d is of no form that Brisk writes", nid)
	}
	r.isInode[nid/64] |= 1 << (nid % 64)
	end = pos + inodeSize
	if count := int64(le.Uint16(b[2:])); count > 0 {
		end += xattrHeader + 4*(count-1)
	}
	switch {
	case kind == unix.S_IFREG && size > 0 && layout == layoutChunks && union == chunkFormat:
		end = align(end, indexSize)
		count := (size-1)/ChunkSize + 1
		if count > (int64(len(r.out))-end)/indexSize {
			return 0, corrupt("file %d of %d bytes has its addresses outside", nid, size)
		}
		if err := r.addrs(r.out[end:end+count*indexSize], size, nid); err != nil {
			return 0, err
		}
		end += count * indexSize
	case (kind == unix.S_IFDIR || kind == unix.S_IFLNK) && layout == layoutInline:
		if size == 0 || size > BlockSize || end/BlockSize != (end+size-1)/BlockSize {
			return 0, corrupt("inode %d has inline data across blocks", nid)
		}
		r.extents = append(r.extents, extentOfData{off: end, size: size, dir: kind == unix.S_IFDIR})
		end += size
	case (kind == unix.S_IFDIR || kind == unix.S_IFLNK) && layout == layoutPlain:
		off := int64(union) * BlockSize
		if size == 0 || size > int64(len(r.out)) || off > int64(len(r.out))-size {
			return 0, corrupt("inode %d has its data outside", nid)
		}
		r.extents = append(r.extents, extentOfData{off: off, size: size, dir: kind == unix.S_IFDIR, apart: true})
	case kind != unix.S_IFDIR && kind != unix.S_IFLNK && size == 0 && layout == layoutPlain:
	default:
		return 0, corrupt("inode %d, of mode %#o and %d bytes, has data layout %d", nid, le.Uint16(b[4:]), size, layout)
	}
	if end > int64(len(r.out)) {
		return 0, corrupt("inode %d is cut off", nid)
	}
	return align(end, slotSize), nil
}

func (r *relocation) addrs(b []byte, size int64, nid uint64) error {
	for ; len(b) > 0; b, size = b[indexSize:], size-ChunkSize {
		a, device := le.Uint32(b[addrInIndex:]), le.Uint16(b[2:])
		if a == Hole && device == 0 && le.Uint16(b) == 0 {
			continue
		}
		piece := uint32(min(size, ChunkSize))
		blocks := (uint64(piece) + BlockSize - 1) / BlockSize
		if device != 1 || le.Uint16(b) != 0 || uint64(a)+blocks > uint64(r.oldBlocks) {
			return corrupt("file %d has an address on no device of ours", nid)
		}
		moved, err := r.to(a, piece)
		if err != nil {
			return err
		}
		if uint64(moved)+blocks > uint64(r.newBlocks) {
			return corrupt("block %d would move to %d, on a device of %d", a, moved, r.newBlocks)
		}
		le.PutUint32(b[addrInIndex:], moved)
	}
	return nil
}

// names checks that a directory leads to inodes only.
func (r *relocation) names(b []byte) error {
	for len(b) > 0 {
		block := b[:min(len(b), BlockSize)]
		b = b[len(block):]
		if len(block) < direntSize {
			return corrupt("a block of a directory is cut off")
		}
		table := int(le.Uint16(block[8:]))
		if table < direntSize || table%direntSize != 0 || table > len(block) {
			return corrupt("a block of a directory has its names at %d", table)
		}
		for ; table > 0; block, table = block[direntSize:], table-direntSize {
			if nid := le.Uint64(block); !r.known(nid) {
				return corrupt("a directory leads to inode %d, which is none", nid)
			}
		}
	}
	return nil
}

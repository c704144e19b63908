package layers

import (
	"bufio"
	"encoding/binary"
	"io"
	"maps"
	"math"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/store"
)

// The first byte of an entry.
const (
	actionMask = 0x0f
	opaque     = 0x80
	end        = 0xff // of the list: no entry
)

// Bounds of what is read. What no filesystem could hold is found out when an image
// is written; these keep memory in bounds.
const (
	maxString = 1 << 16 // of a path, a link, an xattr's name or value
	maxXattrs = 1 << 12 // in number
)

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// appendEntry encodes an entry.
func appendEntry(b []byte, e *image.LayerEntry) []byte {
	first := byte(e.Action)
	if e.Opaque {
		first |= opaque
	}
	b = appendString(append(b, first), e.Path)
	switch e.Action {
	case image.HardLink:
		return appendString(b, e.Link)
	case image.Put:
		return appendNode(b, e.Node)
	}
	return b
}

func appendNode(b []byte, n *image.Node) []byte {
	for _, v := range []uint32{n.Mode, n.UID, n.GID} {
		b = binary.AppendUvarint(b, uint64(v))
	}
	b = binary.AppendVarint(b, n.MtimeS)
	b = binary.AppendUvarint(b, uint64(n.MtimeNS))
	b = binary.AppendUvarint(b, uint64(len(n.Xattrs)))
	for _, name := range slices.Sorted(maps.Keys(n.Xattrs)) {
		b = appendString(appendString(b, name), n.Xattrs[name])
	}
	switch n.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		b = binary.AppendUvarint(b, uint64(n.Size))
		return appendChunks(b, n.Chunks)
	case unix.S_IFLNK:
		return appendString(b, n.Link)
	case unix.S_IFCHR, unix.S_IFBLK:
		b = binary.AppendUvarint(b, uint64(n.Major))
		return binary.AppendUvarint(b, uint64(n.Minor))
	}
	return b
}

// appendChunks encodes runs: a number of chunks and their digests, a number of
// holes, and so on. The sizes follow from the file's.
func appendChunks(b []byte, chunks []store.Chunk) []byte {
	for len(chunks) > 0 {
		n := 0
		for n < len(chunks) && !chunks[n].Digest.IsZero() {
			n++
		}
		b = binary.AppendUvarint(b, uint64(n))
		for _, c := range chunks[:n] {
			b = append(b, c.Digest[:]...)
		}
		chunks = chunks[n:]
		n = 0
		for n < len(chunks) && chunks[n].Digest.IsZero() {
			n++
		}
		b = binary.AppendUvarint(b, uint64(n))
		chunks = chunks[n:]
	}
	return b
}

// readEntry reads what appendEntry wrote; nil is the end of the list.
func readEntry(r *bufio.Reader) (*image.LayerEntry, error) {
	first, err := r.ReadByte()
	if err != nil || first == end {
		return nil, err
	}
	e := &image.LayerEntry{Action: image.Action(first & actionMask), Opaque: first&opaque != 0}
	if e.Path, err = readPath(r); err != nil {
		return nil, err
	}
	switch e.Action {
	case image.Put:
		e.Node, err = readNode(r)
		if err == nil && e.Opaque && !e.Node.IsDir() {
			err = fault.New(fault.Corrupt, "a file that is opaque")
		}
		return e, err
	case image.HardLink:
		e.Link, err = readPath(r)
	case image.Remove, image.Clear:
	default:
		return nil, fault.New(fault.Corrupt, "an entry of kind %d", e.Action)
	}
	if first&^(actionMask) != 0 && err == nil {
		err = fault.New(fault.Corrupt, "an entry that begins with %#x", first)
	}
	return e, err
}

func readString(r *bufio.Reader) (string, error) {
	n, err := binary.ReadUvarint(r)
	if err != nil {
		return "", err
	}
	if n > maxString {
		return "", fault.New(fault.Corrupt, "a string of %d bytes", n)
	}
	if b, err := r.Peek(int(n)); err == nil {
		s := string(b)
		_, err = r.Discard(int(n))
		return s, err
	}
	b := make([]byte, n)
	_, err = io.ReadFull(r, b)
	return string(b), err
}

// readPath reads a path that the reader of a tar has cleaned.
func readPath(r *bufio.Reader) (string, error) {
	s, err := readString(r)
	if err == nil && (s == "" || s[0] == '/' || path.Clean(s) != s || s == ".." || strings.HasPrefix(s, "../") || strings.IndexByte(s, 0) >= 0) {
		err = fault.New(fault.Corrupt, "a path that is not clean")
	}
	return s, err
}

func readUint32(r *bufio.Reader) (uint32, error) {
	v, err := binary.ReadUvarint(r)
	if err == nil && v > math.MaxUint32 {
		err = fault.New(fault.Corrupt, "a number that is too large")
	}
	return uint32(v), err
}

func readNode(r *bufio.Reader) (*image.Node, error) {
	n := &image.Node{}
	for _, to := range []*uint32{&n.Mode, &n.UID, &n.GID} {
		v, err := readUint32(r)
		if err != nil {
			return nil, err
		}
		*to = v
	}
	var err error
	if n.MtimeS, err = binary.ReadVarint(r); err != nil {
		return nil, err
	}
	if n.MtimeNS, err = readUint32(r); err != nil {
		return nil, err
	}
	if n.Xattrs, err = readXattrs(r); err != nil {
		return nil, err
	}
	switch n.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		size, err := binary.ReadUvarint(r)
		if err != nil {
			return nil, err
		}
		if size > image.DefaultMaxBytes {
			return nil, fault.New(fault.Corrupt, "a file of %d bytes", size)
		}
		n.Size = int64(size)
		n.Chunks, err = readChunks(r, n.Size)
		return n, err
	case unix.S_IFLNK:
		n.Link, err = readString(r)
	case unix.S_IFCHR, unix.S_IFBLK:
		if n.Major, err = readUint32(r); err == nil {
			n.Minor, err = readUint32(r)
		}
	case unix.S_IFDIR, unix.S_IFIFO, unix.S_IFSOCK:
	default:
		err = fault.New(fault.Corrupt, "a file of mode %o", n.Mode)
	}
	return n, err
}

func readXattrs(r *bufio.Reader) (map[string]string, error) {
	count, err := binary.ReadUvarint(r)
	if err != nil || count == 0 {
		return nil, err
	}
	if count > maxXattrs {
		return nil, fault.New(fault.Corrupt, "%d extended attributes", count)
	}
	m, last := map[string]string{}, ""
	for range count {
		name, err := readString(r)
		if err != nil {
			return nil, err
		}
		if name <= last {
			return nil, fault.New(fault.Corrupt, "extended attributes out of order")
		}
		if m[name], err = readString(r); err != nil {
			return nil, err
		}
		last = name
	}
	return m, nil
}

func readChunks(r *bufio.Reader, size int64) ([]store.Chunk, error) {
	count := (size + store.ChunkSize - 1) / store.ChunkSize
	var chunks []store.Chunk
	if count == 1 { // most files: no growing
		chunks = make([]store.Chunk, 0, 1)
	}
	at := func() store.Chunk {
		return store.Chunk{Size: uint32(min(size-int64(len(chunks))*store.ChunkSize, store.ChunkSize))}
	}
	for hole, empty := false, 0; int64(len(chunks)) < count || hole; hole = !hole {
		n, err := binary.ReadUvarint(r)
		if err != nil {
			return nil, err
		}
		if n > uint64(count-int64(len(chunks))) {
			return nil, fault.New(fault.Corrupt, "a file with more chunks than its size has")
		}
		if n != 0 {
			empty = 0
		} else if empty++; empty > 1 && int64(len(chunks)) < count {
			return nil, fault.New(fault.Corrupt, "a file with runs of nothing")
		}
		for range n {
			c := at()
			if !hole {
				if _, err := io.ReadFull(r, c.Digest[:]); err != nil {
					return nil, err
				}
				if c.Digest.IsZero() {
					return nil, fault.New(fault.Corrupt, "a hole among chunks")
				}
			}
			chunks = append(chunks, c)
		}
	}
	return chunks, nil
}

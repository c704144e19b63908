package store

import (
	"encoding/binary"
	"iter"

	"github.com/zeebo/blake3"

	"brisk.dev/brisk/internal/fault"
)

// The pack format, version 1: docs/format/pack.md.
const (
	packMagic  = "BRSKPACK"
	packEnd    = "BRSKPEND"
	packHeader = 16 // bytes: magic, version, zero
	packEntry  = 48 // bytes: digest, offset, stored length, size, flags
	packFooter = 64 // bytes

	packVersion = 1
	flagRaw     = 1 // the frame is the content itself

	// A pack is closed at the first chunk that reaches packTarget bytes or
	// packFull chunks: large enough that a store of a terabyte has some ten
	// thousand objects, small enough to be fetched whole.
	packTarget = 24 << 20
	packFull   = 1 << 15

	packMaxSize    = 64 << 20 // of a pack that is read
	packMaxEntries = 1 << 16
)

// entry locates one chunk in a pack.
type entry struct {
	digest Digest
	offset uint32 // of the frame in the pack
	stored uint32 // length of the frame
	size   uint32 // of the content
	raw    bool
}

// packIndex is the encoded index of a pack, checked.
type packIndex []byte

func (x packIndex) len() int { return len(x) / packEntry }

func (x packIndex) digest(i int) Digest { return Digest(x[i*packEntry:][:32]) }

func (x packIndex) at(i int) entry {
	b := x[i*packEntry : (i+1)*packEntry]
	return entry{
		digest: Digest(b[:32]),
		offset: binary.LittleEndian.Uint32(b[32:]),
		stored: binary.LittleEndian.Uint32(b[36:]),
		size:   binary.LittleEndian.Uint32(b[40:]),
		raw:    binary.LittleEndian.Uint32(b[44:])&flagRaw != 0,
	}
}

func (x packIndex) all() iter.Seq2[int, entry] {
	return func(yield func(int, entry) bool) {
		for i := range x.len() {
			if !yield(i, x.at(i)) {
				return
			}
		}
	}
}

func (x packIndex) append(e entry) packIndex {
	x = append(x, e.digest[:]...)
	x = binary.LittleEndian.AppendUint32(x, e.offset)
	x = binary.LittleEndian.AppendUint32(x, e.stored)
	x = binary.LittleEndian.AppendUint32(x, e.size)
	var flags uint32
	if e.raw {
		flags = flagRaw
	}
	return binary.LittleEndian.AppendUint32(x, flags)
}

// check reports whether the index describes a pack whose frames fill it from
// the header to end, each chunk once.
func (x packIndex) check(end int64) error {
	next, err := x.checkEntries()
	if err != nil {
		return err
	}
	if next != end {
		return fault.New(fault.Corrupt, "the chunks end at byte %d, the index begins at %d", next, end)
	}
	seen := make(map[Digest]struct{}, x.len())
	for i := range x.len() {
		seen[x.digest(i)] = struct{}{}
	}
	if len(seen) != x.len() {
		return fault.New(fault.Corrupt, "a chunk is listed twice")
	}
	return nil
}

// checkEntries reports whether the frames follow each other without gap or
// overlap, each within the caps, and where they end.
func (x packIndex) checkEntries() (end int64, err error) {
	if n := x.len(); len(x)%packEntry != 0 || n == 0 || n > packMaxEntries {
		return 0, fault.New(fault.Corrupt, "an index of %d bytes", len(x))
	}
	end = packHeader
	for i, e := range x.all() {
		flags := binary.LittleEndian.Uint32(x[i*packEntry+44:])
		switch {
		case e.digest.IsZero():
			return 0, fault.New(fault.Corrupt, "entry %d: no digest", i)
		case e.size == 0 || e.size > ChunkSize:
			return 0, fault.New(fault.Corrupt, "entry %d: a chunk of %d bytes", i, e.size)
		case e.stored == 0 || e.stored > e.size || e.raw && e.stored != e.size:
			return 0, fault.New(fault.Corrupt, "entry %d: %d bytes stored for %d", i, e.stored, e.size)
		case flags&^flagRaw != 0:
			return 0, fault.New(fault.Corrupt, "entry %d: flags %#x", i, flags)
		case int64(e.offset) != end:
			return 0, fault.New(fault.Corrupt, "entry %d: at byte %d instead of %d", i, e.offset, end)
		}
		end += int64(e.stored)
	}
	return end, nil
}

// encodePackHeader gives the first bytes of a pack.
func encodePackHeader() []byte {
	b := append(make([]byte, 0, packHeader), packMagic...)
	b = binary.LittleEndian.AppendUint32(b, packVersion)
	return binary.LittleEndian.AppendUint32(b, 0)
}

// encodePackFooter gives the last bytes of a pack whose index x begins at off.
func encodePackFooter(x packIndex, off int64) []byte {
	sum := blake3.Sum256(x)
	b := make([]byte, 0, packFooter)
	b = binary.LittleEndian.AppendUint64(b, uint64(off))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(x)))
	b = binary.LittleEndian.AppendUint32(b, packVersion)
	b = append(b, sum[:]...)
	b = binary.LittleEndian.AppendUint64(b, 0)
	return append(b, packEnd...)
}

// decodePackIndex finds, checks and copies the index of a pack of size bytes,
// which it reads through readAt: one read, of up to guess bytes from the end,
// unless the index is longer than that.
func decodePackIndex(size int64, readAt func(p []byte, off int64) error) (packIndex, error) {
	// Enough for the index of a pack of 128 KiB chunks at the usual ratios, in
	// one round trip to a remote origin.
	const guess = 64 << 10
	if size < packHeader+packEntry+packFooter+1 || size > packMaxSize {
		return nil, fault.New(fault.Corrupt, "%d bytes are not the size of a pack", size)
	}
	tail := make([]byte, min(size, guess))
	if err := readAt(tail, size-int64(len(tail))); err != nil {
		return nil, err
	}
	foot := tail[len(tail)-packFooter:]
	if string(foot[56:]) != packEnd {
		return nil, fault.New(fault.Corrupt, "it does not end as a pack ends")
	}
	if v := binary.LittleEndian.Uint32(foot[12:]); v != packVersion {
		return nil, fault.New(fault.Corrupt, "format version %d: this version of Brisk reads %d", v, packVersion)
	}
	if z := binary.LittleEndian.Uint64(foot[48:]); z != 0 {
		return nil, fault.New(fault.Corrupt, "reserved bytes are %#x", z)
	}
	off, length := binary.LittleEndian.Uint64(foot), int64(binary.LittleEndian.Uint32(foot[8:]))
	if off > uint64(size) || int64(off)+length+packFooter != size || length > packMaxEntries*packEntry {
		return nil, fault.New(fault.Corrupt, "an index of %d bytes at byte %d", length, off)
	}
	x := make(packIndex, length)
	if length+packFooter <= int64(len(tail)) {
		copy(x, tail[int64(len(tail))-packFooter-length:])
	} else if err := readAt(x, int64(off)); err != nil {
		return nil, err
	}
	if blake3.Sum256(x) != [32]byte(foot[16:48]) {
		return nil, fault.New(fault.Corrupt, "the index does not match its checksum")
	}
	return x, x.check(int64(off))
}

func packKey(d Digest) string { return objectKey("packs/", d) }
func blobKey(d Digest) string { return objectKey("blobs/", d) }

// objectKey spreads objects over 256 directories.
func objectKey(prefix string, d Digest) string {
	hex := d.String()
	return prefix + hex[:2] + "/" + hex
}

// keyDigest is the inverse of objectKey.
func keyDigest(prefix, key string) (Digest, bool) {
	if len(key) != len(prefix)+3+64 {
		return Digest{}, false
	}
	d, err := ParseDigest(key[len(prefix)+3:])
	return d, err == nil && objectKey(prefix, d) == key
}

package store

import (
	"encoding/binary"
	"iter"

	"github.com/zeebo/blake3"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store/seal"
)

// The pack format, versions 1 and 2: docs/format/pack.md.
const (
	packMagic  = "BRSKPACK"
	packEnd    = "BRSKPEND"
	packHeader = 16 // bytes: magic, version, zero
	packEntry  = 48 // bytes: digest, offset, stored length, size, flags
	packFooter = 96 // bytes; those of version 1 are the last 64 of them
	packTail   = 64 // bytes of a footer that are alike in both

	packVersion = 2
	flagRaw     = 1 // of an entry: the frame is the content itself
	flagSealed  = 1 // of a pack: index and frames are sealed

	// A pack is closed at the first chunk that reaches packTarget bytes or
	// packFull chunks: large enough that a store of a terabyte has some ten
	// thousand objects, small enough to be fetched whole.
	packTarget = 24 << 20
	packFull   = 1 << 15

	packMaxSize    = 64 << 20 // of a pack that is read
	packMaxEntries = 1 << 16

	indexKind = "pack index" // what a sealed index is sealed as; it has no name
)

// packSeal says how the frames of a pack are sealed.
type packSeal struct {
	sealed bool
	epoch  uint32 // of the keys; 0 if not sealed
}

// overhead is how many bytes longer a frame is for being sealed.
func (p packSeal) overhead() uint32 {
	if p.sealed {
		return seal.Overhead
	}
	return 0
}

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
func (x packIndex) check(end int64, how packSeal) error {
	next, err := x.checkEntries(how)
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
func (x packIndex) checkEntries(how packSeal) (end int64, err error) {
	more := how.overhead()
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
		case e.stored <= more || e.stored > e.size+more || e.raw && e.stored != e.size+more:
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

// encodePackFooter gives the last bytes of a pack whose index, as it is stored,
// begins at off.
func encodePackFooter(stored []byte, off int64, how packSeal, key seal.ID, salt [16]byte) []byte {
	b := make([]byte, 0, packFooter)
	b = append(b, key[:]...)
	b = binary.LittleEndian.AppendUint32(b, how.epoch)
	var flags uint32
	if how.sealed {
		flags = flagSealed
	}
	b = binary.LittleEndian.AppendUint32(b, flags)
	b = append(b, salt[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(off))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(stored)))
	b = binary.LittleEndian.AppendUint32(b, packVersion)
	b = append(b, make([]byte, 40)...)
	b = append(b, packEnd...)
	sum := footerSum(stored, b)
	copy(b[48:], sum[:])
	return b
}

// footerSum is the checksum of version 2: of the stored index and of the footer with
// zeros for the checksum.
func footerSum(stored, foot []byte) (sum [32]byte) {
	h := blake3.New()
	h.Write(stored)
	h.Write(foot[:48])
	h.Write(zeros[:32])
	h.Write(foot[80:])
	h.Sum(sum[:0])
	return sum
}

// decodePackIndex finds, checks and copies the index of a pack of size bytes,
// which it reads through readAt: one read, of up to guess bytes from the end,
// unless the index is longer than that. keys open a sealed one. A store that
// seals (keys not nil) takes no pack that is not sealed, one that does not takes no
// other: a bucket cannot choose.
func decodePackIndex(size int64, keys *seal.Keys, readAt func(p []byte, off int64) error) (packIndex, packSeal, error) {
	var how packSeal
	// Enough for the index of a pack of 128 KiB chunks at the usual ratios, in
	// one read of the origin.
	const guess = 64 << 10
	if size < packHeader+packTail || size > packMaxSize {
		return nil, how, fault.New(fault.Corrupt, "a pack of %d bytes", size)
	}
	tail := make([]byte, min(size, guess))
	if err := readAt(tail, size-int64(len(tail))); err != nil {
		return nil, how, err
	}
	foot := tail[len(tail)-packTail:]
	if string(foot[56:]) != packEnd {
		return nil, how, fault.New(fault.Corrupt, "it does not end as a pack ends")
	}
	if z := binary.LittleEndian.Uint64(foot[48:]); z != 0 {
		return nil, how, fault.New(fault.Corrupt, "reserved bytes are %#x", z)
	}
	footer, most := int64(packTail), int64(packMaxEntries*packEntry)
	switch v := binary.LittleEndian.Uint32(foot[12:]); {
	case v == 1:
	case v == packVersion && len(tail) >= packFooter:
		footer, most = packFooter, most+seal.ObjectOverhead
	default:
		return nil, how, fault.New(fault.Corrupt, "format version %d: this version of Brisk reads up to %d", v, packVersion)
	}
	off, length := binary.LittleEndian.Uint64(foot), int64(binary.LittleEndian.Uint32(foot[8:]))
	if off > uint64(size) || int64(off)+length+footer != size || length > most {
		return nil, how, fault.New(fault.Corrupt, "an index of %d bytes at byte %d", length, off)
	}
	x := make(packIndex, length)
	if length+footer <= int64(len(tail)) {
		copy(x, tail[int64(len(tail))-footer-length:])
	} else if err := readAt(x, int64(off)); err != nil {
		return nil, how, err
	}
	if footer == packTail {
		if blake3.Sum256(x) != [32]byte(foot[16:48]) {
			return nil, how, fault.New(fault.Corrupt, "the index does not match its checksum")
		}
	} else {
		var err error
		if x, how, err = openPackIndex(x, tail[len(tail)-packFooter:], keys); err != nil {
			return nil, how, err
		}
	}
	if keys != nil && !how.sealed {
		return nil, how, fault.New(fault.Corrupt, "it is not sealed, and all that workspace %q has here must be", keys.Workspace())
	}
	return x, how, x.check(int64(off), how)
}

// openPackIndex makes of what version 2 stores the index itself.
func openPackIndex(stored packIndex, foot []byte, keys *seal.Keys) (x packIndex, how packSeal, err error) {
	if footerSum(stored, foot) != [32]byte(foot[48:80]) {
		return nil, how, fault.New(fault.Corrupt, "the index does not match its checksum")
	}
	how.epoch = binary.LittleEndian.Uint32(foot[8:])
	id, flags := seal.ID(foot[:8]), binary.LittleEndian.Uint32(foot[12:])
	how.sealed = flags == flagSealed
	switch {
	case flags&^flagSealed != 0:
		return nil, how, fault.New(fault.Corrupt, "flags %#x", flags)
	case !how.sealed && (how.epoch != 0 || id != seal.ID{}):
		return nil, how, fault.New(fault.Corrupt, "it has a key and is not sealed")
	case !how.sealed:
		return stored, how, nil
	case keys == nil:
		return nil, how, fault.New(fault.Corrupt, "it is sealed with the key %s, and this store is not sealed", id)
	}
	x, err = keys.OpenObject(indexKind, "", stored)
	return x, how, err
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

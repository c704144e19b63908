package slab

import (
	"encoding/binary"
	"hash/crc32"

	"brisk.dev/brisk/internal/store"
)

// The format, version 2: docs/format/slab.md.
const (
	dataMagic  = "BRSKSLAB"
	indexMagic = "BRSKSLIX"
	pinMagic   = "BRSKSLPN"
	cleanMagic = "BRSKSLCL"
	version    = 2

	headerSize  = 32 // of all files; in the slab, block 0 is the header's
	recordSize  = 48
	pinSize     = 40
	cleanSize   = headerSize + 16
	pinOverhead = headerSize + 8 // the count and the checksum
	pinPrefix   = headerSize + 4

	// maxBlocks bounds a slab to 8 TiB, so that sums of blocks and lengths stay in 32 bits.
	maxBlocks = 1 << 31
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// extendChecksum gives the checksum of what sum is of, and b behind it.
func extendChecksum(sum uint32, b []byte) uint32 { return crc32.Update(sum, castagnoli, b) }

// identity ties the other files to their slab.
type identity [16]byte

// encodeHeader makes the first bytes of a file.
func encodeHeader(magic string, id identity) []byte {
	b := append(make([]byte, 0, headerSize), magic...)
	b = binary.LittleEndian.AppendUint32(b, version)
	b = append(b, id[:]...)
	return binary.LittleEndian.AppendUint32(b, checksum(b))
}

// decodeHeader reads what encodeHeader made.
func decodeHeader(b []byte, magic string) (id identity, ok bool) {
	if len(b) < headerSize || string(b[:8]) != magic ||
		binary.LittleEndian.Uint32(b[8:]) != version ||
		binary.LittleEndian.Uint32(b[28:]) != checksum(b[:28]) {
		return id, false
	}
	return identity(b[12:28]), true
}

// place is where a chunk lies.
type place struct {
	block uint32 // first, of store.BlockSize bytes
	size  uint32 // of the chunk, in bytes
}

func (p place) end() uint32    { return p.block + blocks(p.size) }
func (p place) offset() int64  { return int64(p.block) * store.BlockSize }
func (p place) extent() extent { return extent{p.block, blocks(p.size)} }

// possible reports whether there can be such a place.
func (p place) possible() bool {
	return p.block > 0 && p.size > 0 && p.size <= store.ChunkSize && p.block <= maxBlocks-blocks(p.size)
}

// blocks is how many blocks a chunk of size bytes takes.
func blocks(size uint32) uint32 { return (size + store.BlockSize - 1) / store.BlockSize }

// record is one change of the index.
type record struct {
	digest store.Digest
	place  place
	kind   uint8
	flags  uint8  // flagSound
	used   uint32 // as entry.used
}

const (
	kindHere  = 1
	kindGone  = 2
	kindScrub = 3 // how far the scrub has come: see scrubState

	flagSound = 1 // believed if the slab was closed in order
)

// A record has its kind, its flags and the size in one number.
const (
	kindShift = 24
	flagShift = 28
)

func (r record) append(b []byte) []byte {
	at := len(b)
	b = append(b, r.digest[:]...)
	b = binary.LittleEndian.AppendUint32(b, r.place.block)
	b = binary.LittleEndian.AppendUint32(b, r.place.size|uint32(r.kind)<<kindShift|uint32(r.flags)<<flagShift)
	b = binary.LittleEndian.AppendUint32(b, r.used)
	return binary.LittleEndian.AppendUint32(b, checksum(b[at:]))
}

// decodeRecord reads a record, and reports whether it is whole and possible.
func decodeRecord(b []byte) (r record, ok bool) {
	if len(b) < recordSize || binary.LittleEndian.Uint32(b[44:]) != checksum(b[:44]) {
		return r, false
	}
	what := binary.LittleEndian.Uint32(b[36:])
	r = record{
		digest: store.Digest(b[:32]),
		place:  place{binary.LittleEndian.Uint32(b[32:]), what & (1<<kindShift - 1)},
		kind:   uint8(what >> kindShift & (1<<(flagShift-kindShift) - 1)),
		flags:  uint8(what >> flagShift),
		used:   binary.LittleEndian.Uint32(b[40:]),
	}
	switch r.kind {
	case kindHere, kindGone:
		return r, !r.digest.IsZero() && r.place.possible()
	case kindScrub:
		return r, true
	}
	return r, false
}

// pinned is one chunk of a pin file.
type pinned struct {
	digest store.Digest
	place  place
}

// encodePins makes a pin file.
func encodePins(id identity, pins []pinned) []byte {
	b := make([]byte, 0, pinOverhead+len(pins)*pinSize)
	b = append(b, encodeHeader(pinMagic, id)...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(pins)))
	for _, p := range pins {
		b = append(b, p.digest[:]...)
		b = binary.LittleEndian.AppendUint32(b, p.place.block)
		b = binary.LittleEndian.AppendUint32(b, p.place.size)
	}
	return binary.LittleEndian.AppendUint32(b, checksum(b))
}

// decodePins reads what encodePins made. If ok is false nobody knows what was pinned.
func decodePins(b []byte) (id identity, pins []pinned, ok bool) {
	if id, ok = decodeHeader(b, pinMagic); !ok || len(b) < pinOverhead {
		return id, nil, false
	}
	body := b[:len(b)-4]
	n := binary.LittleEndian.Uint32(b[headerSize:])
	if binary.LittleEndian.Uint32(b[len(b)-4:]) != checksum(body) || int64(len(body)) != pinPrefix+int64(n)*pinSize {
		return id, nil, false
	}
	pins = make([]pinned, 0, n)
	for body = body[pinPrefix:]; len(body) > 0; body = body[pinSize:] {
		p := pinned{
			digest: store.Digest(body[:32]),
			place:  place{binary.LittleEndian.Uint32(body[32:]), binary.LittleEndian.Uint32(body[36:])},
		}
		if p.digest.IsZero() || !p.place.possible() {
			return id, nil, false
		}
		pins = append(pins, p)
	}
	return id, pins, true
}

// encodeClean makes the file that says that the slab was closed in order, when
// its index had this length and checksum.
func encodeClean(id identity, size int64, sum uint32) []byte {
	b := encodeHeader(cleanMagic, id)
	b = binary.LittleEndian.AppendUint64(b, uint64(size))
	b = binary.LittleEndian.AppendUint32(b, sum)
	return binary.LittleEndian.AppendUint32(b, checksum(b))
}

// isClean reports whether b is what encodeClean makes of that slab and index.
func isClean(b []byte, id identity, index []byte) bool {
	return string(b) == string(encodeClean(id, int64(len(index)), checksum(index)))
}

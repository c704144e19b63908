package slab

import (
	"encoding/binary"
	"hash/crc32"

	"brisk.dev/brisk/internal/store"
)

// The format, version 1: docs/format/slab.md.
const (
	dataMagic  = "BRSKSLAB"
	indexMagic = "BRSKSLIX"
	version    = 1

	headerSize = 32 // of both files; in the slab, block 0 is the header's
	recordSize = 48

	kindPut  = 1
	kindDrop = 2

	// maxBlocks bounds a slab to 8 TiB, so that sums of blocks and lengths stay in 32 bits.
	maxBlocks = 1 << 31
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// identity ties an index to its slab.
type identity [16]byte

// encodeHeader makes the first bytes of either file.
func encodeHeader(magic string, id identity) []byte {
	b := append(make([]byte, 0, headerSize), magic...)
	b = binary.LittleEndian.AppendUint32(b, version)
	b = append(b, id[:]...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeHeader reads what encodeHeader made.
func decodeHeader(b []byte, magic string) (id identity, ok bool) {
	if len(b) < headerSize || string(b[:8]) != magic ||
		binary.LittleEndian.Uint32(b[8:]) != version ||
		binary.LittleEndian.Uint32(b[28:]) != crc32.Checksum(b[:28], castagnoli) {
		return id, false
	}
	return identity(b[12:28]), true
}

// record is one change of the index.
type record struct {
	digest store.Digest
	block  uint32 // first, of store.BlockSize bytes
	size   uint32 // of the chunk, in bytes
	kind   uint32
}

func (r record) append(b []byte) []byte {
	at := len(b)
	b = append(b, r.digest[:]...)
	b = binary.LittleEndian.AppendUint32(b, r.block)
	b = binary.LittleEndian.AppendUint32(b, r.size)
	b = binary.LittleEndian.AppendUint32(b, r.kind)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[at:], castagnoli))
}

// decodeRecord reads a record, and reports whether it is whole and possible.
func decodeRecord(b []byte) (r record, ok bool) {
	if len(b) < recordSize || binary.LittleEndian.Uint32(b[44:]) != crc32.Checksum(b[:44], castagnoli) {
		return r, false
	}
	r = record{
		digest: store.Digest(b[:32]),
		block:  binary.LittleEndian.Uint32(b[32:]),
		size:   binary.LittleEndian.Uint32(b[36:]),
		kind:   binary.LittleEndian.Uint32(b[40:]),
	}
	return r, !r.digest.IsZero() && r.block > 0 && r.block < maxBlocks && r.size > 0 && r.size <= store.ChunkSize &&
		(r.kind == kindPut || r.kind == kindDrop)
}

// blocks is how many blocks a chunk of size bytes takes.
func blocks(size uint32) uint32 { return (size + store.BlockSize - 1) / store.BlockSize }

package image

import (
	"encoding/binary"
	"math"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// The chunk table: a header and an entry per chunk, in the order of the device.
const (
	tableMagic   = "BRISKTBL"
	tableVersion = 1
	tableHeader  = 16 // magic, u32 version, u32 count
	tableEntry   = 36 // digest, u32 size
)

// maxTableCount bounds a table: 64 million chunks, which are up to 8 TiB.
const maxTableCount = 1 << 26

func tableSize(count int64) int64 { return tableHeader + tableEntry*count }

func encodeTable(chunks []store.Chunk) []byte {
	b := make([]byte, 0, tableHeader+tableEntry*len(chunks))
	b = append(b, tableMagic...)
	b = binary.LittleEndian.AppendUint32(b, tableVersion)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(chunks)))
	for _, c := range chunks {
		b = append(b, c.Digest[:]...)
		b = binary.LittleEndian.AppendUint32(b, c.Size)
	}
	return b
}

// tableEntries checks the header of a table and gives what follows: whole entries.
func tableEntries(b []byte) ([]byte, error) {
	if len(b) < tableHeader || string(b[:8]) != tableMagic {
		return nil, fault.New(fault.Corrupt, "not a chunk table")
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != tableVersion {
		return nil, fault.New(fault.Corrupt, "chunk table of version %d; this Brisk reads %d", v, tableVersion)
	}
	n := uint64(binary.LittleEndian.Uint32(b[12:]))
	if b = b[tableHeader:]; n > maxTableCount || uint64(len(b)) != n*tableEntry {
		return nil, fault.New(fault.Corrupt, "chunk table of %d chunks has %d bytes of entries", n, len(b))
	}
	return b, nil
}

func decodeTable(b []byte) (*device, error) {
	b, err := tableEntries(b)
	if err != nil {
		return nil, err
	}
	n := len(b) / tableEntry
	chunks := make([]store.Chunk, n)
	seen := make(map[store.Digest]struct{}, n)
	var blocks uint64
	for i := range chunks {
		c := &chunks[i]
		copy(c.Digest[:], b)
		c.Size = binary.LittleEndian.Uint32(b[32:])
		b = b[tableEntry:]
		if c.Digest.IsZero() || c.Size == 0 || c.Size > store.ChunkSize {
			return nil, fault.New(fault.Corrupt, "chunk table: entry %d is %s", i, *c)
		}
		if _, twice := seen[c.Digest]; twice {
			return nil, fault.New(fault.Corrupt, "chunk table: entry %d is there twice", i)
		}
		seen[c.Digest] = struct{}{}
		blocks += uint64(blocksOf(c.Size))
	}
	if blocks >= math.MaxUint32 {
		return nil, fault.New(fault.Corrupt, "chunk table: %d blocks are too many", blocks)
	}
	return newDevice(chunks)
}

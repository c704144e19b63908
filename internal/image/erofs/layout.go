package erofs

import (
	"encoding/binary"
	"hash/crc32"
)

// The layout, shared by writer and reader. All numbers are little endian.
const (
	superOffset  = 1024                     // where the superblock begins
	superSize    = 128                      //
	deviceOffset = superOffset + superSize  // the one device slot follows it
	deviceSize   = 128                      //
	areaStart    = BlockSize                // inodes begin at block 1
	slotSize     = 32                       // an inode number counts slots from areaStart
	inodeSize    = 64                       // extended inodes only
	xattrHeader  = 12                       // before an inode's xattrs
	indexSize    = 8                        // an address of a chunk, with its device
	addrInIndex  = 4                        // where in it the block address is
	direntSize   = 12                       //
	firstNID     = 1                        // of the root; slot 0 stays empty, 0 being no inode
	magic        = 0xe0f5e1e2               //
	blockBits    = 12                       //
	chunkFormat  = 0x20 | (17 - blockBits)  // indexes of 8 bytes; log2(ChunkSize) - blockBits
	compat       = compatChecksum | compatM //
	incompat     = 0x4 | 0x8                // chunk-based files, device table

	compatChecksum = 0x1 // the superblock has a checksum
	compatM        = 0x2 // times are of modification
)

// Data layouts of an inode.
const (
	layoutPlain  = 0 // data in whole blocks of the metadata
	layoutInline = 2 // data behind the inode, within one block
	layoutChunks = 4 // data on the device, addresses behind the inode
)

var le = binary.LittleEndian

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum is the superblock's: CRC32C, not inverted at the end, of the rest of
// block 0 from the superblock on, with the checksum's own field as zero.
func checksum(block0 []byte) uint32 {
	var zero [4]byte
	c := crc32.Update(0, castagnoli, block0[superOffset:superOffset+4])
	c = crc32.Update(c, castagnoli, zero[:])
	c = crc32.Update(c, castagnoli, block0[superOffset+8:BlockSize])
	return ^c
}

func align(x, to int64) int64 { return (x + to - 1) / to * to }

// dirSplit cuts a directory's entries, given by their names' lengths, into
// blocks: it returns the index of the first entry of each, and the size in bytes
// of all, of which only the last block may be short.
func dirSplit(n int, nameLen func(i int) int) (starts []int, size int64) {
	used := 0
	for i := range n {
		need := direntSize + nameLen(i)
		if i == 0 || used+need > BlockSize {
			starts = append(starts, i)
			used = 0
		}
		used += need
	}
	return starts, int64(len(starts)-1)*BlockSize + int64(used)
}

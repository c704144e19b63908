package erofs

// Seal puts a valid block 0 before an inode area, for the fuzzer.
func Seal(area []byte, inodes uint64, deviceBlocks uint32) []byte {
	b := make([]byte, BlockSize, BlockSize+len(area)+BlockSize)
	b = append(b, area...)
	b = append(b, make([]byte, -len(b)&(BlockSize-1))...)
	writeSuper(b, inodes, deviceBlocks)
	return b
}

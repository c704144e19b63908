// Package erofs writes and reads the metadata of an image as a complete EROFS
// filesystem without data: the kernel mounts it and answers stat, lookup,
// readdir and readlink from it alone, and finds the bytes of files on one
// external block device ("device=" of the mount), whose blocks it addresses.
//
// Vocabulary. An Inode is a file of any kind; a directory's Entries give names to
// inodes, and an inode with several names is a hard-linked file. A file's content
// is cut into pieces of ChunkSize; Addrs says for each at which block of the
// external device it begins, or that it is a Hole. What lies there is not this
// package's business: it knows addresses, and never digests.
//
// Encode is deterministic: equal trees give equal bytes, UUID included. Decode
// accepts what Encode writes and nothing else that could make trouble: it checks
// every bound, follows no cycle, and does an amount of work that is linear in the
// size of its input; anything odd is of class fault.Corrupt. docs/format/image.md
// has the exact format.
//
// Both run in memory, in the calling goroutine, and block on nothing.
package erofs

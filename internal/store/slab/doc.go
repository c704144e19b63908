// Package slab is the local chunk cache: one sparse file in which every chunk has
// a place of its own, 4 KiB-aligned and fixed, and an index of the places. The
// format is in docs/format/slab.md.
//
// # Promises
//
// Wrong bytes are never given back. A chunk is verified against its digest when
// it is first read after opening; one that does not match, or that the disk
// cannot read, is dropped and counts as absent. Losing chunks is allowed: those
// of the last second before a power loss, or all of them with the index.
//
// A place, once given, belongs to its chunk until the slab is closed, even if
// the chunk is dropped: the bytes may be mapped by the kernel (an image mounted
// natively), and the place may be bad. Reading therefore needs no lock while it reads.
//
// There is no eviction yet: when the limit is reached, chunks are not kept.
//
// # Order of writing
//
// Data, then sync, then index: the index never names bytes that could be lost.
// A background goroutine syncs what was written, every second or every 64 MiB,
// and then appends the records. Chunks that are not synced yet can be read in
// this process, and are lost with it.
//
// # Who blocks whom
//
// Read blocks on the disk only. Write blocks on copying into the page cache,
// or, when the kernel throttles writers, on the disk; never on a sync. Flush and
// Close wait for the disk.
package slab

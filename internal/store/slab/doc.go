// Package slab is the local chunk cache: one sparse file in which every chunk has
// a place of its own, 4 KiB-aligned and fixed, and an index of the places. The
// format is in docs/format/slab.md.
//
// # Promises
//
// Wrong bytes are not given back. A chunk is verified against its digest when it
// is first read after opening, and whenever a scrub comes by; one that does not
// match, or that the disk cannot read, is dropped and counts as absent. (What the
// disk changes silently in between, and the page cache then reads again, is the one gap;
// closing it would make every read take four times as long.) Losing chunks is
// allowed: those of the last second before a power loss, or all of them with the index.
//
// What [Slab.Place] has returned is the exception: an image may be mounted
// natively over it, whose reads do not pass by us. Those places hold verified,
// synced bytes, and are nobody else's until Unpin: over kill -9, power loss, a
// lost or lying index. If a bit of them rots only [Slab.Scrub] finds it, and
// [Slab.Repair] mends it in place.
//
// # Eviction
//
// When the limit is reached, or the filesystem has less free than the reserve,
// chunks go by segmented LRU (recency.go), never pinned ones; if none may go the new
// chunk is not kept. Their blocks are punched out of the file, so the disk has
// them back, and the place can be given to another chunk when the last reader has
// left it. The time of use is kept in the index, which is written when the slab
// is closed and after each quarter of its content's turnover: after a kill that
// much of the order is lost, and a chunk counts as used when it was written.
//
// # Order of writing
//
// Data, then sync, then index: the index never names bytes that were not synced.
// A background goroutine syncs what was written, every second or every 64 MiB,
// and then appends the records. Chunks that are not synced yet can be read in
// this process, and are lost with it.
//
// # Who blocks whom
//
// Reads bypass the page cache, unless it has what they ask for: the mounts of images
// have pages of their own, and read-ahead of the slab would bring what belongs to others.
//
// Read blocks on the disk only: never on a sync, an eviction, or a scrub. Write
// blocks on copying into the page cache, or, when the kernel throttles writers, on
// the disk; when the slab is full, one write in 32 evicts for the others, which
// takes a millisecond or two and waits for reads that are under way; never on a
// sync. Place, Unpin of a natively mounted image, Repair, Flush and Close wait
// for the disk.
//
// # Locks
//
// scrubbing, then pinning, growing, evicting, flushing, of which none is taken with another held
// but by Close and Check and then in this order; mu comes last, and no I/O happens under it.
package slab

// Package store keeps the bytes of images: content-addressed, compressed at rest,
// each piece once, however many images use it.
//
// # What is what
//
// A [Chunk] is a piece of one file, at most [ChunkSize] bytes, named by its
// [Digest]. A pack is an immutable object of many compressed chunks and their
// index, named by its own digest. A blob is a small object of its own (the
// metadata of an image), a record one that changes (a manifest, a name). An
// [Origin] keeps them for good; a [Cache] keeps plain chunks near; [Peers] are
// other machines' caches. The formats are in docs/format: chunk.md, pack.md,
// seal.md, slab.md.
//
// # Workspaces
//
// A [Store] is one workspace's. [Workspaces] are the stores of one origin: each
// below a prefix, with keys of its own, and nothing that one answers depends on
// what another has, but for the base that all read from. Where others can read the
// origin, what goes there is sealed (package seal), and nothing else is taken from
// there; what goes to peers is sealed always. docs/security.md says what that
// protects.
//
// # Reading
//
// A [Reader] asks the cache, then the peers, then the origin. What comes from
// elsewhere is verified against its digest, always, and only then handed on and cached.
// Concurrent misses of one chunk are one read, which goes on as
// long as one of those who want it waits. A caller may be blocked by: the
// peers (bounded by themselves), the origin (by Options.ReadTimeout), the bound on
// parallel origin reads (Options.Parallel), the cache's disk, and the reading of the
// indexes of the packs that the image names, once; a cache hit waits for none of
// these. [Store.ReadChunk], which answers for all that is stored, and everything
// that writes, may wait for the indexes of all packs.
//
// # Reading ahead
//
// [Store.Prefetch] reads chunks that somebody is going to want, below the reads
// that are waited for. [Store.Stream] reads hot packs: packs written by
// [Store.WriteHot] that hold, in the order of use, what the start of an image
// needs, so that an empty machine needs one request and not thousands. A reader
// waits for a stream that is about to bring its chunk, and for none that is not.
//
// # Writing
//
// A [Batch] collects the chunks of an import and writes those that the store
// does not have into new packs. Nothing of it can be seen before
// [Batch.Commit], which returns when everything is durable. [Batch.Add] blocks when the
// compressors or the disk are behind; memory in flight is bounded (about 1.5 MiB
// a core, plus some 120 bytes for each chunk of the batch).
//
// # Deleting
//
// [Store.Collect] deletes packs and blobs that nobody refers to. Who refers to
// what is the caller's knowledge. The gap between content that is stored and a
// manifest that names it is closed by [Store.Hold]: whatever was written or
// relied on (by Add, Use or PutBlob) since the oldest hold that is still held
// began is not deleted. An importer therefore does
//
//	b := s.Begin(ctx) // holds until Commit
//	hold := b.Hold()  // holds on
//	defer hold.Release()
//	... Add, Commit, PutBlob ...
//	hold.Publish(ctx, packs, blobs, func() error { ... write the manifest durably ... }, undo)
//
// An origin that several machines share (Options.Shared) has a ledger, so that all
// this works between them, too; what nobody needs stays for a grace period there.
// docs/design/collection.md says how, and why it is safe.
//
// Collect never waits for holds, and holds never wait for Collect, so a long
// import blocks no removal and no other import.
//
// # Damage
//
// Bytes that are not what their digest says are never returned. A damaged place
// in the cache is dropped and read again from the origin. A damaged chunk of
// the origin is an error of class fault.Corrupt that names chunk and pack; the
// store has looked twice, since an answer can be damaged on its way,
// remembers the damage and no longer counts that copy as stored, so that
// importing the image again writes a good one.
//
// # Locks
//
// Store.publish (shared: an object is being made visible; exclusive: one is
// being deleted), then index.mu, then holds.mu. No I/O happens under the last two.
package store

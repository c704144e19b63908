package store

import (
	"bytes"
	"context"
	"sync"

	"brisk.dev/brisk/internal/fault"
)

// Batch is a set of chunks on the way into the store. It ends with Commit or
// Abort; Abort after either does nothing, so that it can be deferred.
//
// Chunks that are new go through compressors, in parallel, to one writer,
// which puts them into packs in the order in which they were added. From one
// goroutine, the same chunks make the same packs.
type Batch struct {
	s      *Store
	ctx    context.Context // ends with the batch, or when it has failed
	cancel context.CancelFunc
	hold   *Hold // until Commit or Abort

	ending sync.RWMutex // shared: Add, Use; exclusive: ending
	ended  bool

	mu       sync.Mutex
	seen     map[Digest]struct{} // chunks of this batch
	relied   map[Digest]struct{} // packs that held some of them before
	written  Written             // but for Packs
	err      error               // the first failure
	pipeline *pipeline           // nil until there is a new chunk
}

// Written is what a committed batch amounts to. Holes are not counted.
type Written struct {
	Packs       []Digest // every pack, new or old, that holds a chunk of the batch; sorted
	Chunks      int      // different chunks
	NewChunks   int      // of them, those that were not stored before
	Bytes       int64    // plain bytes of Chunks
	NewBytes    int64    // and of NewChunks
	StoredBytes int64    // lengths of the new packs
}

// Begin starts a batch. It lives no longer than ctx.
func (s *Store) Begin(ctx context.Context) *Batch {
	b := &Batch{s: s, hold: s.hold(), seen: map[Digest]struct{}{}, relied: map[Digest]struct{}{}}
	b.ctx, b.cancel = context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, b.cancel)
	context.AfterFunc(b.ctx, func() { stop() })
	return b
}

// Store is where the batch goes.
func (b *Batch) Store() *Store { return b.s }

var zeros [ChunkSize]byte

// Add puts a chunk of 1 to ChunkSize bytes into the batch, and reports whether
// it is new to the store and its base, or was stored in an earlier epoch only. Data may be reused when Add returns. Zeros are a
// hole: nothing is stored, and the chunk's digest is zero. Failures of writing
// may come up in a later call. Safe for concurrent use.
func (b *Batch) Add(data []byte) (c Chunk, added bool, err error) {
	if len(data) == 0 || len(data) > ChunkSize {
		return c, false, fault.New(fault.Invalid, "a chunk of %d bytes", len(data))
	}
	b.ending.RLock()
	defer b.ending.RUnlock()
	if err := b.usable(); err != nil {
		return c, false, err
	}
	c.Size = uint32(len(data))
	if bytes.Equal(data, zeros[:len(data)]) {
		return c, false, nil
	}
	c.Digest = Sum(data)
	if err := b.prepare(c); err != nil {
		return c, false, err
	}
	p, added, err := b.take(c)
	if err != nil || !added {
		return c, false, err
	}
	if p.add(b.ctx, c.Digest, data) != nil {
		return c, false, b.failure()
	}
	return c, true, nil
}

// take notes a chunk, and whether its content has to be written, to p.
func (b *Batch) take(c Chunk) (p *pipeline, isNew bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.seen[c.Digest]; ok {
		return nil, false, nil
	}
	if in, ok := b.hold.rely(c, true); ok {
		b.note(c, in)
		return nil, false, nil
	}
	if b.pipeline == nil {
		if b.pipeline, err = b.s.newPipeline(b.ctx, b.fail); err != nil {
			return nil, false, err
		}
	}
	b.seen[c.Digest] = struct{}{}
	b.written.Chunks++
	b.written.Bytes += int64(c.Size)
	b.written.NewChunks++
	b.written.NewBytes += int64(c.Size)
	return b.pipeline, true, nil
}

// note counts a chunk that a pack holds already. Precondition: b.mu is held.
func (b *Batch) note(c Chunk, in Digest) {
	b.seen[c.Digest] = struct{}{}
	b.relied[in] = struct{}{}
	b.written.Chunks++
	b.written.Bytes += int64(c.Size)
}

// prepare returns when it can be told whether a chunk is stored, and relied on that it is.
func (b *Batch) prepare(c Chunk) error {
	if err := b.s.awaitAll(b.ctx); err != nil {
		return err
	}
	if err := b.hold.await(b.ctx); err != nil {
		return err
	}
	return b.hold.pardon(b.ctx, c)
}

// Hold gives a hold that protects all that the batch has written and relied on, beyond the batch's end:
// for naming it (Hold.Publish). It must be begun before that.
func (b *Batch) Hold() *Hold { return b.hold.again() }

// awaitAll returns when the index is complete, and the base's.
func (s *Store) awaitAll(ctx context.Context) error {
	for _, in := range s.lineage() {
		if err := in.await(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Use puts a chunk that is stored already into the batch: one of a parent image, of
// whatever epoch.
// Without a good copy in the store it fails with fault.NotFound.
func (b *Batch) Use(c Chunk) error {
	b.ending.RLock()
	defer b.ending.RUnlock()
	if err := b.usable(); err != nil {
		return err
	}
	if c.Digest.IsZero() {
		return nil
	}
	if err := b.prepare(c); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.seen[c.Digest]; ok {
		return nil
	}
	in, ok := b.hold.rely(c, false)
	if !ok {
		return &fault.Error{Class: fault.NotFound, Op: "use chunk", Object: c.String(), Hint: hintImport,
			Err: fault.New(fault.NotFound, "the store has no good copy of it")}
	}
	b.note(c, in)
	return nil
}

// usable fails if the batch has failed, ended or been cancelled.
// Precondition: b.ending is held.
func (b *Batch) usable() error {
	if b.ended {
		return fault.New(fault.Invalid, "the batch has ended")
	}
	return b.failure()
}

// failure is the first error, or why the context ended.
func (b *Batch) failure() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.err != nil:
		return b.err
	case b.s.ctx.Err() != nil:
		return errClosed()
	}
	return b.ctx.Err()
}

// fail makes the batch fail with err, unless it has failed already.
func (b *Batch) fail(err error) {
	b.mu.Lock()
	if b.err == nil {
		b.err = err
	}
	b.mu.Unlock()
	b.cancel()
}

// end makes later calls fail, and reports whether this one is the first to.
func (b *Batch) end() bool {
	b.ending.Lock()
	defer b.ending.Unlock()
	first := !b.ended
	b.ended = true
	return first
}

// Abort drops the batch. Nothing of it remains.
func (b *Batch) Abort() {
	b.cancel() // first: an Add may be waiting
	if !b.end() {
		return
	}
	if b.pipeline != nil {
		b.pipeline.finish()
		b.pipeline.remove()
	}
	b.hold.Release()
}

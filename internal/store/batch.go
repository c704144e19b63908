package store

import (
	"bytes"
	"context"
	"os"
	"runtime"
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
	s       *Store
	ctx     context.Context // ends with the batch, or when it has failed
	cancel  context.CancelFunc
	release func() // of the hold

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
	b := &Batch{s: s, release: s.Hold(), seen: map[Digest]struct{}{}, relied: map[Digest]struct{}{}}
	b.ctx, b.cancel = context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, b.cancel)
	context.AfterFunc(b.ctx, func() { stop() })
	return b
}

var zeros [ChunkSize]byte

// Add puts a chunk of 1 to ChunkSize bytes into the batch, and reports whether
// it is new to the store. Data may be reused when Add returns. Zeros are a
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
	if err := b.s.await(b.ctx); err != nil {
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
	if in, ok := b.s.index.rely(c.Digest, c.Size, b.s.holds.now); ok {
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

// Use puts a chunk that is stored already into the batch: one of a parent image.
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
	if err := b.s.await(b.ctx); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.seen[c.Digest]; ok {
		return nil
	}
	in, ok := b.s.index.rely(c.Digest, c.Size, b.s.holds.now)
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
	b.release()
}

// pipeline compresses chunks and writes them into packs in a directory of its own.
type pipeline struct {
	dir  string
	lock *os.File // on dir; held while we live
	fail func(error)

	jobs   chan *job       // to the compressors
	order  chan *job       // the same, to the writer, in the order of adding
	synced chan sealedPack // to the syncer
	wg     sync.WaitGroup

	packs []sealedPack // durable; valid after finish
}

// job is one chunk in the pipeline.
type job struct {
	digest Digest
	size   int
	data   [ChunkSize]byte
	space  [ChunkSize + ChunkSize/64]byte // more than zstd's worst case
	frame  []byte                         // in data or space
	raw    bool
	ready  chan struct{} // receives when frame is there
}

var jobs = sync.Pool{New: func() any { return &job{ready: make(chan struct{}, 1)} }}

// newPipeline starts the goroutines. They end with finish, or early with ctx;
// fail is told the first thing that went wrong.
func (s *Store) newPipeline(ctx context.Context, fail func(error)) (*pipeline, error) {
	dir, lock, err := createTempDir(s.tmp)
	if err != nil {
		return nil, DiskError(err, "write packs", s.tmp)
	}
	// One compressor a core; beyond eight the disk is behind anyway. Four chunks a
	// compressor may wait for the writer: a quarter of a MiB each.
	workers := min(runtime.GOMAXPROCS(0), 8)
	p := &pipeline{
		dir: dir, lock: lock, fail: fail,
		jobs: make(chan *job), order: make(chan *job, 4*workers), synced: make(chan sealedPack),
	}
	for range workers {
		p.wg.Go(p.compress)
	}
	p.wg.Go(func() { p.write(ctx) })
	p.wg.Go(p.sync)
	return p, nil
}

// add enters a chunk, or fails because ctx has ended.
func (p *pipeline) add(ctx context.Context, d Digest, data []byte) error {
	j := jobs.Get().(*job)
	j.digest, j.size = d, copy(j.data[:], data)
	select {
	case p.order <- j:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case p.jobs <- j:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *pipeline) compress() {
	for j := range p.jobs {
		j.frame, j.raw = encodeFrame(j.data[:j.size], j.space[:])
		j.ready <- struct{}{}
	}
}

func (p *pipeline) write(ctx context.Context) {
	defer close(p.synced)
	var w *packWriter
	seal := func() error {
		pack, err := w.seal()
		if err == nil {
			p.synced <- pack
		}
		w.file.Close()
		w = nil
		return err
	}
	write := func(j *job) (err error) {
		if w == nil {
			if w, err = newPackWriter(p.dir); err != nil {
				return err
			}
		}
		if err = w.add(j.digest, uint32(j.size), j.frame, j.raw); err == nil && w.full() {
			err = seal()
		}
		return err
	}
	for j := range p.order {
		select {
		case <-j.ready:
		case <-ctx.Done():
			continue // a job that is left here is not reused: a compressor may have it
		}
		if ctx.Err() != nil {
			continue
		}
		if err := write(j); err != nil {
			p.fail(DiskError(err, "write packs", p.dir))
		}
		jobs.Put(j)
	}
	if w == nil {
		return
	}
	if ctx.Err() != nil {
		w.file.Close()
	} else if err := seal(); err != nil {
		p.fail(DiskError(err, "write packs", p.dir))
	}
}

// sync makes sealed packs durable while the next is being written.
func (p *pipeline) sync() {
	for pack := range p.synced {
		if err := syncFile(pack.path); err != nil {
			p.fail(DiskError(err, "write packs", p.dir))
		}
		p.packs = append(p.packs, pack)
	}
}

// finish waits until everything that was added is written, or given up.
func (p *pipeline) finish() {
	close(p.jobs)
	close(p.order)
	p.wg.Wait()
}

// remove deletes what is still in the directory.
func (p *pipeline) remove() {
	os.RemoveAll(p.dir)
	p.lock.Close()
}

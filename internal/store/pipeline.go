package store

import (
	"context"
	"os"
	"runtime"
	"sync"

	"brisk.dev/brisk/internal/store/seal"
)

// pipeline compresses chunks and writes them into packs in a directory of its own.
type pipeline struct {
	dir   string
	lock  *os.File // on dir; held while we live
	fail  func(error)
	keys  *seal.Keys // nil: nothing is sealed
	epoch uint32

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
	space  [ChunkSize + ChunkSize/64]byte // more than zstd's worst case, and than a sealed chunk
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
		dir: dir, lock: lock, fail: fail, keys: s.sealing(), epoch: s.epoch(),
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
		if p.keys != nil {
			to := j.data[:0] // the frame is in the other
			if j.raw {
				to = j.space[:0]
			}
			j.frame = p.keys.SealFrame(to, j.digest, p.epoch, j.frame)
		}
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
			if w, err = newPackWriter(p.dir, p.keys, p.epoch); err != nil {
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

package slab

import (
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// Options says where a slab is and how large it may become.
type Options struct {
	Dir   string       // holds "slab" and "slab.idx"; made if need be
	Limit int64        // bytes of chunks on disk; 0 means no limit
	Log   *slog.Logger // nil: slog.Default()
}

// Slab implements store.Cache.
type Slab struct {
	dir   string
	limit int64 // blocks
	log   *slog.Logger
	id    identity
	data  *os.File // also carries the lock that keeps other processes out

	mu      sync.RWMutex
	places  map[store.Digest]place
	extents extents
	closed  bool
	pending struct {
		records []record // to append after a sync, in this order
		bytes   int64    // written since the last sync
	}
	pins struct {
		owners map[string][]store.Digest
		count  map[store.Digest]int
	}

	flushing sync.Mutex // one sync at a time; before mu
	index    *os.File   // append-only; guarded by flushing; nil after a failure to write

	wake chan struct{} // something is pending, or enough that it should not wait
	stop chan struct{}
	done sync.WaitGroup

	hits, misses, drops, writes atomic.Int64
}

var _ store.Cache = (*Slab)(nil)

// Open opens the slab in a directory, or makes one. If another process has it
// open the error is fault.Exists. A slab or index that cannot be understood is
// discarded: it is a cache.
func Open(o Options) (*Slab, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Limit <= 0 {
		o.Limit = math.MaxInt64
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, store.DiskError(err, "open slab", o.Dir)
	}
	path := filepath.Join(o.Dir, "slab")
	data, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, store.DiskError(err, "open slab", o.Dir)
	}
	s := &Slab{
		dir: o.Dir, limit: o.Limit / store.BlockSize, log: o.Log, data: data,
		wake: make(chan struct{}, 1), stop: make(chan struct{}),
	}
	s.pins.owners, s.pins.count = map[string][]store.Digest{}, map[store.Digest]int{}
	if err := unix.Flock(int(data.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		data.Close()
		return nil, &fault.Error{Class: fault.Exists, Op: "open slab", Object: o.Dir, Err: errors.New("another process has it open")}
	}
	if err := s.load(); err != nil {
		data.Close()
		return nil, store.DiskError(err, "open slab", o.Dir)
	}
	s.done.Go(s.flushLoop)
	return s, nil
}

func (s *Slab) indexPath() string { return filepath.Join(s.dir, "slab.idx") }

// load reads the index, or begins anew.
func (s *Slab) load() error {
	head := make([]byte, headerSize)
	if _, err := s.data.ReadAt(head, 0); err != nil && err != io.EOF {
		return err
	}
	index, err := os.ReadFile(s.indexPath())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	id, ok := decodeHeader(head, dataMagic)
	if ofIndex, okIndex := decodeHeader(index, indexMagic); !ok || !okIndex || id != ofIndex {
		return s.reset()
	}
	st, err := s.data.Stat()
	if err != nil {
		return err
	}
	s.id = id
	dataBlocks := min(st.Size()/store.BlockSize, maxBlocks)
	var clean bool
	s.places, clean = decodeIndex(index[headerSize:], uint32(dataBlocks))
	s.extents = newExtents(s.places)
	if clean {
		s.index, err = os.OpenFile(s.indexPath(), os.O_WRONLY|os.O_APPEND, 0)
	} else {
		err = s.rewriteIndex()
	}
	if err != nil {
		// The old index can be replayed as often as one likes; what it then says
		// wrongly, verification finds.
		s.log.Warn("chunks cached from now on will be forgotten, because the index cannot be written", "dir", s.dir, "err", err)
	}
	return nil
}

// reset empties the slab. The index goes first: at no time does one describe a
// slab with other content.
func (s *Slab) reset() error {
	if err := os.Remove(s.indexPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if _, err := rand.Read(s.id[:]); err != nil {
		return err
	}
	if err := s.data.Truncate(0); err != nil {
		return err
	}
	if _, err := s.data.WriteAt(encodeHeader(dataMagic, s.id), 0); err != nil {
		return err
	}
	if err := s.data.Sync(); err != nil {
		return err
	}
	s.places = map[store.Digest]place{}
	s.extents = newExtents(nil)
	return s.rewriteIndex()
}

// rewriteIndex replaces the index by one of the places as they are now, and
// leaves it open for appending.
func (s *Slab) rewriteIndex() error {
	temp := s.indexPath() + ".new"
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(encodeIndex(s.id, s.places))
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(temp, s.indexPath())
	}
	if err == nil {
		err = syncDir(s.dir)
	}
	if err != nil {
		f.Close()
		return err
	}
	s.index = f
	return nil
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// Has implements store.Cache. The chunk may still turn out to be damaged.
func (s *Slab) Has(d store.Digest) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, ok := s.places[d]
	return ok
}

// Read implements store.Cache.
func (s *Slab) Read(c store.Chunk, dst []byte) (bool, error) {
	if len(dst) != int(c.Size) {
		return false, fault.New(fault.Invalid, "read chunk %s into %d bytes", c, len(dst))
	}
	s.mu.RLock()
	p, ok := s.places[c.Digest]
	closed := s.closed
	s.mu.RUnlock()
	if closed {
		return false, errClosed()
	}
	if !ok || p.size != c.Size {
		s.misses.Add(1)
		return false, nil
	}
	// No lock: nobody else gets this place before the slab is closed.
	if _, err := s.data.ReadAt(dst, offset(p)); err != nil {
		if errors.Is(err, os.ErrClosed) {
			return false, errClosed()
		}
		s.drop(c.Digest, p, err)
		return false, nil
	}
	if !p.verified {
		if store.Sum(dst) != c.Digest {
			s.drop(c.Digest, p, errors.New("its content does not match its digest"))
			return false, nil
		}
		s.verified(c.Digest, p)
	}
	s.hits.Add(1)
	return true, nil
}

var zeros [store.BlockSize]byte

func offset(p place) int64 { return int64(p.block) * store.BlockSize }

func errClosed() error { return fault.New(fault.Cancelled, "the slab is closed") }

// verified remembers that the bytes at p are right.
func (s *Slab) verified(d store.Digest, p place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.places[d] == p {
		p.verified = true
		s.places[d] = p
	}
}

// drop forgets a damaged chunk. Its place stays taken until the next opening.
func (s *Slab) drop(d store.Digest, p place, why error) {
	s.mu.Lock()
	cur, ok := s.places[d]
	ok = ok && cur.block == p.block
	if ok {
		delete(s.places, d)
		s.pending.records = append(s.pending.records, record{d, p.block, p.size, kindDrop})
	}
	s.mu.Unlock()
	s.misses.Add(1)
	if ok {
		s.drops.Add(1)
		s.log.Warn("a cached chunk is damaged and was dropped", "chunk", d, "block", p.block, "err", why)
		s.kick()
	}
}

// Write implements store.Cache. A chunk that is here already, or for which there
// is no room under the limit, is left alone, and that is no error.
func (s *Slab) Write(c store.Chunk, data []byte) error {
	if c.Size == 0 || c.Size > store.ChunkSize || len(data) != int(c.Size) || c.Digest.IsZero() {
		return fault.New(fault.Invalid, "write chunk %s of %d bytes", c, len(data))
	}
	need := blocks(c.Size)
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return errClosed()
	}
	if _, ok := s.places[c.Digest]; ok || s.extents.used+int64(need) > s.limit {
		s.mu.Unlock()
		return nil
	}
	block, ok := s.extents.take(need)
	s.mu.Unlock()
	if !ok {
		return nil
	}
	p := place{block: block, size: c.Size, verified: true}
	_, err := s.data.WriteAt(data, offset(p))
	if pad := int(need)*store.BlockSize - len(data); err == nil && pad > 0 {
		// The rest of the last block can be seen through a mapping.
		_, err = s.data.WriteAt(zeros[:pad], offset(p)+int64(len(data)))
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	_, twice := s.places[c.Digest] // somebody wrote the same meanwhile
	if err != nil || twice || s.closed {
		s.extents.give(block, need)
		if err != nil && !errors.Is(err, os.ErrClosed) {
			return store.DiskError(err, "write to slab", s.dir)
		}
		return nil
	}
	s.places[c.Digest] = p
	s.pending.records = append(s.pending.records, record{c.Digest, block, c.Size, kindPut})
	s.pending.bytes += int64(c.Size)
	s.writes.Add(1)
	if len(s.pending.records) == 1 || s.pending.bytes >= flushBytes {
		s.kick()
	}
	return nil
}

// Pin implements store.Cache. A pinned chunk need not be here.
func (s *Slab) Pin(owner string, chunks []store.Chunk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range chunks {
		if c.Digest.IsZero() {
			continue
		}
		s.pins.owners[owner] = append(s.pins.owners[owner], c.Digest)
		s.pins.count[c.Digest]++
	}
}

// Unpin implements store.Cache.
func (s *Slab) Unpin(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.pins.owners[owner] {
		if s.pins.count[d]--; s.pins.count[d] == 0 {
			delete(s.pins.count, d)
		}
	}
	delete(s.pins.owners, owner)
}

// Stats implements store.Cache.
func (s *Slab) Stats() store.CacheStats {
	s.mu.RLock()
	defer s.mu.RUnlock()
	st := store.CacheStats{
		Chunks: int64(len(s.places)), Bytes: s.extents.used * store.BlockSize,
		Hits: s.hits.Load(), Misses: s.misses.Load(), Drops: s.drops.Load(), Writes: s.writes.Load(),
	}
	if s.limit != math.MaxInt64/store.BlockSize {
		st.Limit = s.limit * store.BlockSize
	}
	return st
}

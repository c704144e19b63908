package slab

import (
	"errors"
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
	Dir string // holds the slab and what belongs to it; made if need be

	// Limit bounds the bytes of chunks on disk, and Reserve is what is left free
	// on the filesystem if others fill it too: chunks are evicted for both. 0 means
	// no bound.
	Limit, Reserve int64

	Log *slog.Logger // nil: slog.Default()
}

// Slab implements store.Cache.
type Slab struct {
	opts Options
	disk disk
	lock *os.File // keeps other processes out
	log  *slog.Logger
	id   identity
	data file

	mu      sync.RWMutex
	table   table
	extents extents
	room    int64 // blocks that may be given out: by the limit, and by what the filesystem had when last measured
	closed  bool
	owners  map[string]*owner
	pending struct {
		records []record // to append after a sync, in this order
		bytes   int64    // written since the last sync
	}
	retired  []extent // places that nobody will look up any more, but somebody may be reading
	epoch    int      // which of grace readers take
	scrubbed scrubState

	// grace is held shared by whoever reads a place, in the epoch in which it was
	// looked up. When nobody is left of an epoch, what was retired in it is nobody's.
	grace [2]sync.RWMutex

	evicting sync.Mutex // one eviction at a time; before mu
	victims  []victim   // guarded by evicting

	growing sync.RWMutex // shared: bytes are on their way to a place that was just given out; exclusive: the file is cut; before mu
	pinning sync.Mutex   // one change of the pin files at a time; before mu

	scrubbing sync.Mutex // one scrub at a time; before all others

	flushing sync.Mutex // one sync at a time; before mu
	index    indexFile

	clock      clock
	unmeasured atomic.Int64 // bytes written since the filesystem was last measured
	counters   counters

	wake    chan struct{} // something is pending, or enough that it should not wait
	crowded chan struct{} // more is given out than there is room for
	stop    chan struct{}
	done    sync.WaitGroup
}

type counters struct {
	hits, misses, drops, writes, evicted, evictedBytes, refused atomic.Int64
	scrubbed, scrubbedBytes, scrubDamaged                       atomic.Int64
}

var _ store.Cache = (*Slab)(nil)

const (
	dataName  = "slab"
	indexName = "slab.idx"
	cleanName = "slab.clean"
	lockName  = "slab.lock"
	pinDir    = "pins"
)

// Open opens the slab in a directory, or makes one. If another process has it
// open the error is fault.Exists. A slab or index that cannot be understood, or is
// of another version, is discarded: it is a cache. A natively mounted image that
// reads from such a slab goes on doing so: a new one is a new file.
func Open(o Options) (*Slab, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, store.DiskError(err, "open slab", o.Dir)
	}
	lock, err := os.OpenFile(filepath.Join(o.Dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, store.DiskError(err, "open slab", o.Dir)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, (&fault.Error{Class: fault.Exists, Op: "open slab", Object: o.Dir, Err: errors.New("another process has it open")}).
			WithHint("One server uses a data directory. End the other with `brisk down`, or give this one another directory.")
	}
	s, err := openOn(directory(o.Dir), o)
	if err != nil {
		lock.Close()
		return nil, store.DiskError(err, "open slab", o.Dir)
	}
	s.lock = lock
	s.done.Go(s.flushLoop)
	s.done.Go(s.yieldLoop)
	return s, nil
}

// openOn opens the slab on a disk. Nothing runs in the background yet.
func openOn(d disk, o Options) (*Slab, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Limit <= 0 {
		o.Limit = math.MaxInt64
	}
	s := &Slab{
		opts: o, disk: d, log: o.Log, owners: map[string]*owner{}, room: o.Limit / store.BlockSize,
		wake: make(chan struct{}, 1), crowded: make(chan struct{}, 1), stop: make(chan struct{}),
	}
	if err := s.load(); err != nil {
		if s.data != nil {
			s.data.Close()
		}
		if s.index.file != nil {
			s.index.file.Close()
		}
		return nil, err
	}
	return s, nil
}

// Has implements store.Cache. The chunk may still turn out to be damaged.
func (s *Slab) Has(d store.Digest) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, e := s.table.find(d)
	return e != nil && e.here()
}

// Path is the file that natively mounted images read from.
func (s *Slab) Path() string { return s.disk.path(dataName) }

// Stats implements store.Cache.
func (s *Slab) Stats() store.CacheStats {
	c := &s.counters
	st := store.CacheStats{
		Hits: c.hits.Load(), Misses: c.misses.Load(), Drops: c.drops.Load(), Writes: c.writes.Load(),
		Evicted: c.evicted.Load(), EvictedBytes: c.evictedBytes.Load(), Refused: c.refused.Load(),
		Scrubbed: c.scrubbed.Load(), ScrubbedBytes: c.scrubbedBytes.Load(), ScrubDamaged: c.scrubDamaged.Load(),
	}
	if s.opts.Limit != math.MaxInt64 {
		st.Limit = s.opts.Limit
	}
	s.each(func(_ uint32, e *entry) {
		if e.place.block == 0 {
			return
		}
		if e.here() {
			st.Chunks++
		}
		if e.pinned() {
			st.Pinned += int64(blocks(e.place.size)) * store.BlockSize
		}
	})
	s.mu.RLock()
	defer s.mu.RUnlock()
	st.Bytes = s.extents.used * store.BlockSize
	if !s.closed {
		_, st.Disk, _ = s.data.size()
	}
	return st
}

// Room is how many bytes of chunks can be written without an eviction.
func (s *Slab) Room() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return max(min(s.room, math.MaxInt64/store.BlockSize)-s.extents.used, 0) * store.BlockSize
}

// each calls fn for each entry, a page at a time under mu: a writer that waits
// for the lock keeps readers out.
func (s *Slab) each(fn func(uint32, *entry)) {
	var first uint32
	s.eachPage(func(page *[pageEntries]entry) {
		for i := range page {
			if e := &page[i]; !e.digest.IsZero() {
				fn(first+uint32(i), e)
			}
		}
	}, func() bool { first += pageEntries; return true })
}

// eachPage calls fn for each page with mu held for reading, and after it between,
// without mu, until that is false.
func (s *Slab) eachPage(fn func(*[pageEntries]entry), between func() bool) {
	s.mu.RLock()
	pages := s.table.pages
	s.mu.RUnlock()
	for _, page := range pages {
		s.mu.RLock()
		fn(page)
		s.mu.RUnlock()
		if !between() {
			return
		}
	}
}

// Close flushes, notes that all is in order, and closes. Reads in progress may fail.
func (s *Slab) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	close(s.stop)
	s.done.Wait()
	err := s.Flush()
	s.growing.Lock() // writes in progress end, and none begins
	defer s.growing.Unlock()
	s.evicting.Lock()
	defer s.evicting.Unlock()
	s.flushing.Lock()
	defer s.flushing.Unlock()
	if err == nil {
		err = s.closeInOrder()
	}
	if s.index.file != nil {
		s.index.file.Close()
	}
	if closeErr := s.data.Close(); err == nil {
		err = closeErr
	}
	if s.lock != nil {
		s.lock.Close()
	}
	return err
}

// closeInOrder writes the index with what is known of the chunks' soundness and
// use, and then the note that this can be believed.
func (s *Slab) closeInOrder() error {
	s.reclaim()
	if err := s.data.sync(); err != nil {
		return store.DiskError(err, "sync slab", s.opts.Dir)
	}
	sum, err := s.replaceIndex()
	if err == nil {
		var f file
		if f, err = publish(s.disk, cleanName, content(encodeClean(s.id, s.index.size, sum))); err == nil {
			err = f.Close()
		}
	}
	return store.DiskError(err, "close slab", s.opts.Dir)
}

func errClosed() error { return fault.New(fault.Cancelled, "the slab is closed") }

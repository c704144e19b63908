package store

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store/seal"
)

// Options says what a Store is made of.
type Options struct {
	Dir    string       // local state: a copy of the packs' indexes, and packs being written. Of one process.
	Origin Origin       // where packs, blobs and records are; closed by its owner, not by the store
	Cache  Cache        // nil: every read goes to the origin; closed by its owner, after the store
	Log    *slog.Logger // nil: slog.Default()

	// Base is a store that this one reads from and deduplicates against, and never
	// writes to; nil: none. It has no base itself, the same cache, and is closed later.
	// Workspaces sets it.
	Base *Store
	// Keys are the workspace's: whoever has peers needs them. With Sealed, what
	// goes to the origin is sealed with them, and nothing else is taken from there.
	Keys   *seal.Keys
	Sealed bool
	Peers  Peers            // other machines; nil: none
	Shared bool             // other processes may write to the origin, and delete from it
	Now    func() time.Time // tells the epoch of what is sealed; nil: time.Now

	ready func(context.Context) error // fails if nothing may be written yet; nil: it may

	// ReadTimeout bounds one chunk's reading from the origin; 0 is 30 s.
	ReadTimeout time.Duration
	// Parallel bounds the chunks that are read from the origin at once; 0 is
	// 32: at 5 ms a read that is 800 MB/s, in 4 MiB of memory.
	Parallel int
	// Patience is how long a reader of a chunk that a Stream is to bring waits for
	// a stream that does not move; 0 is 500 ms, ten slow round trips.
	Patience time.Duration
}

// Store is the chunks, packs, blobs and records of one workspace at its origin. All
// methods are safe for concurrent use.
type Store struct {
	opts   Options
	tmp    string
	log    *slog.Logger
	base   atomic.Pointer[Store]
	index  *index
	logged indexLog
	holds  holds
	ledger *ledger  // nil: the origin is this process's alone
	placed sync.Map // blobs (Digest) that were put here: their keys (string)

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // everything that runs in the background

	local    chan struct{} // closed when the local copy of indexes has been read
	expected expected
	served   served
	loaded   atomic.Bool // the index is complete
	loading  struct {
		sync.Mutex          // also orders the beginning of background work against Close
		now        *loadRun // nil: none has begun
	}

	publish     sync.RWMutex // shared: making an object visible; exclusive: deleting one
	collecting  sync.Mutex   // one Collect at a time
	tenures     tenures
	uses        uses
	listed      atomic.Int64  // boottime when the last listing of all packs began, if loaded
	origin      chan struct{} // slots for parallel reads
	flights     flights
	streams     streams
	demand      demand
	prefetching chan struct{} // slots of Prefetch
	counters    counters
}

// Open opens a store. Nothing of the origin is read before somebody asks.
func Open(ctx context.Context, o Options) (*Store, error) {
	if o.Dir == "" || o.Origin == nil {
		return nil, fault.New(fault.Invalid, "a store needs a directory and an origin")
	}
	if o.Keys == nil && (o.Sealed || o.Peers != nil) {
		return nil, fault.New(fault.Invalid, "a store that seals, or has peers, needs keys")
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.ReadTimeout <= 0 {
		o.ReadTimeout = 30 * time.Second
	}
	if o.Parallel <= 0 {
		o.Parallel = 32
	}
	if o.Patience <= 0 {
		o.Patience = 500 * time.Millisecond
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := &Store{
		opts: o, log: o.Log, index: newIndex(),
		tmp:         filepath.Join(o.Dir, "packing"),
		logged:      indexLog{path: filepath.Join(o.Dir, "packs.idx")},
		origin:      make(chan struct{}, o.Parallel),
		local:       make(chan struct{}),
		prefetching: make(chan struct{}, prefetchers(o.Origin)),
	}
	if o.Shared {
		s.ledger = &ledger{o.Origin, originTimes}
	}
	s.expected.packs, s.expected.turn = map[Digest]struct{}{}, make(chan struct{}, 1)
	if err := os.MkdirAll(s.tmp, 0o700); err != nil {
		return nil, DiskError(err, "open store", o.Dir)
	}
	if err := sweep(s.tmp); err != nil {
		return nil, fault.Wrap(err, "open store", o.Dir)
	}
	// Not ctx: that is of the opening only.
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.base.Store(o.Base)
	s.wg.Go(s.readLog)
	return s, nil
}

// ready fails if nothing may be written.
func (s *Store) ready(ctx context.Context) error {
	if s.opts.ready == nil {
		return nil
	}
	return s.opts.ready(ctx)
}

// sealing are the keys that seal what goes to the origin; nil if nothing does.
func (s *Store) sealing() *seal.Keys {
	if s.opts.Sealed {
		return s.opts.Keys
	}
	return nil
}

// epoch is that of what is written now.
func (s *Store) epoch() uint32 {
	if s.opts.Sealed {
		return seal.EpochAt(s.opts.Now())
	}
	return 0
}

// current reports whether what is in a pack need not be stored again: an epoch
// ends what a damaged chunk can take with it.
func (s *Store) current(p *pack) bool { return p.how.epoch == s.epoch() }

// Close stops what the store does and waits for it: reads and batches in
// progress fail with fault.Cancelled.
func (s *Store) Close() error {
	s.loading.Lock() // nothing is spawned after this
	s.cancel()
	s.loading.Unlock()
	s.wg.Wait()
	s.logged.close()
	return nil
}

// Has reports whether the store, or its base, has a good copy of a chunk, in a
// pack that is not deleted. It waits for the index; if that cannot be loaded the answer is no.
func (s *Store) Has(d Digest) bool {
	for _, in := range s.lineage() {
		if in.await(s.ctx) == nil && in.index.has(d) {
			return true
		}
	}
	return false
}

// spawn runs fn in the background, unless the store is closed.
func (s *Store) spawn(fn func()) bool {
	s.loading.Lock()
	defer s.loading.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.wg.Go(fn)
	return true
}

// errClosed is what everything answers after Close.
func errClosed() error { return fault.New(fault.Cancelled, "the store is closed") }

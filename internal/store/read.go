package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store/seal"
)

// Stats are counts since opening, but for the last four.
type Stats struct {
	CacheReads, CacheBytes   int64 // chunks, or parts of them, served by the cache
	PeerReads, PeerBytes     int64 // chunks fetched from other machines
	OriginReads, OriginBytes int64 // chunks fetched from the origin, in plain bytes
	StoredBytes              int64 // the same, as they were transferred
	JoinedReads              int64 // reads that waited for another's fetch, or for a stream
	HoleReads                int64
	DamagedReads             int64 // copies in the origin that did not verify
	BrokenAnswers            int64 // answers of the origin that did not verify, and another did
	DamagedAnswers           int64 // answers of peers that did not verify
	PeerFailures             int64 // times that peers failed otherwise than by not having a chunk
	Served                   int64 // chunks that other machines got from this one
	CacheFailures            int64 // chunks that the cache could not read or keep

	StreamedChunks, StreamedBytes     int64 // brought by Stream; in plain bytes, and their transfer is in StoredBytes
	StreamedTwice                     int64 // chunks that Stream transferred for nothing: a reader who could not wait had fetched them
	PrefetchedChunks, PrefetchedBytes int64 // of OriginReads and PeerReads, those of Prefetch

	Packs, Chunks   int // that can be read; a chunk in two packs counts twice
	DamagedChunks   int // copies known to be damaged
	UnreadablePacks int
}

type counters struct {
	cacheReads, cacheBytes, originReads, originBytes, storedBytes, joinedReads, holeReads, damagedReads, brokenAnswers, cacheFailures atomic.Int64
	streamedChunks, streamedBytes, streamedTwice, prefetchedChunks, prefetchedBytes                                                   atomic.Int64
	peerReads, peerBytes, damagedAnswers, peerFailures, served                                                                        atomic.Int64
	cacheLogged                                                                                                                       atomic.Int64 // when a cache failure was last logged, Unix seconds
}

// Stats gives the counts. It does not wait for the index.
func (s *Store) Stats() Stats {
	c := &s.counters
	st := Stats{
		CacheReads: c.cacheReads.Load(), CacheBytes: c.cacheBytes.Load(),
		OriginReads: c.originReads.Load(), OriginBytes: c.originBytes.Load(), StoredBytes: c.storedBytes.Load(),
		JoinedReads: c.joinedReads.Load(), HoleReads: c.holeReads.Load(),
		DamagedReads: c.damagedReads.Load(), BrokenAnswers: c.brokenAnswers.Load(), CacheFailures: c.cacheFailures.Load(),
		StreamedChunks: c.streamedChunks.Load(), StreamedBytes: c.streamedBytes.Load(), StreamedTwice: c.streamedTwice.Load(),
		PrefetchedChunks: c.prefetchedChunks.Load(), PrefetchedBytes: c.prefetchedBytes.Load(),
		PeerReads: c.peerReads.Load(), PeerBytes: c.peerBytes.Load(),
		DamagedAnswers: c.damagedAnswers.Load(), PeerFailures: c.peerFailures.Load(), Served: c.served.Load(),
	}
	st.Packs, st.Chunks, st.DamagedChunks, st.UnreadablePacks = s.index.counts()
	return st
}

// add adds the counts of another store.
func (s *Stats) add(o Stats) {
	for _, n := range []struct {
		to   *int64
		from int64
	}{
		{&s.CacheReads, o.CacheReads}, {&s.CacheBytes, o.CacheBytes}, {&s.PeerReads, o.PeerReads}, {&s.PeerBytes, o.PeerBytes},
		{&s.OriginReads, o.OriginReads}, {&s.OriginBytes, o.OriginBytes}, {&s.StoredBytes, o.StoredBytes},
		{&s.JoinedReads, o.JoinedReads}, {&s.HoleReads, o.HoleReads}, {&s.DamagedReads, o.DamagedReads},
		{&s.BrokenAnswers, o.BrokenAnswers}, {&s.DamagedAnswers, o.DamagedAnswers}, {&s.PeerFailures, o.PeerFailures},
		{&s.Served, o.Served}, {&s.CacheFailures, o.CacheFailures},
		{&s.StreamedChunks, o.StreamedChunks}, {&s.StreamedBytes, o.StreamedBytes}, {&s.StreamedTwice, o.StreamedTwice},
		{&s.PrefetchedChunks, o.PrefetchedChunks}, {&s.PrefetchedBytes, o.PrefetchedBytes},
	} {
		*n.to += n.from
	}
	s.Packs, s.Chunks = s.Packs+o.Packs, s.Chunks+o.Chunks
	s.DamagedChunks, s.UnreadablePacks = s.DamagedChunks+o.DamagedChunks, s.UnreadablePacks+o.UnreadablePacks
}

// ReadChunk fills dst, of length c.Size, with the content of a chunk that the
// workspace, or its base, has stored; another is fault.Corrupt, even if the cache
// has it, which holds what all workspaces read. So it may wait for the indexes
// of all packs: whoever reads an image uses a Reader.
//
// It says where the content came from; a hole is zeros and counts as the
// cache's. The content is right, or there is an error: fault.Corrupt if every copy
// is damaged or the chunk is nowhere, fault.Timeout, fault.Unavailable. What was
// read from elsewhere is then on its way into the cache; who reads it meanwhile waits for that.
func (s *Store) ReadChunk(ctx context.Context, c Chunk, dst []byte) (Tier, error) {
	if !c.Digest.IsZero() && c.Size > 0 && c.Size <= ChunkSize && int(c.Size) == len(dst) {
		if err := s.stored(ctx, c); err != nil {
			return FromOrigin, err
		}
	}
	return s.readChunk(ctx, c, dst)
}

// stored fails if the workspace has no copy of a chunk, good or damaged.
func (s *Store) stored(ctx context.Context, c Chunk) error {
	for _, in := range s.lineage() {
		if err := in.awaitLocal(ctx); err != nil {
			return err
		}
		if in.index.knows(c.Digest) {
			return nil
		}
	}
	for _, in := range s.lineage() {
		if err := in.await(ctx); err != nil {
			return err
		}
		if in.index.knows(c.Digest) {
			return nil
		}
	}
	for _, in := range s.lineage() {
		if err := in.relearn(ctx); err != nil {
			return err
		}
		if in.index.knows(c.Digest) {
			return nil
		}
	}
	return s.notStored(c)
}

func (s *Store) notStored(c Chunk) error {
	for _, in := range s.lineage() {
		if in.ctx.Err() != nil { // what was known of packs cannot be read any more
			return errClosed()
		}
	}
	return &fault.Error{Class: fault.Corrupt, Op: "read chunk", Object: c.String(), Hint: hintImport,
		Err: fmt.Errorf("no pack of the store holds it")}
}

// lineage is the store and, if it has one, its base: where its chunks may lie.
func (s *Store) lineage() []*Store {
	if base := s.base.Load(); base != nil {
		return []*Store{s, base}
	}
	return []*Store{s}
}

// readChunk is ReadChunk for who knows from a manifest that the chunk is the workspace's.
func (s *Store) readChunk(ctx context.Context, c Chunk, dst []byte) (Tier, error) {
	if c.Size == 0 || c.Size > ChunkSize || len(dst) != int(c.Size) {
		return FromOrigin, fault.New(fault.Invalid, "read chunk %s into %d bytes", c, len(dst))
	}
	if c.Digest.IsZero() {
		clear(dst)
		s.counters.holeReads.Add(1)
		return FromCache, nil
	}
	if s.fromCache(c, dst) {
		return FromCache, nil
	}
	s.demand.enter()
	defer s.demand.leave()
	if ok, err := s.streams.wait(ctx, c, dst, s.opts.Patience); ok || err != nil {
		if ok {
			s.counters.joinedReads.Add(1)
		}
		return FromOrigin, err
	}
	// It may have come while we looked elsewhere.
	s.flights.settle(ctx, c.Digest)
	if s.opts.Cache != nil && s.opts.Cache.Has(c.Digest) && s.fromCache(c, dst) {
		return FromCache, nil
	}
	fl, flightCtx, mine := s.flights.join(s.ctx, c)
	defer s.flights.leave(c.Digest, fl)
	if !mine {
		s.counters.joinedReads.Add(1)
	} else if !s.spawn(func() { s.fly(flightCtx, c, fl) }) {
		s.flights.fail(c.Digest, fl, errClosed())
	}
	select {
	case <-fl.done:
		if fl.err != nil {
			return FromOrigin, fl.err
		}
		copy(dst, fl.buf[:c.Size])
		return fl.tier, nil
	case <-ctx.Done():
		return FromOrigin, fault.Wrap(ctx.Err(), "read chunk", c.String())
	}
}

// fromCache fills dst if the cache has the chunk.
func (s *Store) fromCache(c Chunk, dst []byte) bool {
	if s.opts.Cache == nil {
		return false
	}
	ok, err := s.opts.Cache.Read(c, dst)
	if err != nil {
		s.cacheFailed("read", c, err)
		return false
	}
	if ok {
		s.counters.cacheReads.Add(1)
		s.counters.cacheBytes.Add(int64(c.Size))
	}
	return ok
}

// readRun fills dst from chunks that the cache has and has verified already.
func (s *Store) readRun(chunks []Chunk, dst []byte, off int64) bool {
	if s.opts.Cache == nil || !s.opts.Cache.ReadRun(chunks, dst, off) {
		return false
	}
	s.counters.cacheReads.Add(int64(len(chunks)))
	s.counters.cacheBytes.Add(int64(len(dst)))
	return true
}

// fly is a flight's course.
func (s *Store) fly(ctx context.Context, c Chunk, fl *flight) {
	var err error
	if fl.tier, err = s.fetch(ctx, c, fl.buf[:c.Size]); err != nil {
		s.flights.fail(c.Digest, fl, err)
		return
	}
	keep := func() {
		s.keep(c, fl.buf[:c.Size])
		s.flights.finish(c.Digest, fl)
	}
	// A thread runs next what was made ready last: the readers, before the keeping.
	kept := s.spawn(keep)
	s.flights.land(fl)
	if !kept {
		keep()
	}
}

// keep gives a chunk to the cache.
func (s *Store) keep(c Chunk, data []byte) {
	if s.opts.Cache == nil {
		return
	}
	if err := s.opts.Cache.Write(c, data); err != nil {
		s.cacheFailed("write", c, err)
	} else {
		s.announce(c)
	}
}

// fetch fills buf with a chunk from a peer or the origin.
func (s *Store) fetch(ctx context.Context, c Chunk, buf []byte) (Tier, error) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.ReadTimeout)
	defer cancel()
	tier := FromPeer
	if !s.fromPeers(ctx, c, buf) {
		tier = FromOrigin
		if err := s.fromOrigin(ctx, c, buf); err != nil {
			return tier, err
		}
	}
	return tier, nil
}

// fromOrigin fills buf with a chunk from the origin.
func (s *Store) fromOrigin(ctx context.Context, c Chunk, buf []byte) error {
	select {
	case s.origin <- struct{}{}:
		defer func() { <-s.origin }()
	case <-ctx.Done():
		return fault.Wrap(ctx.Err(), "read chunk", c.String())
	}
	stored, err := s.readCopies(ctx, c, buf)
	if err != nil {
		return err
	}
	s.counters.originReads.Add(1)
	s.counters.originBytes.Add(int64(c.Size))
	s.counters.storedBytes.Add(int64(stored))
	return nil
}

// find lists the copies of a chunk, and gets to know more packs as long as there is none.
func (s *Store) find(ctx context.Context, c Chunk) ([]copyOf, error) {
	for _, know := range []func(*Store) error{
		func(in *Store) error { return in.awaitLocal(ctx) },
		func(in *Store) error { return in.learnExpected(ctx) },
		func(in *Store) error { return in.await(ctx) },
		func(in *Store) error { return in.relearn(ctx) },
	} {
		var copies []copyOf
		for _, in := range s.lineage() {
			if err := know(in); err != nil {
				return nil, err
			}
			copies = append(copies, in.index.find(in, c.Digest)...)
		}
		if len(copies) > 0 {
			return copies, nil
		}
	}
	return nil, s.notStored(c)
}

// readCopies tries every copy of the chunk until one is right.
func (s *Store) readCopies(ctx context.Context, c Chunk, buf []byte) (stored uint32, err error) {
	stored, gone, err := s.tryCopies(ctx, c, buf)
	if gone {
		// What the local copy knew of was deleted; the chunk may be elsewhere now.
		var again error
		if stored, _, again = s.tryCopies(ctx, c, buf); again == nil || ctx.Err() != nil {
			err = again
		}
	}
	return stored, err
}

// tryCopies reports also whether a pack turned out to be gone, and is forgotten.
func (s *Store) tryCopies(ctx context.Context, c Chunk, buf []byte) (stored uint32, gone bool, err error) {
	copies, err := s.find(ctx, c)
	if err != nil {
		return 0, false, err
	}
	for _, at := range copies {
		if err = at.in.secondLook(ctx, func() error { return at.in.readCopy(ctx, c, at, buf) }); err == nil {
			at.in.index.unmarkDamaged(c.Digest, at.pack)
			return at.stored, false, nil
		}
		if ctx.Err() != nil {
			return 0, false, fault.Wrap(ctx.Err(), "read chunk", c.String())
		}
		if !fault.Is(err, fault.Corrupt) {
			continue
		}
		if errors.Is(err, errGone) {
			at.in.index.remove(at.pack)
			gone = true
			continue
		}
		s.counters.damagedReads.Add(1)
		if at.in.index.markDamaged(c.Digest, at.pack) {
			s.log.Error("a chunk is damaged in its pack", "chunk", c.Digest, "pack", at.pack, "err", err)
			if err := at.in.logged.addDamage(at.pack, c.Digest); err != nil {
				s.log.Warn("the damage will be forgotten at the next opening", "err", err)
			}
		}
	}
	return 0, gone, err
}

// errGone is in the chain of what readCopy gives if the pack is not there.
var errGone = errors.New("the pack is gone")

// Verify reads chunks from the origin, past the cache. Damage is known only once
// it is met, and a Batch takes what is not known to be damaged for stored: after
// Verify, work that is done again stores anew all that it has to. The error is
// ctx's, or that the store was closed.
func (s *Store) Verify(ctx context.Context, chunks []Chunk) error {
	if err := s.awaitAll(ctx); err != nil {
		return err
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(verifiers, len(chunks)) {
		wg.Add(1)
		if !s.spawn(func() {
			defer wg.Done()
			buf := make([]byte, ChunkSize)
			for ctx.Err() == nil && s.ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(chunks) {
					return
				}
				if c := chunks[i]; c.Size <= ChunkSize && !c.Digest.IsZero() {
					s.verify(ctx, c, buf[:c.Size])
				}
			}
		}) {
			wg.Done()
			break
		}
	}
	wg.Wait()
	if s.ctx.Err() != nil {
		return errClosed()
	}
	return fault.Wrap(ctx.Err(), "verify", "chunks")
}

// verifiers leaves most of Options.Parallel to calls.
const verifiers = 4

// verify reads one chunk; what is wrong with it is noted below.
func (s *Store) verify(ctx context.Context, c Chunk, buf []byte) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.ReadTimeout)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	select {
	case s.origin <- struct{}{}:
		defer func() { <-s.origin }()
		_, _ = s.readCopies(ctx, c, buf)
	case <-ctx.Done():
	}
}

const hintImport = "Import or build the image again: that stores what is missing or damaged anew."

// frameBuffer holds any stored frame.
type frameBuffer [ChunkSize + seal.Overhead]byte

var frameBuffers = sync.Pool{New: func() any { return new(frameBuffer) }}

// readCopy fills buf from one copy and verifies it.
func (s *Store) readCopy(ctx context.Context, c Chunk, at copyOf, buf []byte) error {
	damaged := func(err error) error {
		return &fault.Error{Class: fault.Corrupt, Op: "read chunk", Object: c.String() + " of pack " + at.pack.String(),
			Hint: hintImport, Err: err}
	}
	if at.size != c.Size {
		return damaged(fmt.Errorf("it has %d bytes there", at.size))
	}
	frame := buf
	if !at.raw || at.how.sealed {
		mem := frameBuffers.Get().(*frameBuffer)
		defer frameBuffers.Put(mem)
		frame = mem[:at.stored]
	}
	err := s.opts.Origin.ReadAt(ctx, packKey(at.pack), frame, int64(at.offset))
	switch {
	case fault.Is(err, fault.NotFound):
		return damaged(errGone)
	case fault.Is(err, fault.Corrupt):
		return damaged(err)
	case err != nil:
		return fault.Wrap(err, "read chunk", c.String()+" of pack "+at.pack.String())
	}
	if err := s.openFrame(c, at.how, frame, at.raw, buf); err != nil {
		return damaged(err)
	}
	return nil
}

// openFrame fills buf with the content of a stored frame, and verifies it. A
// plain frame that is raw may lie in buf already; a sealed one is opened in place.
func (s *Store) openFrame(c Chunk, how packSeal, frame []byte, raw bool, buf []byte) (err error) {
	if how.sealed {
		if s.opts.Keys == nil {
			return fault.New(fault.Corrupt, "it is sealed, and this store has no keys")
		}
		if frame, err = s.opts.Keys.OpenFrame(c.Digest, how.epoch, frame); err != nil {
			return err
		}
	}
	if err := decodeFrame(frame, raw, buf); err != nil {
		return err
	}
	if Sum(buf) != c.Digest {
		return fault.New(fault.Corrupt, "its content does not match its digest")
	}
	return nil
}

// cacheFailed counts, and logs once a minute: a full disk fails every write.
func (s *Store) cacheFailed(op string, c Chunk, err error) {
	s.counters.cacheFailures.Add(1)
	now, last := time.Now().Unix(), s.counters.cacheLogged.Load()
	if now-last >= 60 && s.counters.cacheLogged.CompareAndSwap(last, now) {
		s.log.Warn("the chunk cache failed; reads go on from the origin", "op", op, "chunk", c.Digest, "err", err, "hint", fault.HintOf(err))
	}
}

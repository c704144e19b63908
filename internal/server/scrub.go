package server

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/slab"
)

// How the server looks for rot in the cache by itself: nothing else would find it
// where a natively mounted image reads. 8 MB/s is little for any disk, and covers
// 100 GB in four hours.
const (
	scrubFirst = 5 * time.Minute
	scrubEvery = 24 * time.Hour // from the end of a round to the beginning of the next
	scrubAgain = time.Minute    // after one that was broken off
	scrubRate  = 8 << 20        // bytes a second

	rereadLimit = time.Minute // for a million files
)

// scrubber reads the cache again and again, and has what is damaged fetched anew.
type scrubber struct {
	cache  *slab.Slab
	stores *store.Workspaces
	files  interface{ Reread(context.Context) error }
	log    *slog.Logger

	mended, lost atomic.Int64 // chunks that mounted images read, since the start

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// begin starts scrubbing in the background.
func (s *scrubber) begin() {
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.wg.Go(func() {
		for wait := max(scrubFirst, scrubWait(s.cache.Coverage(), time.Now())); ; wait = scrubWait(s.cache.Coverage(), time.Now()) {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return
			}
			m := s.mender(ctx)
			r, err := s.cache.Scrub(ctx, slab.ScrubOptions{Rate: scrubRate, Damaged: m.damaged})
			m.end()
			if err != nil && ctx.Err() == nil && !fault.Is(err, fault.Exists) {
				s.log.Warn("the cache cannot be scrubbed; the next attempt follows", "err", err)
			}
			if r.Damaged > 0 {
				s.log.Error("the disk had lost chunks of the cache", "damaged", r.Damaged, "of", r.Chunks, "read by mounted images", r.Mounted)
			}
		}
	})
}

// scrubWait is how long the next round, or the rest of this one, is to wait. A
// clock that was set back makes it no longer.
func scrubWait(c slab.Coverage, now time.Time) time.Duration {
	if !c.Began.IsZero() || c.Ended.IsZero() {
		return scrubAgain
	}
	return min(max(scrubEvery-now.Sub(c.Ended), scrubAgain), scrubEvery)
}

func (s *scrubber) close() {
	s.cancel()
	s.wg.Wait()
}

// check reads all of the cache now, for `brisk store fsck`.
func (s *scrubber) check(ctx context.Context, progress func(done, total int64)) (*api.CacheCheck, error) {
	m := s.mender(ctx)
	r, err := s.cache.Check(ctx, slab.CheckOptions{Damaged: m.damaged, Progress: progress})
	m.end()
	if err != nil {
		return nil, fault.Wrap(err, "check", "the cache")
	}
	return &api.CacheCheck{
		Chunks: r.Chunks, Bytes: r.Bytes, Damaged: r.Damaged, Mounted: r.Mounted,
		Mended: append([]string{}, r.Mended...), Problems: append(append([]string{}, r.Problems...), m.lost...),
	}, nil
}

// mender fetches damaged chunks again that mounted images read. Others are fetched
// when somebody wants them.
type mender struct {
	s      *scrubber
	ctx    context.Context
	mended int
	lost   []string
}

func (s *scrubber) mender(ctx context.Context) *mender { return &mender{s: s, ctx: ctx} }

func (m *mender) damaged(c store.Chunk, mounted bool) {
	if !mounted {
		return
	}
	err := m.fetch(c)
	if err != nil {
		m.s.log.Error("a damaged chunk that mounted images read cannot be fetched again", "chunk", c.Digest, "err", err, "hint", fault.HintOf(err))
		m.s.lost.Add(1)
		m.lost = append(m.lost, "chunk "+c.String()+", which mounted images read, cannot be fetched again: "+err.Error())
		return
	}
	m.s.mended.Add(1)
	m.mended++
}

// fetch reads the chunk from a workspace that has stored it, and has it written to
// the old place, durably.
func (m *mender) fetch(c store.Chunk) error {
	workspaces, err := m.s.stores.List(m.ctx)
	if err != nil {
		return err
	}
	err = fault.New(fault.Corrupt, "no workspace has stored it")
	buf := make([]byte, c.Size)
	for _, w := range workspaces {
		s, serr := m.s.stores.Store(w)
		if serr != nil {
			err = serr
			continue
		}
		if _, err = s.ReadChunk(m.ctx, c, buf); err == nil {
			// The store gave it to the cache, but does not say whether that could keep it.
			return m.s.cache.Repair(c, buf)
		}
	}
	return err
}

// end makes mounts forget what they have read of places that were mended, also when
// the check itself was broken off. Which of a mount's files have a chunk only its tree
// says; so all files of all mounts are read anew. That is rare, and costs reads only.
func (m *mender) end() {
	if m.mended == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.ctx), rereadLimit)
	defer cancel()
	if err := m.s.files.Reread(ctx); err != nil {
		m.s.log.Error("mounted images may go on seeing damaged bytes until they are mounted again", "err", err)
	}
}

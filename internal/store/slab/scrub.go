package slab

import (
	"context"
	"encoding/binary"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// ScrubOptions say how to scrub.
type ScrubOptions struct {
	Rate int64 // bytes a second; 0: as many as the disk gives

	// Damaged is told of each damaged chunk, before the next is read. One that is
	// mounted, natively, is still read by the image, and waits for its bytes:
	// fetch them, and give them to Repair (store.ReadChunk does both). Others have
	// been dropped.
	Damaged func(c store.Chunk, mounted bool)

	// Progress is told how many bytes of this round have been covered, and of how many.
	Progress func(done, total int64)
}

// ScrubReport says what a call of Scrub did.
type ScrubReport struct {
	Chunks, Bytes int64 // that were read from the disk
	Damaged       int64 // chunks, of which
	Mounted       int64 // so many are read by natively mounted images
	Pins          int64 // pin files that were damaged and written anew
	Complete      bool  // the round came to its end
}

// Scrub reads chunks from the disk, past the page cache, in the order of their
// places, and verifies them: bit rot where no read passes by us is found by this
// only. It goes on where the last call was interrupted, be it by the end of the
// process, and returns at the end of the round, or when ctx ends. What was written
// since the round began, and what is not synced, is left to the next. One call at a
// time; the error of another is fault.Exists.
func (s *Slab) Scrub(ctx context.Context, o ScrubOptions) (r ScrubReport, err error) {
	if !s.scrubbing.TryLock() {
		return r, fault.New(fault.Exists, "the cache is being scrubbed already")
	}
	defer s.scrubbing.Unlock()
	if r.Pins, err = s.mendPins(); err != nil {
		return r, err
	}
	s.mu.Lock()
	if s.scrubbed.began == 0 {
		s.scrubbed.block, s.scrubbed.began = 0, time.Now().Unix()
	}
	from := s.scrubbed.block
	s.mu.Unlock()
	seats, left := s.seats(from)
	_, total := s.coverage()
	done := total - left
	defer s.noteScrub()

	buf := alignedBuffer(store.ChunkSize)
	began := time.Now()
	for i, at := range seats {
		if err := s.pause(ctx, began, r.Bytes, o.Rate); err != nil {
			return r, err
		}
		c, damage, err := s.inspect(at, buf)
		if err != nil {
			return r, err
		}
		r.Chunks++
		r.Bytes += int64(at.place.size)
		s.counters.scrubbed.Add(1)
		s.counters.scrubbedBytes.Add(int64(at.place.size))
		if damage != nil {
			s.counters.scrubDamaged.Add(1)
			mounted := s.damaged(c.Digest, at.place, damage)
			r.Damaged++
			if mounted {
				r.Mounted++
			}
			if o.Damaged != nil {
				o.Damaged(c, mounted)
			}
		}
		if o.Progress != nil {
			o.Progress(min(done+r.Bytes, total), total)
		}
		s.mu.Lock()
		s.scrubbed.block = at.place.end()
		s.mu.Unlock()
		if i%scrubNote == scrubNote-1 {
			s.noteScrub()
		}
	}
	r.Complete = true
	s.mu.Lock()
	s.scrubbed = scrubState{ended: time.Now().Unix()}
	s.mu.Unlock()
	return r, nil
}

// scrubNote is after how many chunks the position is noted: so many are read
// twice after a crash.
const scrubNote = 4096

// pause waits until bytes may have been read at this rate.
func (s *Slab) pause(ctx context.Context, began time.Time, bytes, rate int64) error {
	if err := ctx.Err(); err != nil {
		return fault.Wrap(err, "scrub", s.opts.Dir)
	}
	if rate <= 0 {
		return nil
	}
	wait := time.Until(began.Add(time.Duration(float64(bytes) / float64(rate) * float64(time.Second))))
	if wait <= 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fault.Wrap(ctx.Err(), "scrub", s.opts.Dir)
	case <-s.stop:
		return errClosed()
	}
}

// Coverage says how far the scrub has come.
type Coverage struct {
	Began, Ended time.Time // of this round, and of the last whole one; zero if there was none
	Done, Total  int64     // bytes of this round
}

// Coverage tells what the scrub covers: until Ended everything that had been there when
// that round began was verified, and since Began so much again.
func (s *Slab) Coverage() (c Coverage) {
	c.Done, c.Total = s.coverage()
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.scrubbed.began != 0 {
		c.Began = time.Unix(s.scrubbed.began, 0)
	}
	if s.scrubbed.ended != 0 {
		c.Ended = time.Unix(s.scrubbed.ended, 0)
	}
	return c
}

func (s *Slab) coverage() (done, total int64) {
	s.mu.RLock()
	block := s.scrubbed.block
	s.mu.RUnlock()
	s.each(func(_ uint32, e *entry) {
		if e.here() {
			total += int64(e.place.size)
			if e.place.block < block {
				done += int64(e.place.size)
			}
		}
	})
	return done, total
}

// scrubState is how far the scrub has come. It goes round and round.
type scrubState struct {
	block uint32 // where it goes on
	began int64  // this round, Unix seconds; 0: none has begun
	ended int64  // the last whole round, Unix seconds; 0: there was none
}

// noteScrub keeps the state in the index.
func (s *Slab) noteScrub() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note(s.scrubbed.record())
}

// record is the state in the index: the times are where others have a digest.
func (c scrubState) record() record {
	r := record{kind: kindScrub, place: place{block: c.block}}
	binary.LittleEndian.PutUint64(r.digest[0:], uint64(c.began))
	binary.LittleEndian.PutUint64(r.digest[8:], uint64(c.ended))
	return r
}

func decodeScrubState(r record) scrubState {
	return scrubState{
		block: r.place.block,
		began: int64(binary.LittleEndian.Uint64(r.digest[0:])),
		ended: int64(binary.LittleEndian.Uint64(r.digest[8:])),
	}
}

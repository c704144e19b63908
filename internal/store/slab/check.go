package slab

import (
	"context"
	"fmt"
	"slices"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// CheckOptions say whom Check tells what, as ScrubOptions do.
type CheckOptions struct {
	Damaged  func(c store.Chunk, mounted bool)
	Progress func(done, total int64) // bytes
}

// CheckReport says what Check read and found.
type CheckReport struct {
	Chunks, Bytes int64
	Damaged       int64    // chunks that the disk does not have right, of which
	Mounted       int64    // so many are read by natively mounted images
	Mended        []string // what else was wrong, and has been put right
	Problems      []string // what else was wrong, and has not
}

// Check looks at all of the slab: that places are apart and inside, that the
// index and the pin files on the disk say what is so (else they are written
// anew), and that each chunk on the disk is what its digest says. It reads as
// fast as the disk gives, and may run beside everything else.
func (s *Slab) Check(ctx context.Context, o CheckOptions) (r CheckReport, err error) {
	if err := s.Flush(); err != nil {
		r.Problems = append(r.Problems, err.Error())
	}
	r.Problems = append(r.Problems, s.checkPlaces()...)
	switch mended, err := s.mendIndex(); {
	case err != nil:
		return r, err
	case mended != "":
		r.Mended = append(r.Mended, mended)
	}
	pins, err := s.mendPins()
	if err != nil {
		return r, err
	}
	if pins > 0 {
		r.Mended = append(r.Mended, fmt.Sprintf("%d records of natively mounted images were damaged", pins))
	}
	seats, total := s.seats(0)
	err = s.inspectAll(ctx, seats, func(at seat, c store.Chunk, damage error) {
		r.Chunks++
		r.Bytes += int64(at.place.size)
		if damage != nil {
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
			o.Progress(r.Bytes, total)
		}
	})
	return r, err
}

// checkPlaces compares what is in memory with itself: what it finds is a fault of ours.
func (s *Slab) checkPlaces() (problems []string) {
	s.growing.Lock() // places that are changing hands are in no list
	defer s.growing.Unlock()
	s.evicting.Lock()
	defer s.evicting.Unlock()
	var taken []extent
	var used int64
	s.mu.RLock()
	for _, e := range s.table.all() {
		if p := e.place; p.block != 0 {
			taken = append(taken, p.extent())
			used += int64(blocks(p.size))
		}
	}
	end, given := s.extents.end, s.extents.used
	free := make([]extent, 0, len(s.extents.byBlock))
	for block, count := range s.extents.byBlock {
		free = append(free, extent{block, count})
	}
	s.mu.RUnlock()
	if used > given {
		problems = append(problems, fmt.Sprintf("%d blocks are used, but only %d were given out", used, given))
	}
	all := slices.Concat(taken, free)
	slices.SortFunc(all, func(x, y extent) int { return int(int64(x.block) - int64(y.block)) })
	for i, x := range all {
		if i > 0 && x.block < all[i-1].end() {
			problems = append(problems, fmt.Sprintf("block %d belongs to two", x.block))
		}
		if x.end() > end {
			problems = append(problems, fmt.Sprintf("block %d is beyond the end", x.end()-1))
		}
	}
	return problems
}

// mendIndex writes the index anew if it does not say what is so.
func (s *Slab) mendIndex() (mended string, err error) {
	s.flushing.Lock()
	defer s.flushing.Unlock()
	b, err := s.disk.read(indexName, maxIndexBytes)
	if err == nil {
		if id, ok := decodeHeader(b, indexMagic); !ok || id != s.id {
			err = fault.New(fault.Corrupt, "its header is damaged")
		}
	}
	var lacks int
	if err == nil {
		c := decodeContents(b[headerSize:], nil, maxBlocks-1, false)
		// Chunks that went since the last flush are still in the index.
		s.each(func(_ uint32, e *entry) {
			if e.here() && e.state&stateSynced != 0 {
				if _, known := c.table.find(e.digest); known == nil || known.place != e.place {
					lacks++
				}
			}
		})
	}
	if err == nil && lacks == 0 {
		return "", nil
	}
	if rewriteErr := s.rewriteIndex(); rewriteErr != nil {
		return "", store.DiskError(rewriteErr, "write slab index", s.opts.Dir)
	}
	if err != nil {
		return fmt.Sprintf("the index could not be read (%v)", err), nil
	}
	return fmt.Sprintf("the index lacked %d chunks", lacks), nil
}

// mendPins writes the pin files anew that do not say what is pinned: at the next
// opening nobody would know any more.
func (s *Slab) mendPins() (mended int64, err error) {
	s.pinning.Lock()
	defer s.pinning.Unlock()
	for _, owner := range s.Owners() {
		want := s.pinsOf(owner)
		if want == nil {
			continue // of another slab
		}
		name, err := pinFile(owner)
		if err != nil {
			return mended, err
		}
		b, err := s.disk.read(name, maxPinBytes)
		if err == nil && string(b) == string(encodePins(s.id, want)) {
			continue
		}
		s.log.Error("the record of what an image reads natively is damaged, and is written anew", "owner", owner, "err", err)
		if err := s.writePins(owner, want); err != nil {
			return mended, err
		}
		mended++
	}
	return mended, nil
}

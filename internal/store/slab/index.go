package slab

import (
	"cmp"
	"io"
	"slices"
	"sync/atomic"
)

// contents is what the files of a slab say, put together.
type contents struct {
	table table
	taken []extent // of all places, sorted
	tick  uint32   // the last that a record has
	scrub scrubState

	// The index should be written anew: it has outdated records for the most
	// part, or says something that is not so.
	untidy bool
}

// decodeContents puts the pins and the records of an index together, for a slab
// of dataBlocks blocks. What a pin names is its own, whatever the index says: a
// natively mounted image reads there. Of the index, records that are damaged,
// places beyond the end, and places that overlap are left out: verification would
// find out about them, but only after somebody had to wait for it. If the slab
// was not closed in order, no chunk is sound.
func decodeContents(index []byte, pins map[string][]pinned, dataBlocks uint32, clean bool) contents {
	var c contents
	t := &c.table
	for _, pins := range pins {
		for _, p := range pins {
			_, e := t.findOrAdd(p.digest)
			e.place, e.state = p.place, stateSynced
			e.fixed++
		}
	}
	c.untidy = len(index)%recordSize != 0
	records := 0
	for ; len(index) >= recordSize; index = index[recordSize:] {
		records++
		r, ok := decodeRecord(index)
		if !ok {
			c.untidy = true
			continue
		}
		if r.kind == kindScrub {
			c.scrub = decodeScrubState(r)
			continue
		}
		c.tick = max(c.tick, r.used&tickMask)
		id, e := t.find(r.digest)
		switch {
		case e != nil && e.fixed > 0:
			if r.place != e.place {
				c.untidy = c.untidy || r.kind == kindHere
				continue
			}
			e.restore(r, clean)
			if r.kind == kindGone {
				e.state = stateSynced
			}
		case r.kind == kindHere:
			if e == nil {
				_, e = t.add(r.digest)
			}
			e.place = r.place
			e.restore(r, clean)
		case e != nil && e.place.block == r.place.block:
			e.place.block = 0
			t.tidy(id)
		}
	}
	for _, pins := range pins {
		for _, p := range pins {
			if _, e := t.find(p.digest); e.used == 0 { // the clock begins at 1
				c.untidy = true
			}
		}
	}
	// Outdated records are worth writing the others anew when they are the larger part.
	if records > 2*t.ids.Len()+1024 {
		c.untidy = true
	}
	c.separate(dataBlocks)
	return c
}

// restore takes over what a record says beside the place.
func (e *entry) restore(r record, clean bool) {
	e.used = r.used
	e.state = stateSynced
	if clean && r.flags&flagSound != 0 {
		e.state |= stateSound
	}
}

// separate forgets the places that cannot be, or overlap others, and lists what
// is taken. Those of pins do not overlap each other.
func (c *contents) separate(dataBlocks uint32) {
	t := &c.table
	order := make([]uint32, 0, t.ids.Len())
	for id := range t.all() {
		order = append(order, id)
	}
	slices.SortFunc(order, func(x, y uint32) int { return cmp.Compare(t.at(x).place.block, t.at(y).place.block) })
	bad := func(id uint32) {
		if e := t.at(id); e.fixed == 0 {
			e.place.block = 0
			c.untidy = true
		}
	}
	var last, end uint32 // the place that reaches furthest, and how far
	for _, id := range order {
		e := t.at(id)
		if e.place.end() > dataBlocks {
			e.state &^= stateSound
			bad(id)
		}
		at, to := e.place.block, e.place.end()
		if at != 0 && at < end {
			bad(id)
			bad(last)
		}
		if at != 0 && to > end {
			last, end = id, to
		}
	}
	c.taken = make([]extent, 0, len(order))
	for _, id := range order {
		if e := t.at(id); e.place.block != 0 {
			c.taken = append(c.taken, e.place.extent())
			continue
		}
		t.tidy(id)
	}
}

// snapshot writes an index file of the chunks that the disk has, as they are now.
// Chunks may come and go meanwhile: what is not synced yet gets its record later. It
// goes piece by piece: the whole may be large.
func (s *Slab) snapshot(w io.Writer) error {
	s.mu.RLock()
	b := s.scrubbed.record().append(encodeHeader(indexMagic, s.id))
	s.mu.RUnlock()
	var err error
	s.eachPage(func(page *[pageEntries]entry) {
		for i := range page {
			if e := &page[i]; e.place.block != 0 && e.state&(stateSynced|stateDamaged) == stateSynced {
				b = e.record(kindHere).append(b)
			}
		}
	}, func() bool {
		_, err = w.Write(b)
		b = b[:0]
		return err == nil
	})
	if err == nil {
		_, err = w.Write(b)
	}
	return err
}

// record says what the index is to know of e.
func (e *entry) record(kind uint8) record {
	r := record{digest: e.digest, place: e.place, kind: kind, used: atomic.LoadUint32(&e.used)}
	if e.state&stateSound != 0 {
		r.flags |= flagSound
	}
	return r
}

// maxIndexBytes bounds what is read of an index: more chunks have no place.
const maxIndexBytes = headerSize + int64(maxBlocks)*recordSize

// indexFile is the index as it is on disk. Guarded by Slab.flushing.
type indexFile struct {
	file  file
	size  int64
	stale bool   // the file lacks something, or has more than it should: write it anew
	from  uint32 // tick when it was last written anew
	spare int64  // bytes of records since then
}

// appendIndex adds records to the index, after their bytes have been synced.
func (s *Slab) appendIndex(records []byte) error {
	if s.index.stale {
		return s.rewriteIndex()
	}
	if _, err := s.index.file.WriteAt(records, s.index.size); err != nil {
		s.index.stale = true
		return err
	}
	s.index.size += int64(len(records))
	s.index.spare += int64(len(records))
	// Written anew it is shorter, and knows what was used of late.
	s.mu.RLock()
	chunks := int64(s.table.ids.Len())
	s.mu.RUnlock()
	if s.index.spare > 2*chunks*recordSize+64<<10 || s.clock.age(s.index.from) > recencyTicks/4 {
		return s.rewriteIndex()
	}
	return nil
}

// rewriteIndex replaces the index by one of the places as they are now.
func (s *Slab) rewriteIndex() error {
	_, err := s.replaceIndex()
	return err
}

// replaceIndex writes the index anew and gives its checksum.
func (s *Slab) replaceIndex() (sum uint32, err error) {
	var size int64
	f, err := publish(s.disk, indexName, func(w io.Writer) error {
		return s.snapshot(writerFunc(func(p []byte) (int, error) {
			size += int64(len(p))
			sum = extendChecksum(sum, p)
			return w.Write(p)
		}))
	})
	if err != nil {
		s.index.stale = true
		return 0, err
	}
	if s.index.file != nil {
		s.index.file.Close()
	}
	s.index = indexFile{file: f, size: size, from: s.clock.now()}
	return sum, nil
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

package slab

import (
	"crypto/rand"
	"errors"
	"io"
	"os"

	"brisk.dev/brisk/internal/store"
)

// load reads what there is, pins first, or begins anew.
func (s *Slab) load() error {
	if err := s.sweep(); err != nil {
		return err
	}
	var err error
	if s.data, err = s.disk.open(dataName); err != nil {
		return err
	}
	head := make([]byte, headerSize)
	n, err := s.data.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return err
	}
	var ok bool
	s.id, ok = decodeHeader(head, dataMagic)
	pins, err := s.readPins()
	if err != nil {
		return err
	}
	switch {
	case !ok && n > 0:
		s.log.Warn("the chunk cache cannot be read by this version, or is damaged: it begins anew", "dir", s.opts.Dir)
	case pins.damaged():
		// Some image may be mounted over places that nobody knows any more.
		s.log.Warn("a record of what is natively mounted is damaged: the chunk cache begins anew", "dir", s.opts.Dir, "owners", pins.unreadable)
		ok = false
	}
	if !ok {
		if err := s.begin(); err != nil {
			return err
		}
		if err := s.disown(&pins); err != nil {
			return err
		}
	}
	index, err := s.disk.read(indexName, maxIndexBytes)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	whole := index
	if id, ok := decodeHeader(index, indexMagic); ok && id == s.id {
		index = index[headerSize:]
	} else {
		index, whole = nil, nil
	}
	clean, err := s.unclean(whole)
	if err != nil {
		return err
	}
	size, _, err := s.data.size()
	if err != nil {
		return err
	}
	c := decodeContents(index, pins.ours, uint32(min(size/store.BlockSize, maxBlocks)), clean)
	s.table, s.scrubbed = c.table, c.scrub
	s.extents = newExtents(c.taken)
	s.clock.start(s.opts.Limit, c.tick)
	s.adopt(pins)
	s.measure()
	if err := s.giveBack(); err != nil {
		s.log.Warn("the disk is not given back what free places take of it", "dir", s.opts.Dir, "err", err)
	}
	if whole == nil || c.untidy {
		err = s.rewriteIndex()
	} else if s.index.file, err = s.disk.open(indexName); err == nil {
		s.index.size, s.index.from = int64(len(whole)), s.clock.now()
	}
	if err != nil {
		// The old index can be replayed as often as one likes; what it then says
		// wrongly, verification finds.
		s.index.stale = true
		s.log.Warn("chunks cached from now on will be forgotten, unless the index can be written later", "dir", s.opts.Dir, "err", err)
	}
	return nil
}

// sweep removes what a crash left half-made.
func (s *Slab) sweep() error {
	if err := s.disk.mkdir(pinDir); err != nil {
		return err
	}
	for _, dir := range []string{".", pinDir} {
		names, err := s.disk.list(dir)
		if err != nil {
			return err
		}
		for _, name := range names {
			if isTemporary(name) {
				if err := s.disk.remove(inDir(dir, name)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func inDir(dir, name string) string {
	if dir == "." {
		return name
	}
	return dir + "/" + name
}

// begin makes a new slab file with a new identity: what the index and the pins
// say is not of it. The old one is left as it is, for who has it open.
func (s *Slab) begin() error {
	if _, err := rand.Read(s.id[:]); err != nil {
		return err
	}
	f, err := publish(s.disk, dataName, content(encodeHeader(dataMagic, s.id)))
	if err != nil {
		return err
	}
	s.data.Close()
	s.data = f
	return nil
}

// unclean reports whether the slab was closed in order when its index was this,
// and takes the note of it away, durably and before anything is changed.
func (s *Slab) unclean(index []byte) (clean bool, err error) {
	note, err := s.disk.read(cleanName, cleanSize+1)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	clean = index != nil && isClean(note, s.id, index)
	if err := s.disk.remove(cleanName); err != nil {
		return false, err
	}
	return clean, s.disk.sync(".")
}

// giveBack frees what the file takes of the disk beyond the places: after a crash
// that can be places of chunks that the index does not have.
func (s *Slab) giveBack() error {
	if err := s.trim(); err != nil {
		return err
	}
	_, allocated, err := s.data.size()
	if err != nil {
		return err
	}
	// The filesystem's own blocks count too.
	if used := s.extents.used * store.BlockSize; allocated <= used+used/256+1<<20 {
		return nil
	}
	for block, count := range s.extents.byBlock {
		if err := s.data.punch(int64(block)*store.BlockSize, int64(count)*store.BlockSize); err != nil {
			return err
		}
	}
	return nil
}

// trim cuts the file after the last place.
func (s *Slab) trim() error {
	s.growing.Lock()
	defer s.growing.Unlock()
	s.mu.RLock()
	end := int64(s.extents.end) * store.BlockSize
	s.mu.RUnlock()
	size, _, err := s.data.size()
	if err != nil || size <= end {
		return err
	}
	return s.data.Truncate(end)
}

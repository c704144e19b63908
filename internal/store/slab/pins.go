package slab

import (
	"cmp"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// owner is who has chunks pinned: a mounted image.
type owner struct {
	volatile []uint32 // entries pinned by Pin
	fixed    []uint32 // entries pinned by Place
	durable  bool     // there is a pin file, if perhaps of another slab
}

func (s *Slab) owner(name string) *owner {
	o := s.owners[name]
	if o == nil {
		o = &owner{}
		s.owners[name] = o
	}
	return o
}

// Pin implements store.Cache: until Unpin, or until the slab is closed. A pinned
// chunk need not be here.
func (s *Slab) Pin(owner string, chunks []store.Chunk) {
	s.pinning.Lock()
	defer s.pinning.Unlock()
	var have idSet
	s.mu.Lock()
	if len(s.owners) == math.MaxUint16 && s.owners[owner] == nil { // an entry counts them in 16 bits; a chunk that goes is fetched again
		s.mu.Unlock()
		return
	}
	o := s.owner(owner)
	for _, id := range o.volatile {
		have.add(id)
	}
	s.mu.Unlock()
	for part := range slices.Chunk(chunks, pageEntries) {
		s.mu.Lock()
		for _, c := range part {
			if c.Digest.IsZero() {
				continue
			}
			if id, e := s.table.findOrAdd(c.Digest); have.add(id) {
				e.volatile++
				o.volatile = append(o.volatile, id)
			}
		}
		s.mu.Unlock()
	}
}

// Unpin implements store.Cache, for both kinds of pins. If the end of durable
// ones cannot be made durable they stay, and the owner among Owners.
func (s *Slab) Unpin(owner string) {
	s.pinning.Lock()
	defer s.pinning.Unlock()
	s.mu.Lock()
	o := s.owners[owner]
	if o == nil {
		s.mu.Unlock()
		return
	}
	volatile, durable := o.volatile, o.durable
	o.volatile = nil
	s.mu.Unlock()
	s.release(volatile)
	if durable {
		// The file goes first: what others get afterwards must be named by none.
		if err := s.removePins(owner); err != nil {
			s.log.Warn("what an image had pinned stays in the cache, because that cannot be noted", "owner", owner, "err", err)
			return
		}
	}
	s.mu.Lock()
	fixed := o.fixed
	o.fixed = nil
	delete(s.owners, owner)
	s.mu.Unlock()
	s.unfix(fixed)
}

// release undoes one volatile pin of each entry.
func (s *Slab) release(ids []uint32) {
	for part := range slices.Chunk(ids, pageEntries) {
		s.mu.Lock()
		for _, id := range part {
			s.table.at(id).volatile--
			s.table.tidy(id)
		}
		s.mu.Unlock()
	}
}

// Owners are those who have durable pins, sorted: as found at opening, with those
// that came and without those that went since. Some may be of a slab that this one
// replaced: their mounts still read from that, and it is gone when they are.
func (s *Slab) Owners() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var names []string
	for name, o := range s.owners {
		if o.durable {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Fixed lists the chunks that an owner has pinned by Place, each once.
func (s *Slab) Fixed(owner string) []store.Chunk {
	s.mu.RLock()
	defer s.mu.RUnlock()
	o := s.owners[owner]
	if o == nil {
		return nil
	}
	chunks := make([]store.Chunk, 0, len(o.fixed))
	for _, id := range o.fixed {
		e := s.table.at(id)
		chunks = append(chunks, store.Chunk{Digest: e.digest, Size: e.place.size})
	}
	return chunks
}

// Pin files have the owner's name, so that they can be told apart even when they
// cannot be read; dots are escaped too, which leaves them to temporary files.
func pinFile(owner string) (string, error) {
	name := strings.ReplaceAll(url.PathEscape(owner), ".", "%2E")
	if name == "" || len(name) > 240 {
		return "", fault.New(fault.Invalid, "%.60q cannot pin chunks: want a name of 1 to 240 bytes", owner)
	}
	return pinDir + "/" + name, nil
}

func (s *Slab) writePins(owner string, pins []pinned) error {
	name, err := pinFile(owner)
	if err != nil {
		return err
	}
	f, err := publish(s.disk, name, content(encodePins(s.id, pins)))
	if err != nil {
		return store.DiskError(err, "pin chunks of", owner)
	}
	return f.Close()
}

func (s *Slab) removePins(owner string) error {
	name, err := pinFile(owner)
	if err != nil {
		return err
	}
	if err := s.disk.remove(name); err != nil {
		return err
	}
	return s.disk.sync(pinDir)
}

// foundPins are the pin files at opening, by owner.
type foundPins struct {
	ours       map[string][]pinned // of this slab
	foreign    []string            // of one that this has replaced
	unreadable []string
	contradict bool // two name the same blocks for different chunks
}

func (f foundPins) damaged() bool { return f.contradict || len(f.unreadable) > 0 }

// maxPins bounds a pin file: there are not more places than blocks.
const maxPinBytes = pinOverhead + int64(maxBlocks)*pinSize

func (s *Slab) readPins() (foundPins, error) {
	f := foundPins{ours: map[string][]pinned{}}
	names, err := s.disk.list(pinDir)
	if err != nil {
		return f, err
	}
	var all []pinned
	for _, name := range names {
		owner, err := url.PathUnescape(name)
		if canonical, badName := pinFile(owner); err != nil || badName != nil || canonical != pinDir+"/"+name {
			continue // not one of ours
		}
		b, err := s.disk.read(pinDir+"/"+name, maxPinBytes)
		if err != nil {
			return f, err
		}
		id, pins, ok := decodePins(b)
		switch {
		case !ok:
			f.unreadable = append(f.unreadable, owner)
		case id != s.id:
			f.foreign = append(f.foreign, owner)
		default:
			f.ours[owner] = pins
			all = append(all, pins...)
		}
	}
	f.contradict = contradict(all)
	return f, nil
}

// contradict reports whether not all of the pins can be true.
func contradict(pins []pinned) bool {
	slices.SortFunc(pins, func(x, y pinned) int { return cmp.Compare(x.place.block, y.place.block) })
	places := make(map[store.Digest]place, len(pins))
	for i, p := range pins {
		if i > 0 && p != pins[i-1] && p.place.block < pins[i-1].place.end() {
			return true
		}
		if other, ok := places[p.digest]; ok && other != p.place {
			return true
		}
		places[p.digest] = p.place
	}
	return false
}

// disown makes the pins those of the slab that was there before.
func (s *Slab) disown(f *foundPins) error {
	for owner := range f.ours {
		f.foreign = append(f.foreign, owner)
	}
	for _, owner := range f.unreadable {
		name, err := pinFile(owner)
		if err != nil {
			return err
		}
		file, err := publish(s.disk, name, content(encodePins(identity{}, nil)))
		if err != nil {
			return err
		}
		file.Close()
	}
	f.foreign = append(f.foreign, f.unreadable...)
	*f = foundPins{foreign: f.foreign}
	return nil
}

// adopt makes the pins that were found those of their owners.
func (s *Slab) adopt(f foundPins) {
	for _, name := range f.foreign {
		s.owner(name).durable = true
	}
	for name, pins := range f.ours {
		o := s.owner(name)
		o.durable = true
		for _, p := range pins {
			id, _ := s.table.find(p.digest) // decodeContents counted it
			o.fixed = append(o.fixed, id)
		}
	}
}

// Placement says where in the slab's file chunks lie, for as long as their owner has them pinned.
type Placement struct {
	File   string   // path of the slab
	Blocks []uint32 // for each chunk asked for, its first block of store.BlockSize bytes; Hole for a hole
}

// Hole is the block of a chunk that is a hole.
const Hole = math.MaxUint32

// MissingError says that an image cannot be mounted natively yet.
type MissingError struct {
	Missing, Total int   // chunks, each counted once; of those asked for without the holes
	Bytes          int64 // of the missing ones
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("%d of %d chunks (%d bytes) are not in the cache", e.Missing, e.Total, e.Bytes)
}

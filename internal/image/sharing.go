package image

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"slices"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// Sharing is how much of an image other images have, too. Bytes are plain, and of each chunk
// once: what the image would take by itself is the sum.
type Sharing struct {
	Own    int64 // that no other has
	Shared int64
}

// sharingLimit bounds the chunks that are kept in mind together, some 24 bytes each. If there
// are more, a part of all is done after the other, which costs less than the memory.
const sharingLimit = 2 << 20

// sharings are the last results. The same images always give the same.
type sharings struct {
	turn chan struct{}                             // held by whoever looks; guards the others
	last map[store.Digest]map[store.Digest]Sharing // by the digest of the images' digests
}

// keptSharings is how many results are kept: of so many workspaces.
const keptSharings = 8

// Sharing tells how much of each of these images none of the others has; images are told
// apart by digest. It reads their chunk tables, and fetches those that are not on this machine. An
// image whose table is damaged counts for nothing, and is left out.
func (s *Images) Sharing(ctx context.Context, images []*Image) (map[store.Digest]Sharing, error) {
	images = slices.Clone(images)
	slices.SortFunc(images, func(a, b *Image) int { return bytes.Compare(a.Digest[:], b.Digest[:]) })
	images = slices.CompactFunc(images, func(a, b *Image) bool { return a.Digest == b.Digest })
	var all []byte
	for _, i := range images {
		all = append(all, i.Digest[:]...)
	}
	key := store.Sum(all)
	c := &s.sharing
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, fault.Wrap(ctx.Err(), "compare", "images")
	}
	if r, ok := c.last[key]; ok {
		return r, nil
	}
	r, err := s.compare(ctx, images, sharingLimit)
	if err != nil {
		return nil, err
	}
	if len(c.last) >= keptSharings {
		clear(c.last)
	}
	c.last[key] = r
	return r, nil
}

// compare is Sharing, with at most so many chunks in mind at once, or an image's more.
func (s *Images) compare(ctx context.Context, images []*Image, limit int) (map[store.Digest]Sharing, error) {
	if err := eachOf(ctx, len(images), func(ctx context.Context, i int) error { // several at once, where they are far away
		img := images[i]
		if _, err := os.Stat(s.blobPath(img.Workspace, img.Manifest.Chunks.Digest)); err == nil {
			return nil
		}
		_, err := img.table(ctx)
		if fault.Is(err, fault.Corrupt) {
			err = nil // it is met again below
		}
		return err
	}); err != nil {
		return nil, err
	}
	for parts := uint64(1); ; parts *= 4 {
		c := comparison{known: map[uint64]owned{}, sums: make([]Sharing, len(images)), damaged: make([]bool, len(images))}
		fits := true
		for part := uint64(0); part < parts && fits; part++ {
			var err error
			if fits, err = s.comparePart(ctx, images, part, parts, limit, &c); err != nil {
				return nil, err
			}
		}
		if !fits && parts < 1<<16 {
			continue
		}
		r := map[store.Digest]Sharing{}
		for n, img := range images {
			if !c.damaged[n] {
				r[img.Digest] = c.sums[n]
			}
		}
		return r, nil
	}
}

// comparison is images as far as they have been compared.
type comparison struct {
	known   map[uint64]owned // by eight bytes of the digest: two of a billion chunks may be taken for one
	sums    []Sharing
	damaged []bool
}

// owned is a chunk, and the index of the image that has it; -1: several have.
type owned struct {
	owner int32
	size  uint32
}

// comparePart compares the chunks of one part of all; it gives up if they are more than limit.
func (s *Images) comparePart(ctx context.Context, images []*Image, part, parts uint64, limit int, c *comparison) (fits bool, err error) {
	clear(c.known)
	for n, img := range images {
		if c.damaged[n] {
			continue
		}
		table, err := img.table(ctx)
		if fault.Is(err, fault.Corrupt) {
			s.log.Warn("an image cannot be compared with others", "image", img.Digest.Short(), "error", err)
			c.damaged[n] = true
			continue
		}
		if err != nil {
			return false, err
		}
		for ; len(table) > 0; table = table[tableEntry:] {
			if uint64(binary.LittleEndian.Uint16(table))*parts>>16 != part {
				continue
			}
			id, size := binary.LittleEndian.Uint64(table[8:]), binary.LittleEndian.Uint32(table[32:])
			o, there := c.known[id]
			if !there {
				c.known[id] = owned{int32(n), size}
				c.sums[n].Own += int64(size)
				continue
			}
			c.sums[n].Shared += int64(size)
			if o.owner >= 0 {
				c.sums[o.owner].Own -= int64(o.size)
				c.sums[o.owner].Shared += int64(o.size)
				c.known[id] = owned{-1, o.size}
			}
		}
		if len(c.known) > limit && parts < 1<<16 {
			return false, nil
		}
	}
	return true, nil
}

// table reads the entries of the image's chunk table.
func (i *Image) table(ctx context.Context) ([]byte, error) {
	b, err := i.blob(ctx, i.Manifest.Chunks.Digest, tableSize(i.Manifest.Chunks.Count))
	if err == nil {
		b, err = tableEntries(b)
	}
	return b, i.wrap(err, "read chunk table of")
}

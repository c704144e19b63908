package slab

import (
	"cmp"
	"slices"

	"brisk.dev/brisk/internal/store"
)

// place is where a chunk is.
type place struct {
	block, size uint32
	verified    bool // its bytes matched its digest since the slab was opened, or were written since
}

func (p place) end() uint32 { return p.block + blocks(p.size) }

// decodeIndex replays an index file's records against a slab of dataBlocks
// blocks. Records that are damaged, places beyond the slab's end, and places
// that overlap are left out: verification would find out about them, but only
// after somebody had to wait for it. clean reports that nothing was.
func decodeIndex(b []byte, dataBlocks uint32) (places map[store.Digest]place, clean bool) {
	places = make(map[store.Digest]place, len(b)/recordSize)
	clean = len(b)%recordSize == 0
	records := 0
	for ; len(b) >= recordSize; b = b[recordSize:] {
		records++
		r, ok := decodeRecord(b)
		switch {
		case !ok:
			clean = false
		case r.kind == kindDrop:
			if places[r.digest].block == r.block {
				delete(places, r.digest)
			}
		default:
			places[r.digest] = place{block: r.block, size: r.size}
		}
	}
	// Outdated records are worth a rewrite when they are the larger part.
	if records > 2*len(places)+1024 {
		clean = false
	}
	order := make([]store.Digest, 0, len(places))
	for d, p := range places {
		if p.end() > dataBlocks {
			delete(places, d)
			clean = false
			continue
		}
		order = append(order, d)
	}
	slices.SortFunc(order, func(x, y store.Digest) int { return cmp.Compare(places[x].block, places[y].block) })
	var last store.Digest
	var end uint32
	for _, d := range order {
		p := places[d]
		if p.block < end {
			delete(places, d)
			delete(places, last)
			clean = false
		}
		if p.end() > end {
			last, end = d, p.end()
		}
	}
	return places, clean
}

// encodeIndex is an index file of these places.
func encodeIndex(id identity, places map[store.Digest]place) []byte {
	b := encodeHeader(indexMagic, id)
	for d, p := range places {
		b = record{d, p.block, p.size, kindPut}.append(b)
	}
	return b
}

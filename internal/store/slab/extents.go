package slab

import (
	"cmp"
	"slices"

	"brisk.dev/brisk/internal/store"
)

// extent is a run of blocks.
type extent struct{ block, count uint32 }

// extents gives out blocks: first from the free runs between the places, then from the end.
type extents struct {
	free []extent // sorted, not adjacent to each other
	hint int      // where the last fit was: what lies before is mostly too small
	end  uint32   // the first block that was never used
	used int64    // blocks given out
}

// newExtents finds the free runs around the places.
func newExtents(places map[store.Digest]place) extents {
	taken := make([]extent, 0, len(places))
	e := extents{end: 1} // block 0 is the header
	for _, p := range places {
		taken = append(taken, extent{p.block, blocks(p.size)})
	}
	slices.SortFunc(taken, func(x, y extent) int { return cmp.Compare(x.block, y.block) })
	for _, t := range taken {
		if t.block > e.end {
			e.free = append(e.free, extent{e.end, t.block - e.end})
		}
		e.end = t.block + t.count
		e.used += int64(t.count)
	}
	return e
}

// take gives count blocks in a row.
func (e *extents) take(count uint32) (block uint32, ok bool) {
	for i := range e.free {
		i = (i + e.hint) % len(e.free)
		f := &e.free[i]
		if f.count < count {
			continue
		}
		block = f.block
		f.block += count
		f.count -= count
		e.hint = i
		if f.count == 0 {
			e.free = slices.Delete(e.free, i, i+1)
		}
		e.used += int64(count)
		return block, true
	}
	if maxBlocks-e.end < count {
		return 0, false
	}
	block = e.end
	e.end += count
	e.used += int64(count)
	return block, true
}

// give takes back what take gave.
func (e *extents) give(block, count uint32) {
	e.used -= int64(count)
	i, _ := slices.BinarySearchFunc(e.free, block, func(f extent, b uint32) int { return cmp.Compare(f.block, b) })
	e.free = slices.Insert(e.free, i, extent{block, count})
	if i+1 < len(e.free) && block+count == e.free[i+1].block {
		e.free[i].count += e.free[i+1].count
		e.free = slices.Delete(e.free, i+1, i+2)
	}
	if i > 0 && e.free[i-1].block+e.free[i-1].count == block {
		e.free[i-1].count += e.free[i].count
		e.free = slices.Delete(e.free, i, i+1)
	}
}

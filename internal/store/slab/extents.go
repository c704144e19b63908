package slab

// extent is a run of blocks.
type extent struct{ block, count uint32 }

func (x extent) end() uint32 { return x.block + x.count }

// extents gives out blocks: first from the free runs between the places, then
// from the end. Free runs are not adjacent to each other, nor to the end. Both
// directions take about the same time however many runs there are.
type extents struct {
	byBlock map[uint32]uint32 // free runs: first block -> count
	byEnd   map[uint32]uint32 // the same: block after the last -> first block
	// bins have the first blocks of the runs of each length, the last bin those
	// that fit every chunk. What is outdated is left out when it comes up.
	bins [binCount][]uint32
	end  uint32 // the first block that was never used
	used int64  // blocks given out
}

const binCount = 33 // lengths 1 to 32: a whole chunk has 32 blocks

func binOf(count uint32) int { return int(min(count, binCount)) - 1 }

// newExtents finds the free runs around the runs that are taken, which are
// sorted and do not overlap.
func newExtents(taken []extent) extents {
	e := extents{byBlock: map[uint32]uint32{}, byEnd: map[uint32]uint32{}, end: 1} // block 0 is the header
	for _, t := range taken {
		if t.block > e.end {
			e.add(extent{e.end, t.block - e.end})
		}
		e.end = t.end()
		e.used += int64(t.count)
	}
	return e
}

func (e *extents) add(x extent) {
	e.byBlock[x.block] = x.count
	e.byEnd[x.end()] = x.block
	bin := &e.bins[binOf(x.count)]
	*bin = append(*bin, x.block)
	if len(*bin) > 2*len(e.byBlock)+1024 {
		kept := (*bin)[:0]
		seen := make(map[uint32]bool, len(e.byBlock))
		for _, b := range *bin {
			if n, ok := e.byBlock[b]; ok && binOf(n) == binOf(x.count) && !seen[b] {
				seen[b] = true
				kept = append(kept, b)
			}
		}
		*bin = kept
	}
}

func (e *extents) remove(x extent) {
	delete(e.byBlock, x.block)
	delete(e.byEnd, x.end())
}

// take gives count blocks in a row, at most binCount-1.
func (e *extents) take(count uint32) (block uint32, ok bool) {
	for i := binOf(count); i < binCount; i++ {
		for bin := &e.bins[i]; len(*bin) > 0; {
			block = (*bin)[len(*bin)-1]
			*bin = (*bin)[:len(*bin)-1]
			n, ok := e.byBlock[block]
			if !ok || binOf(n) != i {
				continue
			}
			e.remove(extent{block, n})
			if n > count {
				e.add(extent{block + count, n - count})
			}
			e.used += int64(count)
			return block, true
		}
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
func (e *extents) give(x extent) {
	e.used -= int64(x.count)
	if n, ok := e.byBlock[x.end()]; ok {
		e.remove(extent{x.end(), n})
		x.count += n
	}
	if first, ok := e.byEnd[x.block]; ok {
		before := extent{first, x.block - first}
		e.remove(before)
		x = extent{first, before.count + x.count}
	}
	if x.end() == e.end {
		e.end = x.block
		return
	}
	e.add(x)
}

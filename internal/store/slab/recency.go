package slab

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"

	"brisk.dev/brisk/internal/store"
)

// Time is counted in uses, not in seconds: it does not jump, and does not pass
// while the machine is idle. A tick is as many uses as a full slab has chunks,
// divided by recencyTicks: LRU is exact to a thousandth of the slab, and keeping
// it costs a reader one store to memory at most.
const (
	recencyTicks = 1024
	usedAgain    = 1 << 31 // in entry.used: the chunk was used in two ticks at least
	tickMask     = usedAgain - 1
)

// clock tells the tick.
type clock struct {
	uses    atomic.Int64
	perTick int64
	base    uint32
}

// start goes on after the tick of an earlier clock.
func (c *clock) start(limit int64, base uint32) {
	c.perTick, c.base = 64, base
	if limit != math.MaxInt64 {
		c.perTick = max(limit/store.ChunkSize/recencyTicks, 1)
	}
}

func (c *clock) now() uint32 {
	return uint32((int64(c.base) + 1 + c.uses.Load()/c.perTick) & tickMask)
}

// tick is now, after one more use.
func (c *clock) tick() uint32 {
	c.uses.Add(1)
	return c.now()
}

// age is how many ticks ago something was used.
func (c *clock) age(used uint32) int { return ageAt(c.now(), used) }

// ageAt does not take for ancient what was used just after now.
func ageAt(now, used uint32) int { return int(max(int32(now<<1-used<<1)>>1, 0)) }

// touch notes a use. Of two at once one may be lost.
func (c *clock) touch(used *uint32) {
	now, was := c.tick(), atomic.LoadUint32(used)
	if was&tickMask != now {
		atomic.StoreUint32(used, now|usedAgain)
	}
}

// victim is a chunk that may go, unless it is used again before.
type victim struct{ id, used uint32 }

// The slab is evicted by segmented LRU: chunks that were used at one time only go
// first, oldest first, so that a big image that is read once does not drive out
// what every start needs. To them belong the oldest of those used again, as far
// as these take more than protectedShare of what can be evicted at all: what was
// hot once does not stay for ever.
const protectedShare = 0.8

// ages is how many ticks are told apart: four times the slab's content.
const ages = 4 * recencyTicks

// choose lists what to evict next to free at least want blocks, best first; fewer
// if there are not so many. It looks at all chunks twice, at about 10 ns each and
// a page at a time, so it is made to choose many.
func (s *Slab) choose(want int64) []victim {
	now := s.clock.now()
	age := func(used uint32) int { return min(ageAt(now, used), ages-1) }
	var old [2][ages]int64 // blocks by age: used once, used again
	var total int64
	s.each(func(_ uint32, e *entry) {
		if e.evictable() {
			used, n := atomic.LoadUint32(&e.used), int64(blocks(e.place.size))
			old[used>>31][age(used)] += n
			total += n
		}
	})
	// demoted: the youngest age at which being used again does not protect.
	demoted, kept := 0, int64(0)
	for ; demoted < ages; demoted++ {
		if kept += old[1][demoted]; float64(kept) > protectedShare*float64(total) {
			break
		}
	}
	// From which age on chunks go, of either kind.
	once, again, got := ages, ages, int64(0)
	for once > 0 && got < want {
		once--
		got += old[0][once]
		if once >= demoted {
			got += old[1][once]
			again = once
		}
	}
	for again > 0 && got < want {
		if again--; again < demoted {
			got += old[1][again]
		}
	}
	var victims []victim
	s.each(func(id uint32, e *entry) {
		used := atomic.LoadUint32(&e.used)
		if from := [2]int{once, again}[used>>31]; e.evictable() && age(used) >= from {
			victims = append(victims, victim{id, used})
		}
	})
	protected := func(v victim) bool { return v.used&usedAgain != 0 && age(v.used) < demoted }
	slices.SortFunc(victims, func(x, y victim) int {
		if px, py := protected(x), protected(y); px != py {
			if py {
				return -1
			}
			return 1
		}
		return cmp.Compare(ageAt(now, y.used), ageAt(now, x.used))
	})
	return victims
}

package store

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// uses are the objects that this process reads at a shared origin whether or not
// anything names them any more: those of mounted images. One lease lists them all.
type uses struct {
	mu      sync.Mutex
	counts  map[string]int // by key
	changed chan struct{}  // has room for one
	running bool
}

const (
	// useDelay collects changes: starts come in bursts, and nothing is deleted so soon.
	useDelay = time.Second
	// useRetry is how soon a lease that could not be written is tried again.
	useRetry = 10 * time.Second
)

// Use protects these packs and blobs, of the store or its base, from collection until release,
// although nothing may name them any more. It does not block, and takes effect within
// seconds: time enough, because what something has just named stays for MinGrace. Where only
// this process deletes from the origin it does nothing.
func (s *Store) Use(packs, blobs []Digest) (release func()) {
	ends := []func(){}
	for _, in := range s.lineage() {
		if in.ledger == nil {
			continue
		}
		var keys []string
		for _, d := range packs {
			keys = append(keys, packKey(d))
		}
		for _, d := range blobs {
			keys = append(keys, in.blobKeys(d)...)
		}
		in.use(keys, 1)
		ends = append(ends, func() { in.use(keys, -1) })
	}
	return sync.OnceFunc(func() {
		for _, end := range ends {
			end()
		}
	})
}

func (s *Store) use(keys []string, n int) {
	u := &s.uses
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.counts == nil {
		u.counts, u.changed = map[string]int{}, make(chan struct{}, 1)
	}
	for _, k := range keys {
		if u.counts[k] += n; u.counts[k] == 0 {
			delete(u.counts, k)
		}
	}
	select {
	case u.changed <- struct{}{}:
	default:
	}
	if !u.running {
		u.running = s.spawn(s.keepUses)
	}
}

// keepUses keeps a lease of what is in use, as long as anything is.
func (s *Store) keepUses() {
	var held *lease
	defer func() {
		if held != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), farewell)
			defer cancel()
			held.release(ctx)
		}
	}()
	for {
		wait := s.ledger.times.renewal()
		var err error
		keys, done := s.usedKeys()
		switch {
		case done:
			return
		case held == nil:
			held, err = s.ledger.use(s.ctx, keys)
		default:
			if err = held.setUses(s.ctx, keys); held.lost.Load() {
				held = nil // this machine was asleep for long
			}
		}
		if err != nil && s.ctx.Err() == nil {
			s.log.Warn("other machines cannot be told what is in use here", "err", err)
			wait = useRetry
		}
		select {
		case <-time.After(wait):
		case <-s.ctx.Done():
			return
		case <-s.uses.changed:
			select {
			case <-time.After(useDelay):
			case <-s.ctx.Done():
				return
			}
		}
	}
}

// usedKeys gives what is in use, or ends the goroutine that asks.
func (s *Store) usedKeys() (keys []string, done bool) {
	u := &s.uses
	u.mu.Lock()
	defer u.mu.Unlock()
	select {
	case <-u.changed:
	default:
	}
	if len(u.counts) == 0 {
		u.running = false
		return nil, true
	}
	return slices.Sorted(maps.Keys(u.counts)), false
}

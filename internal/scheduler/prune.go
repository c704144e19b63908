package scheduler

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/function"
	"brisk.dev/brisk/internal/store"
)

// touchEvery is how often the use of a function is noted, on its file's time. It is
// small against every age that Prune is asked for.
const touchEvery = time.Hour

// Kept is a function that may be called.
type Kept struct {
	*function.Function
	Retired bool // a newer definition has its name
}

// Prune forgets the definitions that nobody has registered or called since before,
// that are of another SDK, or that are not usable, and lists the others. What has
// been called since the server started stays. A client that calls what was forgotten is told
// to register it again, which every program does by itself. dry only counts.
func (s *Scheduler) Prune(before time.Time, usable func(*function.Function) bool, dry bool) (kept []Kept, removed int, err error) {
	dir := filepath.Join(s.opt.Dir, "functions")
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, 0, fault.Wrap(err, "prune functions in", dir)
	}
	s.mu.Lock()
	pools := slices.Collect(maps.Values(s.mu.pools))
	s.mu.Unlock()
	for _, p := range pools {
		kept = append(kept, Kept{p.fn, p.isRetired()})
	}
	for _, f := range files {
		digits, ok := strings.CutSuffix(f.Name(), ".json")
		if !ok {
			continue
		}
		d, err := store.ParseDigest(digits)
		if err != nil {
			continue
		}
		fn, gone, err := s.prune(d, before, usable, dry)
		if err != nil {
			return kept, removed, fault.Wrap(err, "prune function", d.Short())
		}
		if fn != nil {
			kept = append(kept, Kept{fn, false})
		} else if gone {
			removed++
		}
	}
	return kept, removed, nil
}

// prune decides about one definition: fn if it stays, gone if not; neither if it has a pool.
func (s *Scheduler) prune(d store.Digest, before time.Time, usable func(*function.Function) bool, dry bool) (fn *function.Function, gone bool, err error) {
	s.mu.Lock() // nobody makes a pool of it meanwhile
	defer s.mu.Unlock()
	if s.mu.pools[d] != nil {
		return nil, false, nil
	}
	path := s.functionPath(d)
	st, err := os.Stat(path)
	if err != nil {
		return nil, false, err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, false, err
	}
	var f function.Function
	if json.Unmarshal(b, &f) == nil && f.Digest() == d && f.SDK == s.opt.SDK && !st.ModTime().Before(before) && usable(&f) {
		return &f, false, nil
	}
	if dry {
		return nil, true, nil
	}
	return nil, true, os.Remove(path)
}

func (p *pool) isRetired() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.retired
}

// touch notes that a function is in use. Precondition: s.mu is held.
func (s *Scheduler) touch(p *pool) {
	if now := time.Now(); now.Sub(p.touched) >= touchEvery {
		p.touched = now
		// Should it fail, the definition may be forgotten too early, and is registered again.
		_ = os.Chtimes(s.functionPath(p.digest), now, now)
	}
}

package image

import (
	"context"
	"log/slog"
	"math/bits"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// ProfileStore is what profiles need of a workspace's store.
type ProfileStore interface {
	GetRecord(ctx context.Context, kind, name string) ([]byte, store.Version, error)
	PutRecord(ctx context.Context, kind, name string, data []byte, old *store.Version) (store.Version, error)
	ListRecords(ctx context.Context, kind string, fn func(name string) error) error
	Hold() (release func())
	WriteHot(ctx context.Context, chunks []store.Chunk) ([]store.HotPack, error)
	Stream(ctx context.Context, packs []store.HotPack) (store.Streamed, error)
	Prefetch(ctx context.Context, chunks []store.Chunk) (store.Prefetched, error)
}

// ProfilesOptions say what Profiles works with.
type ProfilesOptions struct {
	Store func(workspace string) (ProfileStore, error)
	Log   *slog.Logger // nil = slog.Default()

	// Hot makes hot packs of profiles that have settled. They cost a compressed copy
	// of what starts need, and pay where a start may be on a machine that has nothing.
	Hot bool
	// Settle is how long a profile must not have changed, and the machine be Idle, before
	// its hot pack is written; 0 is 20 s.
	Settle time.Duration
	// Idle reports whether the machine has nothing better to do; nil: always.
	Idle func() bool
}

// Profiles learns what starts read, and brings it here before the next one asks.
// It never stands in the way of a start: whatever goes wrong is logged, and the
// start reads for itself. Safe for concurrent use.
type Profiles struct {
	opt    ProfilesOptions
	log    *slog.Logger
	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex
	closed  bool
	wg      sync.WaitGroup
	known   map[profileKey]*known
	heating chan struct{} // one hot pack at a time
	stats   profileCounters
}

type profileCounters struct {
	starts, listed, listedBytes, used, usedBytes, touched, merged, written, hot, hotBytes atomic.Int64
	courses, cancelled, brought, broughtBytes                                             atomic.Int64
}

// ProfileStats are counts since opening.
type ProfileStats struct {
	Starts   int64 // that were recorded
	Listed   int64 // chunks that were known in advance, in all of them
	Used     int64 // of these, those that were read
	Touched  int64 // chunks that were read
	Merged   int64 // of the starts, those that a profile was learnt from, or learnt more
	Written  int64 // profiles
	HotPacks int64 // written
	HotBytes int64 // in them, as stored

	ListedBytes, UsedBytes int64 // of Listed and Used
	Courses                int64 // times that what a start would read was fetched ahead of it
	Cancelled              int64 // of these, those that were broken off: the start was over, or everything was there
	Brought, BroughtBytes  int64 // chunks that they fetched
}

// Stats gives the counts.
func (p *Profiles) Stats() ProfileStats {
	s := &p.stats
	return ProfileStats{
		Starts: s.starts.Load(), Listed: s.listed.Load(), Used: s.used.Load(), Touched: s.touched.Load(),
		Merged: s.merged.Load(), Written: s.written.Load(), HotPacks: s.hot.Load(), HotBytes: s.hotBytes.Load(),
		ListedBytes: s.listedBytes.Load(), UsedBytes: s.usedBytes.Load(),
		Courses: s.courses.Load(), Cancelled: s.cancelled.Load(), Brought: s.brought.Load(), BroughtBytes: s.broughtBytes.Load(),
	}
}

const (
	profileKind = "profiles"
	maxKnown    = 128 // profiles in memory, some 100 KB each
	loadProfile = 10 * time.Second
	saveProfile = 30 * time.Second
	writeHot    = 30 * time.Minute
)

type profileKey struct {
	workspace string
	image     store.Digest
	entry     EntryID
}

func (k profileKey) name() string { return k.image.String() + "/" + k.entry.String() }

// anyEntry stands for all entry points of an image at once: the best that is known of
// one that has not been started yet.
var anyEntry = Entry{Label: "any"}

// known is a profile in memory. Its fields but ready are guarded by Profiles.mu.
type known struct {
	ready   chan struct{}
	profile *Profile // nil: none; not changed, but replaced
	version store.Version
	err     error     // of loading
	unsaved int       // changes since it was saved
	changed time.Time // when it last changed
	heating bool
	last    *StartReport
}

// OpenProfiles starts nothing that waits.
func OpenProfiles(o ProfilesOptions) *Profiles {
	p := &Profiles{opt: o, log: o.Log, known: map[profileKey]*known{}, heating: make(chan struct{}, 1)}
	if p.log == nil {
		p.log = slog.Default()
	}
	if p.opt.Settle <= 0 {
		p.opt.Settle = 20 * time.Second
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Close stops what goes on in the background and waits for it. What starts that are still
// recorded would have taught is lost.
func (p *Profiles) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.wg.Wait()
	return nil
}

func (p *Profiles) spawn(fn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.wg.Go(fn)
	}
}

// get gives what is known, loading it if need be; of several at once, one loads.
func (p *Profiles) get(ctx context.Context, key profileKey) (*known, error) {
	p.mu.Lock()
	k := p.known[key]
	if k == nil {
		p.evict()
		k = &known{ready: make(chan struct{})}
		p.known[key] = k
		p.mu.Unlock()
		p.load(key, k)
		return k, k.err
	}
	p.mu.Unlock()
	select {
	case <-k.ready:
		return k, k.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// evict makes room for one more. Precondition: p.mu is held.
func (p *Profiles) evict() {
	for key, k := range p.known {
		if len(p.known) < maxKnown {
			return
		}
		select {
		case <-k.ready:
			if !k.heating {
				delete(p.known, key)
			}
		default:
		}
	}
}

func (p *Profiles) load(key profileKey, k *known) {
	profile, version, err := p.read(key)
	p.mu.Lock()
	k.profile, k.version = profile, version
	if err != nil && !fault.Is(err, fault.NotFound) {
		k.err = err
		delete(p.known, key) // the next one tries again
	}
	p.mu.Unlock()
	close(k.ready)
	if profile != nil {
		p.heatLater(key, k)
	}
}

// read reads a profile from the store. A damaged one is none, and will be replaced.
func (p *Profiles) read(key profileKey) (*Profile, store.Version, error) {
	ctx, cancel := context.WithTimeout(p.ctx, loadProfile)
	defer cancel()
	s, err := p.opt.Store(key.workspace)
	if err != nil {
		return nil, "", err
	}
	b, version, err := s.GetRecord(ctx, profileKind, key.name())
	var profile *Profile
	if err == nil {
		profile, err = parseProfileOf(b, key)
	}
	if fault.Is(err, fault.Corrupt) {
		p.log.Warn("a profile is damaged and will be learnt anew", "image", key.image.Short(), "entry", key.entry, "error", err)
		return nil, version, nil
	}
	return profile, version, err
}

func parseProfileOf(b []byte, key profileKey) (*Profile, error) {
	profile, err := ParseProfile(b)
	if err == nil && (profile.Image != key.image || profile.Entry.ID != key.entry) {
		return nil, fault.New(fault.Corrupt, "it is the profile of %s/%s", profile.Image.Short(), profile.Entry.ID)
	}
	return profile, err
}

// Get gives the profile of an entry point, or fault.NotFound.
func (p *Profiles) Get(ctx context.Context, workspace string, image store.Digest, entry EntryID) (*Profile, error) {
	k, err := p.get(ctx, profileKey{workspace, image, entry})
	if err != nil {
		return nil, fault.Wrap(err, "profile", entry.String())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if k.profile == nil {
		return nil, fault.New(fault.NotFound, "entry point %s of image %s has no profile", entry, image.Short())
	}
	return k.profile, nil
}

// Stored is a profile, and what the last start that used it, by this process, reported.
type Stored struct {
	*Profile
	Last *StartReport // nil: none
}

// List gives the profiles of an image.
func (p *Profiles) List(ctx context.Context, workspace string, image store.Digest) (l []Stored, err error) {
	s, err := p.opt.Store(workspace)
	if err != nil {
		return nil, err
	}
	var ids []EntryID
	err = s.ListRecords(ctx, profileKind, func(name string) error {
		if digits, ok := strings.CutPrefix(name, image.String()+"/"); ok {
			if id, ok := parseEntryID(digits); ok && id != anyEntry.ID {
				ids = append(ids, id)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fault.Wrap(err, "list profiles of", image.Short())
	}
	for _, id := range ids {
		k, err := p.get(ctx, profileKey{workspace, image, id})
		if err != nil {
			return nil, fault.Wrap(err, "profile", id.String())
		}
		p.mu.Lock()
		if k.profile != nil {
			l = append(l, Stored{k.profile, k.last})
		}
		p.mu.Unlock()
	}
	return l, nil
}

// learn merges a run into a profile, and saves it if that is worth it: the first runs, the
// second, fourth, eighth and so on, and whenever a sixteenth of it has changed.
func (p *Profiles) learn(key profileKey, entry Entry, run Run, device []store.Chunk, report *StartReport) {
	const tries = 3 // each fails because another machine has learnt at the same moment
	for range tries {
		k, err := p.get(p.ctx, key)
		if err != nil {
			p.log.Warn("what a start has read cannot be learnt", "entry", entry.Label, "error", err)
			return
		}
		p.mu.Lock()
		k.last = report
		next := &Profile{Image: key.image, Entry: entry}
		if k.profile != nil {
			if len(run.Chunks) == 0 && !run.Complete {
				p.mu.Unlock()
				return // all was in the page cache: nothing is to be learnt
			}
			c := *k.profile
			c.Entry = entry
			next = &c
		}
		k.unsaved += next.Merge(run, device)
		if k.unsaved > 0 {
			k.changed = time.Now()
		}
		k.profile = next
		if key.entry != anyEntry.ID {
			p.stats.merged.Add(1)
		}
		due := bits.OnesCount32(next.Runs+next.Partial) == 1 || k.unsaved > len(next.Chunks)/16
		version := k.version
		p.mu.Unlock()
		if due {
			version, err = p.save(key, next, version)
			p.mu.Lock()
			switch {
			case err == nil && k.profile == next:
				k.version, k.unsaved = version, 0
			case err == nil:
				k.version = version
			case fault.Is(err, fault.Exists):
				delete(p.known, key)
				p.mu.Unlock()
				continue
			default:
				p.log.Warn("a profile cannot be saved", "entry", entry.Label, "error", err)
			}
			p.mu.Unlock()
		}
		p.heatLater(key, k)
		return
	}
}

func (p *Profiles) save(key profileKey, profile *Profile, old store.Version) (store.Version, error) {
	ctx, cancel := context.WithTimeout(p.ctx, saveProfile)
	defer cancel()
	s, err := p.opt.Store(key.workspace)
	if err != nil {
		return "", err
	}
	version, err := s.PutRecord(ctx, profileKind, key.name(), profile.Encode(), &old)
	if err == nil {
		p.stats.written.Add(1)
	}
	return version, err
}

// A profile of less is read in one burst of parallel requests as fast as in one.
const leastHot = 1 << 20

// heatLater has the hot packs of a profile written when it has settled, if they are not as they should be.
func (p *Profiles) heatLater(key profileKey, k *known) {
	p.mu.Lock()
	due := p.opt.Hot && key.entry != anyEntry.ID && !k.heating && k.cold()
	if due {
		k.heating = true
	}
	p.mu.Unlock()
	if !due {
		return
	}
	p.spawn(func() {
		defer func() {
			p.mu.Lock()
			k.heating = false
			p.mu.Unlock()
		}()
		if !p.settled(k) {
			return
		}
		select {
		case p.heating <- struct{}{}:
			defer func() { <-p.heating }()
		case <-p.ctx.Done():
			return
		}
		if err := p.heat(key, k); err != nil && p.ctx.Err() == nil {
			p.log.Warn("a hot pack cannot be written", "image", key.image.Short(), "entry", key.entry, "error", err)
		}
	})
}

// cold reports whether hot packs are to be written. Precondition: Profiles.mu is held.
func (k *known) cold() bool {
	return k.profile != nil && k.profile.Bytes() >= leastHot && k.profile.Stale()
}

// settled waits until the profile has not changed for a while and the machine is
// idle; false: the process ends.
func (p *Profiles) settled(k *known) bool {
	for {
		select {
		case <-time.After(p.opt.Settle):
		case <-p.ctx.Done():
			return false
		}
		p.mu.Lock()
		quiet := time.Since(k.changed) >= p.opt.Settle
		p.mu.Unlock()
		if quiet && (p.opt.Idle == nil || p.opt.Idle()) {
			return true
		}
	}
}

// heat writes the hot packs of a profile, and the profile with them.
func (p *Profiles) heat(key profileKey, k *known) error {
	ctx, cancel := context.WithTimeout(p.ctx, writeHot)
	defer cancel()
	s, err := p.opt.Store(key.workspace)
	if err != nil {
		return err
	}
	p.mu.Lock()
	profile, version, due := k.profile, k.version, k.cold()
	p.mu.Unlock()
	if !due {
		return nil
	}
	defer s.Hold()()
	packs, err := s.WriteHot(ctx, profile.List())
	if err != nil {
		return err
	}
	next := *profile
	next.Hot = packs
	if version, err = p.save(key, &next, version); fault.Is(err, fault.Exists) {
		// Another machine has learnt or written meanwhile; what it has counts. The packs
		// that nobody names now are garbage.
		p.mu.Lock()
		delete(p.known, key)
		p.mu.Unlock()
		return nil
	}
	if err != nil {
		return err
	}
	p.mu.Lock()
	k.version = version
	if k.profile == profile {
		k.profile, k.unsaved = &next, 0
	} else {
		c := *k.profile
		c.Hot = packs
		k.profile = &c
	}
	p.mu.Unlock()
	p.stats.hot.Add(int64(len(packs)))
	var bytes int64
	for _, h := range packs {
		for _, f := range h.Frames {
			bytes += int64(f.Stored)
		}
	}
	p.stats.hotBytes.Add(bytes)
	p.log.Info("wrote a hot pack", "image", key.image.Short(), "entry", profile.Entry.Label, "chunks", len(profile.Chunks), "bytes", bytes)
	return nil
}

// unheat forgets hot packs that turned out bad, so that others are written.
func (p *Profiles) unheat(key profileKey, k *known) {
	p.mu.Lock()
	if k.profile != nil {
		c := *k.profile
		c.Hot = nil
		k.profile = &c
	}
	p.mu.Unlock()
	p.heatLater(key, k)
}

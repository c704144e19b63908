package store

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// leaseObject is a lease at the origin.
type leaseObject struct {
	Format string    `json:"format"`
	Nonce  string    `json:"nonce"`
	Start  time.Time `json:"start,omitzero"` // by the origin's clock; zero until the first renewal: when it was modified
	Uses   []string  `json:"uses,omitempty"` // keys of what is in use
	Work   bool      `json:"work,omitempty"` // what is being made may need anything that was not condemned at its start
	Broken bool      `json:"broken,omitempty"`
}

const leaseFormat = "brisk hold 1"

func decodeLease(b []byte) (o leaseObject, err error) {
	if err := decodeLedger(b, &o); err != nil {
		return o, err
	}
	return o, checkLedger(o.Format, leaseFormat, o.Nonce, o.Uses)
}

// lease is one hold on a shared origin, of one of two kinds.
//
// A work lease is for making something that will be named by a manifest: while
// it is alive nothing is deleted that was condemned after it began, and what had
// been condemned before is known to its holder, who has it reprieved before
// relying on it (rely). So the lease need not say what it protects.
//
// A lease of uses lists objects, and protects those only: what is mounted
// somewhere, for as long as that takes.
//
// Safe for concurrent use.
type lease struct {
	l    *ledger
	key  string
	busy chan struct{} // held while the object is rewritten; guards what follows
	now  Version
	last leaseObject
	lost atomic.Bool // it was broken, or may have been, or is over

	mu      sync.Mutex
	verdict map[string]verdict // of what was condemned when the lease began; others are spared
}

// verdict is what a lease knows of an object.
type verdict uint8

const (
	spared    verdict = iota // it may be relied on
	condemned                // it may be relied on once it is reprieved
	doomed                   // it is being deleted, or was
)

// errBroken is what a holder is told whose lease died.
func errBroken() error {
	return fault.New(fault.Unavailable, "this process was stopped, or without its origin, for so long that its hold on the store ended").
		WithHint("Nothing is damaged. Do it again.")
}

// work begins a work lease. When it returns, the lease protects.
func (l *ledger) work(ctx context.Context) (*lease, error) {
	h, err := l.begin(ctx, leaseObject{Work: true})
	if err != nil {
		return nil, err
	}
	// Only now: whoever condemns something that is not in this list does it after the lease began.
	sentences, err := l.sentences(ctx)
	if err != nil {
		h.release(ctx)
		return nil, err
	}
	for _, s := range sentences {
		for _, k := range s.Condemned {
			h.verdict[k] = max(h.verdict[k], condemned)
		}
		for _, k := range s.Doomed {
			h.verdict[k] = doomed
		}
	}
	return h, nil
}

// use begins a lease of uses.
func (l *ledger) use(ctx context.Context, keys []string) (*lease, error) {
	return l.begin(ctx, leaseObject{Uses: keys})
}

func (l *ledger) begin(ctx context.Context, o leaseObject) (*lease, error) {
	o.Format, o.Nonce = leaseFormat, nonce()
	h := &lease{l: l, key: leasePrefix + o.Nonce, busy: make(chan struct{}, 1), verdict: map[string]verdict{}}
	now, err := l.swap(ctx, h.key, "", o)
	if err != nil {
		return nil, fault.Wrap(err, "hold", "objects of the origin")
	}
	start, ok, err := l.modified(ctx, h.key)
	if err == nil && !ok {
		err = errBroken()
	}
	if err != nil {
		return nil, fault.Wrap(err, "hold", "objects of the origin")
	}
	o.Start = start
	h.now, h.last = now, o
	return h, nil
}

// renew prolongs a lease. A broken one stays broken: Unavailable. After another
// error it may be tried again.
func (h *lease) renew(ctx context.Context) error {
	return h.rewrite(ctx, func(*leaseObject) {})
}

// setUses replaces the list of uses, and renews.
func (h *lease) setUses(ctx context.Context, keys []string) error {
	return h.rewrite(ctx, func(o *leaseObject) { o.Uses = keys })
}

func (h *lease) rewrite(ctx context.Context, change func(*leaseObject)) error {
	select {
	case h.busy <- struct{}{}:
		defer func() { <-h.busy }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if h.lost.Load() {
		return errBroken()
	}
	o := h.last
	change(&o)
	for attempt := 0; ; attempt++ {
		o.Nonce = nonce()
		now, err := h.l.swap(ctx, h.key, h.now, o)
		if err == nil {
			h.now, h.last = now, o
			return nil
		}
		// An earlier attempt that had failed may have been carried out since: then
		// the object is ours, of another version. Only collectors write others, broken ones.
		b, now, getErr := h.l.origin.Get(ctx, h.key, maxLedgerObject)
		if getErr != nil && !fault.Is(getErr, fault.NotFound) {
			return err
		}
		if have, decodeErr := decodeLease(b); getErr != nil || decodeErr != nil || have.Broken {
			h.lost.Store(true)
			return errBroken()
		}
		if h.now = now; attempt == 3 {
			return err
		}
	}
}

// judge gives the verdict on an object, without asking anybody.
func (h *lease) judge(key string) verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.verdict[key]
}

// strict reports whether anything was condemned when the lease began.
func (h *lease) strict() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.verdict) > 0
}

// rely asks whether an object may be relied on that an earlier listing had: named by a
// manifest that is written under this lease. What is condemned is reprieved first.
// It also decides whether an object may be written under a key; if not, only another key will do.
func (h *lease) rely(ctx context.Context, key string) (bool, error) {
	v := h.judge(key)
	if v == condemned {
		ok, err := h.l.reprieve(ctx, key)
		if err == nil && ok {
			// It may be on no list any more because it was deleted, and that long ago: this
			// machine may have been suspended since it read the lists.
			_, ok, err = h.l.modified(ctx, key)
		}
		if err != nil {
			return false, err
		}
		v = doomed
		if ok {
			v = spared
		}
		h.mu.Lock()
		h.verdict[key] = v
		h.mu.Unlock()
	}
	return v == spared, nil
}

// commit writes what names the objects with these keys, all of which were relied on or
// written under the lease. If they turn out not to be safe after all, because this
// machine was suspended for longer than a lease lives, undo removes it again. After
// an error the lease is left to die by itself: the write may still be carried out.
func (h *lease) commit(ctx context.Context, keys []string, write, undo func() error) error {
	before, err := h.secure(ctx, keys)
	if err != nil {
		return err
	}
	if before != h {
		defer before.release(ctx)
	}
	if err := write(); err != nil {
		before.abandon()
		return err
	}
	after, err := before.secure(ctx, keys)
	if err != nil {
		before.abandon()
		if undoErr := undo(); undoErr != nil {
			return undoErr
		}
		return err
	}
	if after != before {
		after.release(ctx)
	}
	return nil
}

// secure makes sure that the lease is alive. If it has died it gives another in its
// place, provided that none of these objects has been deleted meanwhile.
func (h *lease) secure(ctx context.Context, keys []string) (*lease, error) {
	err := h.renew(ctx)
	if err == nil || !h.lost.Load() {
		return h, err
	}
	fresh, err := h.l.work(ctx)
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		ok, err := fresh.rely(ctx, k)
		if err == nil && ok {
			_, err = h.l.origin.Size(ctx, k)
		}
		if err == nil && !ok || fault.Is(err, fault.NotFound) {
			err = errBroken()
		}
		if err != nil {
			fresh.release(ctx)
			return nil, err
		}
	}
	return fresh, nil
}

// abandon makes release leave the object to its period.
func (h *lease) abandon() { h.lost.Store(true) }

// release ends the lease. If that fails it ends by itself after its period.
func (h *lease) release(ctx context.Context) {
	h.busy <- struct{}{}
	defer func() { <-h.busy }()
	if h.lost.Load() {
		return
	}
	h.lost.Store(true)
	_ = h.l.origin.Delete(ctx, h.key)
}

// claims are the leases that are alive, as a collector needs them.
type claims struct {
	oldest time.Time // start of the oldest work lease; zero: there is none
	leases int
	uses   map[string]struct{}
}

// covers reports whether an object that was condemned at that time may be needed.
func (c claims) covers(key string, condemned time.Time, slack time.Duration) bool {
	if _, ok := c.uses[key]; ok {
		return true
	}
	return !c.oldest.IsZero() && !condemned.Add(slack).Before(c.oldest)
}

// claims reads the leases, and breaks those that are dead by that time: whoever
// holds one cannot renew it any more. With dry it changes nothing, and cannot be relied on.
func (l *ledger) claims(ctx context.Context, now time.Time, dry bool) (claims, error) {
	c := claims{uses: map[string]struct{}{}}
	var found []Object
	err := l.origin.List(ctx, leasePrefix, func(o Object) error {
		found = append(found, o)
		return nil
	})
	if err != nil {
		return c, err
	}
	for _, at := range found {
		if err := l.claim(ctx, at, now, dry, &c); err != nil {
			return c, err
		}
	}
	return c, nil
}

// claim adds one lease to c, if it is alive.
func (l *ledger) claim(ctx context.Context, at Object, now time.Time, dry bool, c *claims) error {
	b, version, err := l.origin.Get(ctx, at.Key, maxLedgerObject)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	o, err := decodeLease(b)
	if err != nil {
		return damagedLedger(at.Key, err)
	}
	if o.Start.IsZero() {
		o.Start = at.Modified
	}
	dead := at.Modified.Add(l.times.lease + l.times.slack).Before(now)
	switch {
	case dry:
		o.Broken = o.Broken || dead
	case !o.Broken && dead:
		o.Broken, o.Nonce = true, nonce()
		_, err := l.swap(ctx, at.Key, version, o)
		if err != nil && !fault.Is(err, fault.Exists) {
			return err
		}
		o.Broken = err == nil // else it has just been renewed, or is gone
	case o.Broken && at.Modified.Add(l.times.tombstone).Before(now):
		// Its holder would learn the same from its absence.
		return l.origin.Delete(ctx, at.Key)
	}
	if o.Broken {
		return nil
	}
	c.leases++
	if o.Work && (c.oldest.IsZero() || o.Start.Before(c.oldest)) {
		c.oldest = o.Start
	}
	for _, k := range o.Uses {
		c.uses[k] = struct{}{}
	}
	return nil
}

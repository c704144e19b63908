package store

import (
	"context"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// pass is one collection over a ledger. Its order is what makes it safe: first the sentences
// are read, then the leases, then what there is, and last what is needed.
type pass struct {
	l     *ledger
	grace time.Duration // from condemnation to deletion
	dry   bool          // change nothing

	// objects lists the keys that may be garbage, with their sizes.
	objects func(ctx context.Context) (map[string]int64, error)
	// needed gives what is named by anything durable at the time of the call.
	needed func(ctx context.Context) (func(key string) bool, error)
	// remove deletes an object.
	remove func(ctx context.Context, key string, size int64) error
}

// passed is what a pass found and did, in objects and bytes as they are stored.
// Without dry, Deleted are gone.
type passed struct {
	Deleted   amount // nothing had needed them since before the grace period
	Waiting   amount // condemned now or before, and within the grace period
	Held      amount // unneeded but for a lease
	Reprieved int    // objects that were condemned and turned out to be needed
	Leases    int    // that are alive
}

type amount struct {
	Objects int
	Bytes   int64
}

func (a *amount) add(size int64) { a.Objects++; a.Bytes += size }

// run collects once. An error leaves everything as safe as it was, and the next pass goes on.
func (p *pass) run(ctx context.Context) (passed, error) {
	var done passed
	// Whatever is late is left to the next pass: tombstones rely on that.
	ctx, cancel := context.WithTimeout(ctx, p.l.times.pass)
	defer cancel()
	now, err := p.time(ctx)
	if err != nil {
		return done, err
	}
	sentences, err := p.l.sentences(ctx)
	if err != nil {
		return done, err
	}
	first, err := p.claims(ctx, now)
	if err != nil {
		return done, err
	}
	done.Leases = first.leases
	objects, err := p.objects(ctx)
	if err != nil {
		return done, err
	}
	needed, err := p.needed(ctx)
	if err != nil {
		return done, err
	}
	known := map[string]bool{}
	for _, s := range sentences {
		for _, k := range s.Condemned {
			known[k] = true
		}
		for _, k := range s.Doomed {
			known[k] = true
		}
	}
	for _, s := range sentences {
		if err := p.execute(ctx, s, now, first, objects, needed, &done); err != nil {
			return done, err
		}
	}
	var fresh []string
	for k, size := range objects {
		if known[k] || needed(k) {
			continue
		}
		if _, used := first.uses[k]; used {
			done.Held.add(size)
			continue
		}
		done.Waiting.add(size)
		fresh = append(fresh, k)
	}
	if p.dry {
		return done, nil
	}
	return done, p.l.condemn(ctx, fresh)
}

// time is the origin's. A dry run, which writes nothing, has to take the latest
// time that it can see.
func (p *pass) time(ctx context.Context) (now time.Time, err error) {
	if !p.dry {
		now, _, err = p.l.now(ctx)
		return now, err
	}
	for _, prefix := range []string{turnKey, leasePrefix, sentencePrefix} {
		err = p.l.origin.List(ctx, prefix, func(o Object) error {
			if o.Modified.After(now) {
				now = o.Modified
			}
			return nil
		})
		if err != nil {
			return now, err
		}
	}
	// If this machine's clock is wrong, so is what is said; nothing is deleted by it.
	if here := time.Now(); here.After(now) {
		now = here
	}
	return now, nil
}

func (p *pass) claims(ctx context.Context, now time.Time) (claims, error) {
	if p.dry {
		now = time.Time{} // nothing is dead
	}
	return p.l.claims(ctx, now)
}

// execute does what is due on one sentence.
func (p *pass) execute(ctx context.Context, s *sentence, now time.Time, first claims,
	objects map[string]int64, needed func(string) bool, done *passed) error {

	// Read again: what began to be used while the roots were read counts, too.
	second, err := p.claims(ctx, now)
	if err != nil {
		return err
	}
	slack := p.l.times.slack
	due := s.Since.Add(p.grace + slack).Before(now)
	var stay, doom []string
	var waiting, held amount
	reprieved := 0
	for _, k := range s.Condemned {
		size, there := objects[k]
		switch {
		case !there: // somebody else's deletion
		case needed(k):
			reprieved++
		case first.covers(k, s.Since, slack) || second.covers(k, s.Since, slack):
			held.add(size)
			stay = append(stay, k)
		case !due:
			waiting.add(size)
			stay = append(stay, k)
		default:
			doom = append(doom, k)
		}
	}
	var again []string // whoever doomed them died, or is at it
	for _, k := range s.Doomed {
		// What is named nevertheless, because somebody put a manifest back, is not touched.
		if _, there := objects[k]; there && !needed(k) {
			again = append(again, k)
		}
	}
	if p.dry {
		done.count(waiting, held, reprieved)
		for _, k := range append(doom, again...) {
			done.Deleted.add(objects[k])
		}
		return nil
	}
	if len(stay) < len(s.Condemned) || len(again) > 0 {
		s.Condemned, s.Doomed = stay, append(s.Doomed, doom...)
		err := p.l.rewrite(ctx, s)
		if fault.Is(err, fault.Exists) {
			return nil // another collector has it, or somebody reprieves: the next pass sees how it went
		}
		if err != nil {
			return err
		}
		for _, k := range append(doom, again...) {
			if err := p.remove(ctx, k, objects[k]); err != nil {
				return fault.Wrap(err, "delete", k)
			}
			done.Deleted.add(objects[k])
		}
	}
	done.count(waiting, held, reprieved)
	if len(s.Condemned) == 0 && len(doom) == 0 && len(again) == 0 {
		return p.bury(ctx, s, now)
	}
	return nil
}

func (d *passed) count(waiting, held amount, reprieved int) {
	d.Waiting.Objects += waiting.Objects
	d.Waiting.Bytes += waiting.Bytes
	d.Held.Objects += held.Objects
	d.Held.Bytes += held.Bytes
	d.Reprieved += reprieved
}

// bury removes a sentence that has been executed for so long that nobody can take its
// objects for existing.
func (p *pass) bury(ctx context.Context, s *sentence, now time.Time) error {
	if len(s.Doomed) == 0 {
		return p.l.origin.Delete(ctx, s.key)
	}
	at, ok, err := p.l.modified(ctx, s.key)
	if err != nil || !ok || !at.Add(p.l.times.tombstone+p.l.times.slack).Before(now) {
		return err
	}
	return p.l.origin.Delete(ctx, s.key)
}

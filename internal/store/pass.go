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
	dry   bool          // delete and condemn nothing

	recent time.Duration // do nothing if another pass was complete so short a time ago

	// objects lists the keys that may be garbage, with their sizes.
	objects func(ctx context.Context) (map[string]int64, error)
	// needed gives what is named by anything durable at the time of the call.
	needed func(ctx context.Context) (func(key string) bool, error)
	// remove deletes objects.
	remove func(ctx context.Context, keys []string) error
}

// passed is what a pass found and did, in objects and bytes as they are stored.
type passed struct {
	Deleted   []string // or, with dry, what would be: nothing had needed them since before the grace period
	Waiting   amount   // condemned now or before, and within the grace period
	Held      amount   // unneeded but for a lease
	Reprieved int      // objects that were condemned and turned out to be needed
	Leases    int      // that are alive
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
	now, err := p.l.stamp(ctx, clockKey)
	if err != nil {
		return done, err
	}
	if last, ok, err := p.l.modified(ctx, collectedKey); err != nil || ok && now.Sub(last) < p.recent {
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
	if err := p.l.condemn(ctx, fresh); err != nil {
		return done, err
	}
	_, err = p.l.stamp(ctx, collectedKey)
	return done, err
}

func (p *pass) claims(ctx context.Context, now time.Time) (claims, error) {
	return p.l.claims(ctx, now, p.dry)
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
		done.Deleted = append(append(done.Deleted, doom...), again...)
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
		doom = append(doom, again...)
		if err := p.remove(ctx, doom); err != nil {
			return fault.Wrap(err, "delete", "what nobody needs")
		}
		done.Deleted = append(done.Deleted, doom...)
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

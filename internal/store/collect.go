package store

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"brisk.dev/brisk/internal/fault"
)

// Named are the packs and blobs that something durable names.
type Named struct {
	Packs, Blobs map[Digest]struct{}
}

// CollectOptions say how to collect.
type CollectOptions struct {
	// Roots gives everything that is named, in any workspace that may name objects of
	// this store, by something durable at the time of the call. It is called only after it is settled which holds
	// count: references that were collected before would lack an import that has
	// finished in between. An error ends the collection: nothing is deleted that something
	// could name that cannot be read.
	Roots func(ctx context.Context) (Named, error)

	// Grace is how long what nobody needs stays where several machines share the
	// origin, at least MinGrace; 0 is DefaultGrace. Elsewhere it goes at once.
	Grace time.Duration
	Dry   bool // delete nothing, and say what would be
	// Recent, where several machines share the origin, makes it do nothing if one of them has
	// collected within that time.
	Recent time.Duration
	// Progress, if set, is called now and then with the objects deleted so far and in all.
	Progress func(done, total int)
}

// Grace periods of an origin that several machines share. The shortest gives a machine
// that has started to read an image the time to say so.
const (
	MinGrace     = 10 * time.Minute
	DefaultGrace = time.Hour
)

// Collected is what Collect found. Bytes are as they are stored.
type Collected struct {
	Packs, Blobs int   // deleted or, if dry, what would be
	Bytes        int64 // in these

	Waiting, Held           int // objects that nobody needs and that stay, for their grace period, or for somebody's hold
	WaitingBytes, HeldBytes int64
	Holds                   int // of all machines, that are alive
}

// Collect deletes every pack and blob that is not named, unless a hold protects
// it. Chunks that are in no pack any more are not stored any more (Has); the cache
// may still have them.
//
// It may be interrupted at any step, and run in several processes at once: what is
// deleted is consistently gone, and another call deletes the rest. It waits for no
// hold, and none waits for it. docs/design/collection.md says why it is safe.
func (s *Store) Collect(ctx context.Context, o CollectOptions) (Collected, error) {
	return s.collect(ctx, o, func(ctx context.Context) (func(key string) bool, error) { return s.needed(ctx, o.Roots) })
}

// collect collects what is not needed, as needed says when it is asked.
func (s *Store) collect(ctx context.Context, o CollectOptions, needed func(context.Context) (func(key string) bool, error)) (Collected, error) {
	if err := s.ready(ctx); err != nil {
		return Collected{}, err
	}
	s.collecting.Lock()
	defer s.collecting.Unlock()
	c := &collection{s: s, o: o, needed: needed}
	var err error
	if s.ledger == nil {
		err = c.atOnce(ctx)
	} else {
		err = c.byLedger(ctx)
	}
	return c.done, fault.Wrap(err, "collect", "garbage")
}

// collection is one Collect.
type collection struct {
	s     *Store
	o     CollectOptions
	sizes map[string]int64 // of objects, by key
	done  Collected
	gone  atomic.Int64

	needed func(context.Context) (func(key string) bool, error)
}

// objects lists packs and blobs.
func (c *collection) objects(ctx context.Context) (map[string]int64, error) {
	found := map[string]int64{}
	for _, prefix := range []string{"packs/", "blobs/"} {
		err := c.s.opts.Origin.List(ctx, prefix, func(o Object) error {
			if _, ok := contentDigest(o.Key); ok {
				found[o.Key] = o.Size
			}
			return nil
		})
		if err != nil {
			return nil, fault.Wrap(err, "list", prefix)
		}
	}
	return found, nil
}

// needed asks for what is named.
func (s *Store) needed(ctx context.Context, roots func(context.Context) (Named, error)) (func(key string) bool, error) {
	named, err := roots(ctx)
	if err != nil {
		return nil, err
	}
	blobs := make(map[Digest]struct{}, len(named.Blobs))
	for d := range named.Blobs {
		blobs[s.BlobName(d)] = struct{}{}
	}
	return func(key string) bool {
		d, ok := contentDigest(key)
		set := blobs
		if isPack(key) {
			set = named.Packs
		}
		_, named := set[d]
		return !ok || named
	}, nil
}

// atOnce collects where only this process writes.
func (c *collection) atOnce(ctx context.Context) error {
	// Else the index might learn of a pack that has just been deleted.
	if err := c.s.await(ctx); err != nil {
		return err
	}
	since := c.s.holds.since()
	objects, err := c.objects(ctx)
	if err != nil {
		return err
	}
	needed, err := c.needed(ctx)
	if err != nil {
		return err
	}
	maps.DeleteFunc(objects, func(key string, _ int64) bool { return needed(key) })
	c.sizes = objects
	for i, key := range slices.Sorted(maps.Keys(objects)) {
		d, _ := contentDigest(key)
		forget := func() bool { return c.s.holds.forgetBlob(d, since, c.o.Dry) }
		if isPack(key) {
			forget = func() bool { return c.s.index.removeIf(d, since, c.o.Dry) }
		}
		deleted, err := c.s.deleteObject(ctx, key, forget, c.o.Dry)
		if err != nil {
			return err
		}
		if deleted {
			c.count(key)
		} else {
			c.done.Held++
			c.done.HeldBytes += objects[key]
		}
		c.progress(i+1, len(objects))
	}
	return nil
}

// deleteObject deletes one object if forget, called while nothing is being
// published, agrees. First the index forgets, then the object goes: nobody can
// begin to rely on what is about to vanish, and after a crash in between the
// object is only unreferenced again.
func (s *Store) deleteObject(ctx context.Context, key string, forget func() bool, dry bool) (bool, error) {
	s.publish.Lock()
	defer s.publish.Unlock()
	if !forget() {
		return false, nil
	}
	if dry {
		return true, nil
	}
	if err := s.opts.Origin.Delete(ctx, key); err != nil {
		return false, fault.Wrap(err, "delete", key)
	}
	return true, nil
}

// deleting bounds the deletions at a shared origin that are under way at once.
const deleting = 16

// byLedger collects where others do, too.
func (c *collection) byLedger(ctx context.Context) error {
	p := &pass{
		l: c.s.ledger, dry: c.o.Dry, recent: c.o.Recent, grace: max(c.o.Grace, MinGrace),
		needed: c.needed,
		objects: func(ctx context.Context) (_ map[string]int64, err error) {
			c.sizes, err = c.objects(ctx)
			return c.sizes, err
		},
		remove: c.remove,
	}
	if c.o.Grace == 0 {
		p.grace = DefaultGrace
	}
	found, err := p.run(ctx)
	c.done.Waiting, c.done.WaitingBytes = found.Waiting.Objects, found.Waiting.Bytes
	c.done.Held, c.done.HeldBytes = found.Held.Objects, found.Held.Bytes
	c.done.Holds = found.Leases
	if c.o.Dry {
		for _, key := range found.Deleted {
			c.count(key)
		}
	}
	return err
}

// remove deletes doomed objects: nobody relies on them or writes them again.
func (c *collection) remove(ctx context.Context, keys []string) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(deleting)
	for _, key := range keys {
		if d, ok := contentDigest(key); ok && isPack(key) {
			c.s.index.remove(d)
		}
		group.Go(func() error {
			if err := c.s.opts.Origin.Delete(ctx, key); err != nil {
				return fault.Wrap(err, "delete", key)
			}
			c.progress(int(c.gone.Add(1)), 0)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, key := range keys {
		c.count(key)
	}
	return nil
}

// count counts a deleted object.
func (c *collection) count(key string) {
	if isPack(key) {
		c.done.Packs++
	} else {
		c.done.Blobs++
	}
	c.done.Bytes += c.sizes[key]
}

func (c *collection) progress(done, total int) {
	if c.o.Progress != nil {
		c.o.Progress(done, total)
	}
}

// Reprieve is for who is about to delete the last thing that names these packs and
// blobs: their grace period begins only then. Machines that read them have that time to say so.
func (s *Store) Reprieve(ctx context.Context, packs, blobs []Digest) error {
	for _, in := range s.lineage() {
		var keys []string
		for _, d := range packs {
			keys = append(keys, packKey(d))
		}
		for _, d := range blobs {
			keys = append(keys, in.blobKeys(d)...)
		}
		if in.ledger == nil || len(keys) == 0 {
			continue
		}
		// What is doomed already was not named when that was decided.
		if _, err := in.ledger.reprieve(ctx, keys...); err != nil {
			return err
		}
	}
	return nil
}

// PackSizes tells how long packs of the store and its base are, as stored; 0 for others.
func (s *Store) PackSizes(ctx context.Context) (func(Digest) int64, error) {
	if err := s.awaitAll(ctx); err != nil {
		return nil, err
	}
	return func(d Digest) int64 {
		for _, in := range s.lineage() {
			if n, ok := in.index.size(d); ok {
				return n
			}
		}
		return 0
	}, nil
}

// Shared reports whether other processes may write to the origin and delete from it.
func (s *Store) Shared() bool { return s.ledger != nil }

func isPack(key string) bool { return strings.HasPrefix(key, "packs/") }

// contentDigest is the digest in the key of a pack or of any generation of a blob.
func contentDigest(key string) (Digest, bool) {
	if isPack(key) {
		return keyDigest("packs/", key)
	}
	if n := len(key) - 2; n > 0 && key[n] == '.' && key[n+1] > '0' && key[n+1] < '0'+blobGenerations {
		key = key[:n]
	}
	return keyDigest("blobs/", key)
}

package store

import (
	"context"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/zeebo/blake3"
	"golang.org/x/sync/errgroup"

	"brisk.dev/brisk/internal/fault"
)

// CheckOptions say how to check.
type CheckOptions struct {
	Full     bool                    // read every byte of every pack; else only look at what is listed, and at indexes that are not known
	Repair   bool                    // remove objects of the ledger that cannot be read
	Progress func(done, total int64) // in bytes; may be nil; one call at a time
}

// Checked is what Check found.
type Checked struct {
	Packs map[Digest]string // those that are there, with what is wrong, "" = nothing
	Blobs map[Digest]bool   // names of blobs (BlobName) that are there
	Bytes int64             // of packs and blobs
	// Ledger are the keys of objects of the ledger that cannot be read and, with Repair, were removed.
	Ledger []string
}

// checking bounds the packs that are read at once.
const checking = 4

// Check looks at what the origin has of the workspace. What it finds wrong with a pack, the store
// knows from then on: importing again stores anew what is damaged. Damage is no
// error; an origin that does not answer is.
func (s *Store) Check(ctx context.Context, o CheckOptions) (Checked, error) {
	c := Checked{Packs: map[Digest]string{}, Blobs: map[Digest]bool{}}
	sizes := map[Digest]int64{}
	err := s.opts.Origin.List(ctx, "packs/", func(at Object) error {
		if d, ok := keyDigest("packs/", at.Key); ok {
			sizes[d] = at.Size
			c.Bytes += at.Size
		}
		return nil
	})
	if err == nil {
		err = s.opts.Origin.List(ctx, "blobs/", func(at Object) error {
			if d, ok := contentDigest(at.Key); ok {
				c.Blobs[d] = true
				c.Bytes += at.Size
			}
			return nil
		})
	}
	if err == nil {
		err = s.await(ctx)
	}
	if err == nil {
		err = s.checkPacks(ctx, o, sizes, c.Packs)
	}
	if err == nil && s.ledger != nil {
		c.Ledger, err = s.ledger.check(ctx, o.Repair)
	}
	return c, fault.Wrap(err, "check", "store")
}

func (s *Store) checkPacks(ctx context.Context, o CheckOptions, sizes map[Digest]int64, found map[Digest]string) error {
	var total int64
	for _, n := range sizes {
		total += n
	}
	var mu sync.Mutex
	var done int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(checking)
	for _, d := range slices.SortedFunc(maps.Keys(sizes), func(a, b Digest) int { return strings.Compare(a.String(), b.String()) }) {
		group.Go(func() error {
			err := s.checkPack(ctx, d, sizes[d], o.Full)
			mu.Lock()
			defer mu.Unlock()
			if done += sizes[d]; o.Progress != nil {
				o.Progress(done, total)
			}
			switch {
			case err == nil:
				found[d] = ""
			case fault.Is(err, fault.Corrupt):
				found[d] = err.Error()
			case fault.Is(err, fault.NotFound): // deleted meanwhile
			default:
				return err
			}
			return nil
		})
	}
	return group.Wait()
}

// checkPack gives what is wrong with a pack, as fault.Corrupt.
func (s *Store) checkPack(ctx context.Context, d Digest, size int64, full bool) error {
	if known, ok := s.index.size(d); !ok || known != size {
		s.index.remove(d)
		if err := s.learn(ctx, d, size); err != nil {
			return err
		}
		if _, ok := s.index.size(d); !ok {
			return fault.New(fault.Corrupt, "its index is damaged")
		}
	}
	if s.index.isBad(d) && !full {
		return fault.New(fault.Corrupt, "some of its chunks are damaged")
	}
	if !full {
		return nil
	}
	r, err := s.opts.Origin.Open(ctx, packKey(d), 0)
	if err != nil {
		return err
	}
	defer r.Close()
	h := blake3.New()
	if _, err := io.CopyBuffer(struct{ io.Writer }{h}, r, make([]byte, 1<<20)); err != nil && !fault.Is(err, fault.Corrupt) {
		return err
	}
	var sum Digest
	if h.Sum(sum[:0]); sum == d {
		return nil
	}
	return s.checkChunks(ctx, d)
}

// checkChunks looks which chunks of a pack are damaged, and remembers them.
func (s *Store) checkChunks(ctx context.Context, d Digest) error {
	bad := 0
	buf := make([]byte, ChunkSize)
	all := s.index.chunksOf(s, d)
	for _, at := range all {
		c := Chunk{at.digest, at.size}
		err := s.readCopy(ctx, c, at, buf[:at.size])
		if err != nil && !fault.Is(err, fault.Corrupt) {
			return err
		}
		if err != nil {
			bad++
			if s.index.markDamaged(c.Digest, d) {
				if err := s.logged.addDamage(d, c.Digest); err != nil {
					s.logUnkept(err)
				}
			}
		}
	}
	if bad == 0 {
		return fault.New(fault.Corrupt, "its bytes are not what its name says, though all chunks are right")
	}
	return fault.New(fault.Corrupt, "%d of %d chunks are damaged", bad, len(all))
}

// chunksOf lists what a pack holds.
func (x *index) chunksOf(in *Store, d Digest) (l []copyOf) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	p := x.packs[d]
	if p == nil {
		return nil
	}
	entries, _ := p.all()
	for _, e := range entries.all() {
		l = append(l, copyOf{in, d, p.how, e})
	}
	return l
}

// check reads all objects of the ledger, and removes those that cannot be read if it
// is to repair.
func (l *ledger) check(ctx context.Context, repair bool) (bad []string, err error) {
	for _, prefix := range []string{leasePrefix, sentencePrefix} {
		var keys []string
		if err := l.origin.List(ctx, prefix, func(o Object) error {
			keys = append(keys, o.Key)
			return nil
		}); err != nil {
			return bad, err
		}
		for _, key := range keys {
			b, _, err := l.origin.Get(ctx, key, maxLedgerObject)
			if err == nil && prefix == leasePrefix {
				_, err = decodeLease(b)
			} else if err == nil {
				_, err = decodeSentence(b)
			}
			if fault.Is(err, fault.Corrupt) {
				bad = append(bad, key)
				err = nil
				if repair {
					err = l.origin.Delete(ctx, key)
				}
			}
			if err != nil && !fault.Is(err, fault.NotFound) {
				return bad, err
			}
		}
	}
	return bad, nil
}

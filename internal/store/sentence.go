package store

import (
	"context"
	"slices"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// sentenceObject is one collector's list of objects that nothing needed. A name leaves
// Condemned by a Swap: to Doomed, when it is deleted, or altogether, when it is reprieved.
// Whichever comes first decides. It never leaves Doomed.
type sentenceObject struct {
	Format    string    `json:"format"`
	Nonce     string    `json:"nonce"`
	Since     time.Time `json:"since,omitzero"` // by the origin's clock; zero until it is rewritten: when it was modified
	Condemned []string  `json:"condemned,omitempty"`
	Doomed    []string  `json:"doomed,omitempty"`
}

const (
	sentenceFormat = "brisk condemned 1"
	// sentenceKeys is the most objects in one list: some 5 MB.
	sentenceKeys = 50_000
)

func decodeSentence(b []byte) (o sentenceObject, err error) {
	if err := decodeLedger(b, &o); err != nil {
		return o, err
	}
	return o, checkLedger(o.Format, sentenceFormat, o.Nonce, o.Condemned, o.Doomed)
}

// sentence is such a list as it was read.
type sentence struct {
	sentenceObject
	key     string
	version Version
}

// sentences reads all of them.
func (l *ledger) sentences(ctx context.Context) ([]*sentence, error) {
	var found []Object
	err := l.origin.List(ctx, sentencePrefix, func(o Object) error {
		found = append(found, o)
		return nil
	})
	if err != nil {
		return nil, err
	}
	all := make([]*sentence, 0, len(found))
	for _, at := range found {
		s, err := l.sentence(ctx, at.Key)
		if err != nil {
			return nil, err
		}
		if s == nil {
			continue
		}
		if s.Since.IsZero() {
			s.Since = at.Modified
		}
		all = append(all, s)
	}
	return all, nil
}

// sentence reads one; nil if there is none. Since may be zero.
func (l *ledger) sentence(ctx context.Context, key string) (*sentence, error) {
	b, version, err := l.origin.Get(ctx, key, maxLedgerObject)
	if fault.Is(err, fault.NotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	o, err := decodeSentence(b)
	if err != nil {
		return nil, damagedLedger(key, err)
	}
	return &sentence{o, key, version}, nil
}

// rewrite stores s as it is now in place of what was read; Exists if that has changed since.
func (l *ledger) rewrite(ctx context.Context, s *sentence) (err error) {
	s.Nonce = nonce()
	s.version, err = l.swap(ctx, s.key, s.version, s.sentenceObject)
	return err
}

// condemn writes new sentences on objects.
func (l *ledger) condemn(ctx context.Context, keys []string) error {
	for part := range slices.Chunk(keys, sentenceKeys) {
		id := nonce()
		if _, err := l.swap(ctx, sentencePrefix+id, "", sentenceObject{Format: sentenceFormat, Nonce: id, Condemned: part}); err != nil {
			return fault.Wrap(err, "condemn", "objects")
		}
	}
	return nil
}

// reprieve takes objects off the lists of what is to be deleted, and reports
// whether all of them were spared; false: one is doomed, and its deletion cannot
// be stopped. Objects on no list are spared. Whoever wants them to stay so needs a work lease,
// or removes the last manifest that names them and wants the grace period to begin then.
func (l *ledger) reprieve(ctx context.Context, keys ...string) (bool, error) {
	sentences, err := l.sentences(ctx)
	if err != nil {
		return false, fault.Wrap(err, "reprieve", keys[0])
	}
	wanted := make(map[string]struct{}, len(keys))
	for _, k := range keys {
		wanted[k] = struct{}{}
	}
	in := func(k string) bool { _, ok := wanted[k]; return ok }
	for _, s := range sentences {
		since := s.Since
		for s != nil {
			if slices.ContainsFunc(s.Doomed, in) {
				return false, nil
			}
			if !slices.ContainsFunc(s.Condemned, in) {
				break
			}
			s.Since = since
			s.Condemned = slices.DeleteFunc(s.Condemned, in)
			err := l.rewrite(ctx, s)
			if err == nil {
				break
			}
			if !fault.Is(err, fault.Exists) {
				return false, fault.Wrap(err, "reprieve", keys[0])
			}
			// A collector or another reprieve was faster. Each such race takes a name off the list.
			if s, err = l.sentence(ctx, s.key); err != nil {
				return false, fault.Wrap(err, "reprieve", keys[0])
			}
		}
	}
	return true, nil
}

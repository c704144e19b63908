package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// ledger is the protocol by which processes that share an origin delete from it:
// the leases of those who need objects that nothing names yet, and the sentences
// of collectors on objects that nothing needs. It is one workspace's part of the
// origin; docs/design/collection.md has the reasons, docs/format/ledger.md the
// objects.
//
// Every method does its work in the caller's goroutine, and any operation on the
// origin may be the last one before a crash. The ledger keeps nothing in memory.
type ledger struct {
	origin ledgerOrigin
	times  ledgerTimes
}

// ledgerOrigin is what the protocol needs of an Origin, whose contract it relies on:
// Swap is atomic, a listing has all that was there throughout.
type ledgerOrigin interface {
	Get(ctx context.Context, key string, max int64) ([]byte, Version, error)
	Swap(ctx context.Context, key string, old Version, data []byte) (Version, error)
	List(ctx context.Context, prefix string, fn func(Object) error) error
	Size(ctx context.Context, key string) (int64, error)
	Delete(ctx context.Context, key string) error
}

// ledgerTimes are the protocol's periods. All processes at an origin must have
// the same: they are constants of the format, and variables for tests only.
type ledgerTimes struct {
	lease     time.Duration // a lease that was not renewed for so long is dead
	slack     time.Duration // how far apart the origin's clock may be with itself: a bucket has many front ends
	tombstone time.Duration // how long it stays on record that an object was deleted
	pass      time.Duration // the longest that one collection may take
}

// Leases are renewed five times in their period, so that an origin that is away
// for some minutes breaks nothing. A tombstone must outlive every list of packs that
// a process may have in memory (staleAfter) and one pass.
var originTimes = ledgerTimes{lease: 10 * time.Minute, slack: time.Minute, tombstone: 24 * time.Hour, pass: 2 * time.Hour}

// staleAfter is the age from which a list of what the origin has must be made
// anew before anything of it may be relied on.
func (t ledgerTimes) staleAfter() time.Duration { return t.tombstone / 2 }

// renewal is how long after one renewal of a lease the next is due.
func (t ledgerTimes) renewal() time.Duration { return t.lease / 5 }

const (
	leasePrefix    = "holds/"
	sentencePrefix = "condemned/"
	clockKey       = "clock"     // a stamp, rewritten to learn what time it is
	collectedKey   = "collected" // a stamp of the last complete collection

	maxLedgerObject = 16 << 20 // bytes
)

// nonce makes every object that is written differ from all others, so that a
// version never comes back, and a writer knows its own.
func nonce() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// swap is the origin's, but tells a writer whose answer was lost that it won.
func (l *ledger) swap(ctx context.Context, key string, old Version, v any) (Version, error) {
	data := encodeLedger(v)
	now, err := l.origin.Swap(ctx, key, old, data)
	if err == nil {
		return now, nil
	}
	have, now, getErr := l.origin.Get(ctx, key, maxLedgerObject)
	if getErr == nil && bytes.Equal(have, data) {
		return now, nil
	}
	return "", err
}

// modified gives the origin's time of an object, and whether it is there.
func (l *ledger) modified(ctx context.Context, key string) (at time.Time, ok bool, err error) {
	err = l.origin.List(ctx, key, func(o Object) error {
		if o.Key == key {
			at, ok = o.Modified, true
		}
		return nil
	})
	return at, ok, err
}

// stamp is an object that says something by when it was written.
type stamp struct {
	Format string `json:"format"`
	Nonce  string `json:"nonce"`
}

const stampFormat = "brisk stamp 1"

// stamp rewrites one, and gives the origin's time of that. It may be early, never late.
func (l *ledger) stamp(ctx context.Context, key string) (now time.Time, err error) {
	_, version, err := l.origin.Get(ctx, key, maxLedgerObject)
	if err != nil && !fault.Is(err, fault.NotFound) && !fault.Is(err, fault.Corrupt) {
		return now, err
	}
	_, err = l.swap(ctx, key, version, stamp{stampFormat, nonce()})
	if err != nil && !fault.Is(err, fault.Exists) { // somebody else has just written it: as good
		return now, err
	}
	now, ok, err := l.modified(ctx, key)
	if err == nil && !ok {
		err = fault.New(fault.Unavailable, "the origin does not list what was written")
	}
	return now, err
}

func encodeLedger(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("store: a ledger object that JSON cannot hold: " + err.Error()) // no such type is in it
	}
	return append(b, '\n')
}

// decodeLedger reads what encodeLedger wrote.
func decodeLedger(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fault.New(fault.Corrupt, "not an object of the ledger: %v", err)
	}
	if d.More() {
		return fault.New(fault.Corrupt, "not an object of the ledger: something follows it")
	}
	return nil
}

// checkLedger checks the parts that the formats have in common.
func checkLedger(format, want, nonce string, keys ...[]string) error {
	if format != want {
		return fault.New(fault.Corrupt, "its format is %q, this Brisk reads %q", format, want)
	}
	if len(nonce) != 32 {
		return fault.New(fault.Corrupt, "a nonce of %d digits", len(nonce))
	}
	for _, list := range keys {
		for _, k := range list {
			if err := CheckKey(k); err != nil {
				return fault.New(fault.Corrupt, "%v", err)
			}
		}
	}
	return nil
}

// damagedLedger is the error for an object of the ledger that cannot be read: nobody may go on
// as if it were not there.
func damagedLedger(key string, err error) error {
	return &fault.Error{Class: fault.ClassOf(err), Op: "read", Object: key, Err: err,
		Hint: fmt.Sprintf("Another version of Brisk may use this origin. If not, the object %s is damaged; `brisk store fsck --repair` sets it right.", key)}
}

package store

import (
	"context"
	"regexp"
	"strings"

	"brisk.dev/brisk/internal/fault"
)

// MaxRecord is the most bytes that a record has.
const MaxRecord = 16 << 20

// recordTries bounds the attempts at an unconditional PutRecord: each fails only
// because another's has succeeded.
const recordTries = 10

var recordKind = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// GetRecord reads a record: a small named object that changes, such as a manifest or
// the name of an image. Errors: fault.NotFound; fault.Corrupt if it is not what
// the workspace has written under that kind and name.
func (s *Store) GetRecord(ctx context.Context, kind, name string) ([]byte, Version, error) {
	key, err := s.recordKey(kind, name)
	if err != nil {
		return nil, "", err
	}
	var b []byte
	var v Version
	err = s.secondLook(ctx, func() (err error) {
		if b, v, err = s.opts.Origin.Get(ctx, key, MaxRecord+recordOverhead); err == nil {
			b, err = s.openRecord(kind, name, b)
		}
		return err
	})
	return b, v, fault.Wrap(err, "read record", kind+" "+name)
}

// PutRecord writes a record, durably, and gives its new version. If old is not nil the
// record must have that version, or with "" not exist; else the error is
// fault.Exists and nothing has changed.
func (s *Store) PutRecord(ctx context.Context, kind, name string, data []byte, old *Version) (Version, error) {
	key, err := s.recordKey(kind, name)
	if err != nil {
		return "", err
	}
	if len(data) > MaxRecord {
		return "", fault.New(fault.Invalid, "a record of %d bytes: at most %d", len(data), MaxRecord)
	}
	if err := s.ready(ctx); err != nil {
		return "", err
	}
	b := s.sealRecord(kind, name, data)
	if old != nil {
		v, err := s.opts.Origin.Swap(ctx, key, *old, b)
		return v, fault.Wrap(err, "write record", kind+" "+name)
	}
	for range recordTries {
		var have, v Version
		_, have, err = s.opts.Origin.Get(ctx, key, MaxRecord+recordOverhead)
		if fault.Is(err, fault.Corrupt) { // longer than any record: it is none, and has no version
			err = s.opts.Origin.Delete(ctx, key)
		}
		if err != nil && !fault.Is(err, fault.NotFound) {
			break
		}
		if v, err = s.opts.Origin.Swap(ctx, key, have, b); !fault.Is(err, fault.Exists) {
			return v, fault.Wrap(err, "write record", kind+" "+name)
		}
	}
	return "", fault.Wrap(err, "write record", kind+" "+name)
}

// ListRecords calls fn with the name of each record of a kind, in no particular
// order, until fn fails. Objects that have no name of a record are logged and left out.
func (s *Store) ListRecords(ctx context.Context, kind string, fn func(name string) error) error {
	if !recordKind.MatchString(kind) {
		return fault.New(fault.Invalid, "%q cannot be a kind of records", kind)
	}
	prefix := "records/" + kind + "/"
	return fault.Wrap(s.opts.Origin.List(ctx, prefix, func(o Object) error {
		name, err := s.recordName(kind, strings.TrimPrefix(o.Key, prefix))
		if err != nil {
			s.log.Warn("the origin has an object that is not a record", "key", o.Key, "err", err)
			return nil
		}
		return fn(name)
	}), "list records", kind)
}

// DeleteRecord removes a record; one that is not there is no error.
func (s *Store) DeleteRecord(ctx context.Context, kind, name string) error {
	key, err := s.recordKey(kind, name)
	if err != nil {
		return err
	}
	return fault.Wrap(s.opts.Origin.Delete(ctx, key), "delete record", kind+" "+name)
}

// recordOverhead is more than sealing adds.
const recordOverhead = 256

func (s *Store) sealRecord(kind, name string, data []byte) []byte {
	if keys := s.sealing(); keys != nil {
		return keys.SealObject("record "+kind, name, data)
	}
	return data
}

func (s *Store) openRecord(kind, name string, b []byte) ([]byte, error) {
	if keys := s.sealing(); keys != nil {
		return keys.OpenObject("record "+kind, name, b)
	}
	return b, nil
}

// recordKey is where a record lies: docs/format/seal.md, "Names".
func (s *Store) recordKey(kind, name string) (string, error) {
	if !recordKind.MatchString(kind) {
		return "", fault.New(fault.Invalid, "%q cannot be a kind of records", kind)
	}
	if name == "" || len(name) > 255 {
		return "", fault.New(fault.Invalid, "a record's name of %d bytes: 1 to 255", len(name))
	}
	text := escapeName(name)
	if keys := s.sealing(); keys != nil {
		text = keys.SealName(kind, name)
	}
	return "records/" + kind + "/" + splitName(text), nil
}

// recordName is the inverse of recordKey, for what follows the kind.
func (s *Store) recordName(kind, text string) (string, error) {
	name, ok := joinName(text)
	if keys := s.sealing(); ok && keys != nil {
		opened, err := keys.OpenName(kind, name)
		if err != nil {
			return "", err
		}
		name = opened
	} else if ok {
		name, ok = unescapeName(name)
	}
	if !ok || name == "" || len(name) > 255 {
		return "", fault.New(fault.Corrupt, "%q is not a record's name", text)
	}
	return name, nil
}

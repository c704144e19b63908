package peer

import (
	"bytes"
	"errors"

	"brisk.dev/brisk/internal/store"
)

// An announcement: docs/format/peer.md.
const (
	announceMagic = "BRSKANN1"
	maxAnnounced  = 2048 // names in one
	maxAnnounce   = len(announceMagic) + maxAnnounced*len(store.Digest{})
)

func encodeAnnouncement(names []store.Digest) []byte {
	b := make([]byte, 0, len(announceMagic)+len(names)*len(store.Digest{}))
	b = append(b, announceMagic...)
	for i := range names {
		b = append(b, names[i][:]...)
	}
	return b
}

var errAnnouncement = errors.New("malformed announcement")

func decodeAnnouncement(b []byte) ([]store.Digest, error) {
	rest, is := bytes.CutPrefix(b, []byte(announceMagic))
	n := len(rest) / len(store.Digest{})
	if !is || len(rest)%len(store.Digest{}) != 0 || n == 0 || n > maxAnnounced {
		return nil, errAnnouncement
	}
	names := make([]store.Digest, n)
	for i := range names {
		rest = rest[copy(names[i][:], rest):]
	}
	return names, nil
}

// ring is the names that were announced last.
type ring struct {
	names []store.Digest
	next  int
	limit int
}

func (r *ring) add(name store.Digest) {
	if len(r.names) < r.limit {
		r.names = append(r.names, name)
		return
	}
	r.names[r.next] = name
	r.next = (r.next + 1) % r.limit
}

package slab

import "encoding/binary"

// scrubState is how far the scrub has come. It goes round and round.
type scrubState struct {
	block uint32 // where it goes on
	began int64  // this round, Unix seconds; 0: none has begun
	ended int64  // the last whole round, Unix seconds; 0: there was none
}

// record keeps the state in the index: the times are where others have a digest.
func (c scrubState) record() record {
	r := record{kind: kindScrub, place: place{block: c.block}}
	binary.LittleEndian.PutUint64(r.digest[0:], uint64(c.began)) //nolint:gosec // and back
	binary.LittleEndian.PutUint64(r.digest[8:], uint64(c.ended)) //nolint:gosec // and back
	return r
}

func decodeScrubState(r record) scrubState {
	return scrubState{
		block: r.place.block,
		began: int64(binary.LittleEndian.Uint64(r.digest[0:])), //nolint:gosec // and back
		ended: int64(binary.LittleEndian.Uint64(r.digest[8:])), //nolint:gosec // and back
	}
}

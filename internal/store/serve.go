package store

import (
	"context"
	"encoding/binary"
	"sync"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store/seal"
)

// An answer to a peer: docs/format/seal.md, "Answers". It is a frame as in a sealed
// pack, with what a pack's index would say of it in front.
const (
	answerVersion = 1
	answerHeader  = 8 // bytes: version, flags, two zeros, u32 epoch
)

// MaxAnswer is the most bytes that an answer has.
const MaxAnswer = answerHeader + ChunkSize + seal.Overhead

// served are the chunks that peers may ask for, by the beginning of their keyed names.
type served struct {
	mu sync.RWMutex
	by map[uint64]Chunk
}

// offer makes chunks known that may be served when the cache has them, and announces
// those that it has: the peers may have forgotten, or an earlier server fetched them.
func (s *Store) offer(chunks []Chunk) {
	if s.opts.Peers == nil || len(chunks) == 0 {
		return
	}
	s.spawn(func() {
		for _, c := range chunks {
			switch {
			case c.Digest.IsZero():
			case s.opts.Cache != nil && s.opts.Cache.Has(c.Digest):
				s.announce(c)
			default:
				s.offerOne(c, s.opts.Keys.Name(c.Digest))
			}
		}
	})
}

func (s *Store) offerOne(c Chunk, name Digest) {
	s.served.mu.Lock()
	defer s.served.mu.Unlock()
	if s.served.by == nil {
		s.served.by = map[uint64]Chunk{}
	}
	s.served.by[shortKey(name)] = c
}

// announce tells the peers of a chunk that the cache has now.
func (s *Store) announce(c Chunk) {
	if s.opts.Peers == nil {
		return
	}
	name := Digest(s.opts.Keys.Name(c.Digest))
	s.offerOne(c, name)
	s.opts.Peers.Announce(s.opts.Keys.Workspace(), name)
}

// Serve answers another machine that asks for the chunk of a keyed name:
// compressed, and sealed for the workspace. It answers from the cache only, and only
// chunks of images that were opened or read here since the store was opened:
// fault.NotFound otherwise.
func (s *Store) Serve(ctx context.Context, name Digest) (answer []byte, err error) {
	if s.opts.Keys == nil || s.opts.Cache == nil {
		return nil, fault.New(fault.NotFound, "nothing is served here")
	}
	s.served.mu.RLock()
	c, known := s.served.by[shortKey(name)]
	s.served.mu.RUnlock()
	if !known || s.opts.Keys.Name(c.Digest) != name || !s.opts.Cache.Has(c.Digest) {
		return nil, fault.New(fault.NotFound, "no chunk %s here", name.Short())
	}
	if err := ctx.Err(); err != nil {
		return nil, fault.Wrap(err, "serve", name.Short())
	}
	j := jobs.Get().(*job)
	defer jobs.Put(j)
	ok, err := s.opts.Cache.Read(c, j.data[:c.Size])
	if err != nil {
		s.cacheFailed("read", c, err)
	}
	if !ok || err != nil {
		return nil, fault.New(fault.NotFound, "no chunk %s here", name.Short())
	}
	answer = encodeAnswer(s.opts.Keys, c, seal.EpochAt(s.opts.Now()), j)
	s.counters.served.Add(1)
	return answer, nil
}

// encodeAnswer makes an answer of the chunk that is in j.data.
func encodeAnswer(keys *seal.Keys, c Chunk, epoch uint32, j *job) []byte {
	frame, raw := encodeFrame(j.data[:c.Size], j.space[:])
	answer := make([]byte, 0, answerHeader+len(frame)+seal.Overhead)
	var flags byte
	if raw {
		flags = flagRaw
	}
	answer = append(answer, answerVersion, flags, 0, 0)
	answer = binary.LittleEndian.AppendUint32(answer, epoch)
	return keys.SealFrame(answer, c.Digest, epoch, frame)
}

// openAnswer fills buf with the chunk of an answer, which is used up, and verifies
// it; fault.Corrupt if it is not that chunk.
func (s *Store) openAnswer(c Chunk, answer, buf []byte) error {
	switch {
	case len(answer) < answerHeader || len(answer) > MaxAnswer:
		return fault.New(fault.Corrupt, "an answer of %d bytes", len(answer))
	case answer[0] != answerVersion:
		return fault.New(fault.Corrupt, "an answer of version %d: this Brisk knows %d", answer[0], answerVersion)
	case answer[1]&^flagRaw != 0 || answer[2] != 0 || answer[3] != 0:
		return fault.New(fault.Corrupt, "an answer with flags %x", answer[1:4])
	}
	how := packSeal{sealed: true, epoch: binary.LittleEndian.Uint32(answer[4:])}
	return s.openFrame(c, how, answer[answerHeader:], answer[1] == flagRaw, buf)
}

// fromPeers fills buf with a chunk from another machine, if one has it. What
// keeps peers from answering is never an error here: there is the origin.
func (s *Store) fromPeers(ctx context.Context, c Chunk, buf []byte) bool {
	if s.opts.Peers == nil {
		return false
	}
	got := false
	err := s.opts.Peers.Fetch(ctx, s.opts.Keys.Workspace(), s.opts.Keys.Name(c.Digest), func(answer []byte) error {
		if err := s.openAnswer(c, answer, buf); err != nil {
			s.counters.damagedAnswers.Add(1)
			return fault.Wrap(err, "read answer", c.String())
		}
		got = true
		return nil
	})
	switch {
	case got:
		s.counters.peerReads.Add(1)
		s.counters.peerBytes.Add(int64(c.Size))
	case err != nil && !fault.Is(err, fault.NotFound):
		s.counters.peerFailures.Add(1)
	}
	return got
}

package api

import (
	"context"
	"io"
	"net/http"
	"time"

	"brisk.dev/brisk/internal/store"
)

// CheckRequest asks whether everything is there and right.
type CheckRequest struct {
	Full   bool `json:"full"`   // read every byte
	Repair bool `json:"repair"` // put right what can be
}

// StoreCheck is what a check found.
type StoreCheck struct {
	Full    bool           `json:"full"`
	Images  int64          `json:"images"`
	Packs   int64          `json:"packs"`
	Bytes   int64          `json:"bytes"` // of all that is stored
	Damaged []DamagedImage `json:"damaged"`
	Ledger  []string       `json:"ledger"`          // objects of the collectors that cannot be read; after a repair they are gone
	Cache   *CacheCheck    `json:"cache,omitempty"` // of the machine's cache, if it was read
	Notes   []string       `json:"notes"`           // what could not be checked, and why
	MS      float64        `json:"ms"`
}

// DamagedImage is an image of which something is missing or wrong.
type DamagedImage struct {
	Workspace string       `json:"workspace"`
	Names     []string     `json:"names"`
	Digest    store.Digest `json:"digest"`
	Problem   string       `json:"problem"`
}

// CacheCheck is what a check of the machine's cache found. What is damaged there has been
// dropped, and is fetched again.
type CacheCheck struct {
	Chunks   int64    `json:"chunks"`
	Bytes    int64    `json:"bytes"`
	Damaged  int64    `json:"damaged"`
	Mounted  int64    `json:"mounted"` // of these, such as natively mounted images read
	Mended   []string `json:"mended"`
	Problems []string `json:"problems"`
}

func (s *Server) check(w http.ResponseWriter, r *http.Request) error {
	var q CheckRequest
	if err := decode(w, r, &q); err != nil {
		return err
	}
	return s.staged(w, r, func(ctx context.Context, progress func(stage string, done, total int64)) (any, error) {
		c, err := s.backend.Housekeeper.Check(ctx, q, progress)
		return checkedFrame{"done", c}, err
	})
}

// staged runs work that tells how far each of its stages is, and ends the stream with
// the frame that it gives.
func (s *Server) staged(w http.ResponseWriter, r *http.Request, work func(ctx context.Context, progress func(stage string, done, total int64)) (any, error)) error {
	out := stream{w: w}
	var last time.Time
	var stage string
	var frame any
	err := s.long(r, func(ctx context.Context) (err error) {
		frame, err = work(ctx, func(at string, n, total int64) {
			if now := time.Now(); at != stage || now.Sub(last) >= progressEvery {
				last, stage = now, at
				_ = out.send(stageFrame{"progress", at, n, total}, nil)
			}
		})
		return err
	})
	if err != nil {
		out.fail(err)
		return nil
	}
	_ = out.send(frame, nil)
	return nil
}

// Check looks whether everything is there and right. progress (bytes) may be nil.
func (c *Client) Check(ctx context.Context, q CheckRequest, progress func(stage string, done, total int64)) (StoreCheck, error) {
	f, err := c.follow(ctx, "/v1/store/fsck", q, func(f *Frame, _ io.Reader) error {
		if f.Type == "progress" && progress != nil {
			progress(f.Text, f.Done, f.Total)
		}
		return nil
	})
	switch {
	case err != nil:
		return StoreCheck{}, err
	case f.Check == nil:
		return StoreCheck{}, unexpected(f)
	}
	return *f.Check, nil
}

package api

import (
	"context"
	"io"
	"net/http"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// Housekeeper deletes what nobody needs and looks for damage. Progress goes through
// stages; done and total count what the stage is about, total is 0 while it is unknown.
// It may be called from any one goroutine at a time, often.
type Housekeeper interface {
	Collect(ctx context.Context, q CollectRequest, progress func(stage string, done, total int64)) (Collected, error)
	Check(ctx context.Context, q CheckRequest, progress func(stage string, done, total int64)) (StoreCheck, error)
}

// CollectRequest asks for a collection.
type CollectRequest struct {
	DryRun bool    `json:"dry_run"`
	Grace  float64 `json:"grace"` // seconds; 0 = the default. Only where machines share the origin.
}

// Collected says what a collection deleted or, as a dry run, would have.
type Collected struct {
	DryRun bool      `json:"dry_run"`
	Freed  []Garbage `json:"freed"` // by kind, only those of which there was something
	Bytes  int64     `json:"bytes"` // of all kinds

	Waiting Garbage  `json:"waiting"` // what nobody needs and is not yet old enough
	Held    Garbage  `json:"held"`    // what only work in progress or a mounted image needs
	Notes   []string `json:"notes"`   // what could not be collected, and why
	MS      float64  `json:"ms"`
}

// Garbage is a kind of things that nobody needs. Bytes are as they lie on the disk or
// at the origin; of what is too small to count they are 0.
type Garbage struct {
	Kind  string `json:"kind"`
	Count int64  `json:"count"`
	Bytes int64  `json:"bytes"`
}

func (s *Server) collect(w http.ResponseWriter, r *http.Request) error {
	var q CollectRequest
	if err := decode(w, r, &q); err != nil {
		return err
	}
	if q.Grace < 0 || q.Grace > (365*24*time.Hour).Seconds() {
		return fault.New(fault.Invalid, "grace=%v: want 0 seconds to a year", q.Grace)
	}
	return s.staged(w, r, func(ctx context.Context, progress func(stage string, done, total int64)) (any, error) {
		c, err := s.backend.Housekeeper.Collect(ctx, q, progress)
		return collectedFrame{"done", c}, err
	})
}

// Collect deletes what nobody needs. progress may be nil.
func (c *Client) Collect(ctx context.Context, q CollectRequest, progress func(stage string, done, total int64)) (Collected, error) {
	f, err := c.follow(ctx, "/v1/store/gc", q, func(f *Frame, _ io.Reader) error {
		if f.Type == "progress" && progress != nil {
			progress(f.Text, f.Done, f.Total)
		}
		return nil
	})
	switch {
	case err != nil:
		return Collected{}, err
	case f.Collected == nil:
		return Collected{}, unexpected(f)
	}
	return *f.Collected, nil
}

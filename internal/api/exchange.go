package api

import (
	"context"
	"io"
	"net/http"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image/registry"
)

// PullRequest asks for an image from a registry.
type PullRequest struct {
	Ref      string         `json:"ref"`            // as docker takes it
	Name     string         `json:"name,omitempty"` // of the image; "" = none
	Insecure bool           `json:"insecure,omitempty"`
	Auth     *registry.Auth `json:"auth,omitempty"` // nil: those of the user whom the server runs as
}

func (s *Server) pull(w http.ResponseWriter, r *http.Request) error {
	var q PullRequest
	if err := decode(w, r, &q); err != nil {
		return err
	}
	if q.Ref == "" {
		return fault.New(fault.Invalid, "a pull needs a reference")
	}
	return s.reporting(w, r, func(ctx context.Context, out *stream, progress func(done, total int64)) (any, error) {
		res, err := s.backend.Exchange.Pull(ctx, r.PathValue("w"), q, progress)
		return importedFrame{"done", res}, err
	})
}

// ShareRequest asks for a copy of an image in the shared workspace.
type ShareRequest struct {
	Ref  string `json:"ref"`
	Name string `json:"name"` // there
}

func (s *Server) share(w http.ResponseWriter, r *http.Request) error {
	var q ShareRequest
	if err := decode(w, r, &q); err != nil {
		return err
	}
	if q.Ref == "" || q.Name == "" {
		return fault.New(fault.Invalid, "sharing needs an image and a name")
	}
	return s.reporting(w, r, func(ctx context.Context, out *stream, progress func(done, total int64)) (any, error) {
		res, err := s.backend.Exchange.Share(ctx, r.PathValue("w"), q, progress)
		return importedFrame{"done", res}, err
	})
}

// reporting runs work that tells its progress, and ends the stream with the frame that it gives.
func (s *Server) reporting(w http.ResponseWriter, r *http.Request, work func(ctx context.Context, out *stream, progress func(done, total int64)) (any, error)) error {
	out := stream{w: w}
	var last time.Time
	var frame any
	err := s.long(r, func(ctx context.Context) (err error) {
		frame, err = work(ctx, &out, func(done, total int64) {
			if now := time.Now(); now.Sub(last) >= progressEvery {
				last = now
				_ = out.send(progressFrame{"progress", done, total}, nil)
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

// Pull makes an image of one in a registry.
func (c *Client) Pull(ctx context.Context, q PullRequest, progress func(done, total int64)) (ImportResult, error) {
	return c.followImport(ctx, "pull", q, progress)
}

// Share copies an image into the shared workspace.
func (c *Client) Share(ctx context.Context, q ShareRequest, progress func(done, total int64)) (ImportResult, error) {
	return c.followImport(ctx, "share", q, progress)
}

func (c *Client) followImport(ctx context.Context, verb string, q any, progress func(done, total int64)) (ImportResult, error) {
	f, err := c.follow(ctx, c.in("images", verb), q, func(f *Frame, _ io.Reader) error {
		if f.Type == "progress" && progress != nil {
			progress(f.Done, f.Total)
		}
		return nil
	})
	switch {
	case err != nil:
		return ImportResult{}, err
	case f.Import == nil:
		return ImportResult{}, unexpected(f)
	}
	return *f.Import, nil
}

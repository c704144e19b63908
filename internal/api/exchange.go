package api

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
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

// PushRequest asks for an image to be put into a registry.
type PushRequest struct {
	Image       string         `json:"image"`
	Ref         string         `json:"ref"` // where to, as docker takes it
	Compression string         `json:"compression,omitempty"`
	Insecure    bool           `json:"insecure,omitempty"`
	Auth        *registry.Auth `json:"auth,omitempty"` // nil: those of the user whom the server runs as
}

func (s *Server) push(w http.ResponseWriter, r *http.Request) error {
	var q PushRequest
	if err := decode(w, r, &q); err != nil {
		return err
	}
	if q.Image == "" || q.Ref == "" {
		return fault.New(fault.Invalid, "a push needs an image and a reference")
	}
	return s.reporting(w, r, func(ctx context.Context, out *stream, progress func(done, total int64)) (any, error) {
		res, err := s.backend.Exchange.Push(ctx, r.PathValue("w"), q, progress)
		return exportedFrame{"done", res}, err
	})
}

// ExportRequest asks for an image as an archive.
type ExportRequest struct {
	Image       string `json:"image"`
	Format      string `json:"format,omitempty"` // "oci", the default, or "tar"
	Compression string `json:"compression,omitempty"`
}

// exportPiece is how much of an archive a frame has at most, in bytes.
const exportPiece = 256 << 10

func (s *Server) export(w http.ResponseWriter, r *http.Request) error {
	var q ExportRequest
	if err := decode(w, r, &q); err != nil {
		return err
	}
	if q.Image == "" {
		return fault.New(fault.Invalid, "an export needs an image")
	}
	return s.reporting(w, r, func(ctx context.Context, out *stream, progress func(done, total int64)) (any, error) {
		data := bufio.NewWriterSize(dataWriter{out}, exportPiece)
		res, err := s.backend.Exchange.Export(ctx, r.PathValue("w"), q, data, progress)
		if err == nil {
			err = data.Flush()
		}
		return exportedFrame{"done", res}, err
	})
}

// dataWriter sends what is written as frames.
type dataWriter struct{ out *stream }

func (w dataWriter) Write(p []byte) (int, error) {
	return len(p), w.out.send(logFrame{Type: "data", Len: len(p)}, p)
}

// DiffRequest asks how two images differ.
type DiffRequest struct {
	A string `json:"a"`
	B string `json:"b"`
}

func (s *Server) diff(w http.ResponseWriter, r *http.Request) error {
	var q DiffRequest
	if err := decode(w, r, &q); err != nil {
		return err
	}
	return answer(w)(s.backend.Exchange.Diff(r.Context(), r.PathValue("w"), q))
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

// Push puts an image into a registry.
func (c *Client) Push(ctx context.Context, q PushRequest, progress func(done, total int64)) (ExportResult, error) {
	return c.followExport(ctx, "push", q, io.Discard, progress)
}

// Export writes an image to w as an archive.
func (c *Client) Export(ctx context.Context, q ExportRequest, w io.Writer, progress func(done, total int64)) (ExportResult, error) {
	return c.followExport(ctx, "export", q, w, progress)
}

func (c *Client) followExport(ctx context.Context, verb string, q any, w io.Writer, progress func(done, total int64)) (ExportResult, error) {
	f, err := c.follow(ctx, c.in("images", verb), q, func(f *Frame, payload io.Reader) error {
		switch {
		case f.Type == "data":
			_, err := io.Copy(w, payload)
			return err
		case f.Type == "progress" && progress != nil:
			progress(f.Done, f.Total)
		}
		return nil
	})
	switch {
	case err != nil:
		return ExportResult{}, err
	case f.Export == nil:
		return ExportResult{}, unexpected(f)
	}
	return *f.Export, nil
}

// Diff compares two images.
func (c *Client) Diff(ctx context.Context, q DiffRequest) (image.Difference, error) {
	var d image.Difference
	err := c.ask(ctx, http.MethodPost, c.in("images", "diff"), q, &d)
	return d, err
}

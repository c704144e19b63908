package registry

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"brisk.dev/brisk/internal/fault"
)

// MayPush finds out whether the registry lets us write, before anything is made for it: it
// begins an upload and gives it up.
func (p *Repo) MayPush(ctx context.Context) error {
	err := p.attempt(ctx, func(ctx context.Context) error {
		to, err := p.beginUpload(ctx)
		if err != nil {
			return err
		}
		// An upload that stays is one of those that every registry cleans up by itself.
		if resp, err := p.do(ctx, http.MethodDelete, to, nil, nil); err == nil {
			resp.Body.Close()
		}
		return nil
	})
	return p.wrap(err, "write to")
}

// PutBlob puts a blob into the repository, unless it is there. open gives its
// content from the beginning, as often as it takes.
func (p *Repo) PutBlob(ctx context.Context, digest v1.Hash, size int64, open func() io.Reader) (there bool, err error) {
	err = p.attempt(ctx, func(ctx context.Context) error {
		there, err = p.hasBlob(ctx, digest)
		return err
	})
	if err != nil || there {
		return there, p.wrap(err, "ask for a layer at")
	}
	for fails := 1; ; fails++ {
		err = p.upload(ctx, digest, size, open())
		if err == nil || ctx.Err() != nil || fails >= maxAttempts || !temporary(err) {
			break
		}
		if err = p.client.wait(ctx, fails); err != nil {
			break
		}
	}
	return false, p.wrap(err, "send a layer to")
}

func (p *Repo) hasBlob(ctx context.Context, digest v1.Hash) (bool, error) {
	resp, err := p.do(ctx, http.MethodHead, p.at("/blobs/"+digest.String()), nil, nil)
	if err != nil {
		return false, err
	}
	resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound {
		return false, nil
	}
	return true, transport.CheckError(resp, http.StatusOK)
}

// upload sends a blob in one piece.
func (p *Repo) upload(ctx context.Context, digest v1.Hash, size int64, content io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	to, err := p.beginUpload(ctx)
	if err != nil {
		return err
	}
	q := to.Query()
	q.Set("digest", digest.String())
	to.RawQuery = q.Encode()
	// The connection is given up when it takes nothing for too long.
	body := newStalling(io.NopCloser(content), cancel, p.client.stall())
	defer body.Close()
	resp, err := p.do(ctx, http.MethodPut, to, &sending{body}, func(r *http.Request) {
		r.ContentLength = size
		r.Header.Set("Content-Type", "application/octet-stream")
		if size == 0 {
			r.Body = http.NoBody
		}
	})
	if err != nil {
		if body.fired.Load() {
			err = fault.New(fault.Unavailable, "it took nothing for %s", p.client.stall())
		}
		return err
	}
	defer resp.Body.Close()
	return transport.CheckError(resp, http.StatusCreated, http.StatusOK)
}

// beginUpload asks where a blob may be sent to.
func (p *Repo) beginUpload(ctx context.Context) (*url.URL, error) {
	resp, err := p.do(ctx, http.MethodPost, p.at("/blobs/uploads/"), nil, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if err := transport.CheckError(resp, http.StatusAccepted, http.StatusCreated); err != nil {
		return nil, err
	}
	to, err := resp.Request.URL.Parse(resp.Header.Get("Location"))
	if err != nil || resp.Header.Get("Location") == "" {
		return nil, fault.New(fault.Corrupt, "it does not say where to send a layer to (%q)", resp.Header.Get("Location"))
	}
	return to, nil
}

// sending is a stalling body for a request: time counts while the connection takes
// what was read, which is between two Reads.
type sending struct{ s *stalling }

func (s *sending) Read(p []byte) (int, error) {
	s.s.timer.Stop()
	n, err := s.s.body.Read(p)
	if err == nil {
		s.s.timer.Reset(s.s.after)
	}
	return n, err
}

// PutManifest puts a manifest under the reference that the repository was opened with.
func (p *Repo) PutManifest(ctx context.Context, raw []byte, kind types.MediaType) error {
	err := p.attempt(ctx, func(ctx context.Context) error {
		resp, err := p.do(ctx, http.MethodPut, p.at("/manifests/"+p.ref.Identifier()), bytes.NewReader(raw), func(r *http.Request) {
			r.ContentLength = int64(len(raw))
			r.Header.Set("Content-Type", string(kind))
		})
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		return transport.CheckError(resp, http.StatusCreated, http.StatusOK, http.StatusAccepted)
	})
	return p.wrap(err, "send the manifest to")
}

func (p *Repo) at(path string) *url.URL {
	u := p.root
	u.Path += path
	return &u
}

func (p *Repo) do(ctx context.Context, method string, to *url.URL, body io.Reader, edit func(*http.Request)) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, to.String(), body)
	if err != nil {
		return nil, err
	}
	if edit != nil {
		edit(req)
	}
	return p.http.Do(req)
}

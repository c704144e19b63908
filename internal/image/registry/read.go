package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"brisk.dev/brisk/internal/fault"
)

// maxManifest bounds a manifest in bytes; registries accept 4 MiB.
const maxManifest = 8 << 20

// maxAttempts is how often a request is made without any progress before it counts as failed.
const maxAttempts = 5

// accepted are the manifests that are asked for.
var accepted = strings.Join([]string{
	string(types.OCIImageIndex), string(types.DockerManifestList),
	string(types.OCIManifestSchema1), string(types.DockerManifestSchema2),
}, ", ")

// Manifest is a document of a registry.
type Manifest struct {
	Raw       []byte
	MediaType types.MediaType
	Digest    v1.Hash
}

// Manifest reads the manifest, or index, that the reference names.
func (p *Repo) Manifest(ctx context.Context) (Manifest, error) {
	return p.manifest(ctx, p.ref.Identifier(), maxManifest)
}

// ManifestOf reads the manifest of a descriptor. Its digest is checked.
func (p *Repo) ManifestOf(ctx context.Context, d v1.Descriptor) (Manifest, error) {
	if d.Size > maxManifest {
		return Manifest{}, fault.New(fault.Invalid, "manifest %s has %d bytes, and more than %d cannot be read", d.Digest, d.Size, maxManifest)
	}
	return p.manifest(ctx, d.Digest.String(), maxManifest)
}

func (p *Repo) manifest(ctx context.Context, identifier string, limit int64) (Manifest, error) {
	var m Manifest
	err := p.attempt(ctx, func(ctx context.Context) error {
		resp, err := p.do(ctx, http.MethodGet, p.at("/manifests/"+identifier), nil, func(r *http.Request) { r.Header.Set("Accept", accepted) })
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if err := transport.CheckError(resp, http.StatusOK); err != nil {
			return err
		}
		raw, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
		if err != nil {
			return err
		}
		if int64(len(raw)) > limit {
			return fault.New(fault.Invalid, "manifest %s has more than %d bytes", identifier, limit)
		}
		m = Manifest{Raw: raw, MediaType: types.MediaType(mediaType(resp.Header.Get("Content-Type")))}
		m.Digest, _, err = v1.SHA256(bytes.NewReader(raw))
		return err
	})
	if err != nil {
		return m, p.wrap(err, "read a manifest of")
	}
	if want, err := v1.NewHash(identifier); err == nil && m.Digest != want {
		return m, fault.New(fault.Corrupt, "the manifest should have the digest %s and has %s", want, m.Digest)
	}
	return m, nil
}

func mediaType(header string) string {
	t, _, _ := strings.Cut(header, ";")
	return strings.TrimSpace(t)
}

// Blob opens a blob of size bytes. The reader asks again for the rest when the
// connection breaks. It gives exactly size bytes or an error. It ends with ctx.
func (p *Repo) Blob(ctx context.Context, digest v1.Hash, size int64) io.ReadCloser {
	ctx, cancel := context.WithCancel(ctx)
	return &blob{repo: p, ctx: ctx, cancel: cancel, digest: digest, size: size}
}

// blob is a blob being read.
type blob struct {
	repo   *Repo
	ctx    context.Context
	cancel context.CancelFunc
	digest v1.Hash
	size   int64

	at    int64 // bytes given so far
	body  *stalling
	fails int // attempts since the last byte
}

func (b *blob) Read(p []byte) (int, error) {
	for {
		if b.at == b.size {
			return 0, b.atEnd()
		}
		if b.body == nil {
			if err := b.open(); err != nil {
				return 0, b.repo.wrap(err, "read a layer of")
			}
		}
		n, err := b.body.Read(p[:min(int64(len(p)), b.size-b.at)])
		b.at += int64(n)
		if n > 0 {
			b.fails = 0
			return n, nil
		}
		if err == nil {
			continue
		}
		b.body.Close()
		b.body = nil
		if b.ctx.Err() != nil {
			return 0, b.ctx.Err()
		}
		if err == io.EOF {
			err = fault.New(fault.Unavailable, "it sent %d bytes of %s, which should have %d", b.at, b.digest, b.size)
		}
		if err := b.failed(err); err != nil {
			return 0, b.repo.wrap(err, "read a layer of")
		}
	}
}

// atEnd finds out whether more comes than was promised.
func (b *blob) atEnd() error {
	if b.body == nil {
		return io.EOF
	}
	var one [1]byte
	if n, _ := b.body.Read(one[:]); n > 0 {
		return fault.New(fault.Corrupt, "blob %s is longer than the %d bytes that it should have", b.digest, b.size)
	}
	b.body.Close()
	b.body = nil
	return io.EOF
}

// failed waits before another attempt, or says that there is none.
func (b *blob) failed(err error) error {
	if b.fails++; b.fails >= maxAttempts || !temporary(err) {
		return err
	}
	return b.repo.client.wait(b.ctx, b.fails)
}

// open asks for the bytes from b.at on.
func (b *blob) open() error {
	for {
		body, err := b.request()
		if err == nil {
			b.body = body
			return nil
		}
		if b.ctx.Err() != nil {
			return b.ctx.Err()
		}
		if err := b.failed(err); err != nil {
			return err
		}
	}
}

func (b *blob) request() (*stalling, error) {
	ctx, cancel := context.WithCancel(b.ctx)
	resp, err := b.repo.do(ctx, http.MethodGet, b.repo.at("/blobs/"+b.digest.String()), nil, func(r *http.Request) { //nolint:bodyclose // by stalling
		if b.at > 0 {
			r.Header.Set("Range", fmt.Sprintf("bytes=%d-", b.at))
		}
	})
	if err != nil {
		cancel()
		return nil, err
	}
	body := newStalling(resp.Body, cancel, b.repo.client.stall())
	if err := b.accept(resp, body); err != nil {
		body.Close()
		return nil, err
	}
	return body, nil
}

// accept checks an answer, and skips what was read already if the server does not know ranges.
func (b *blob) accept(resp *http.Response, body io.Reader) error {
	if err := transport.CheckError(resp, http.StatusOK, http.StatusPartialContent); err != nil {
		return err
	}
	if resp.StatusCode == http.StatusPartialContent {
		var first, last, total int64
		if _, err := fmt.Sscanf(resp.Header.Get("Content-Range"), "bytes %d-%d/%d", &first, &last, &total); err != nil || first != b.at || total != b.size {
			return fault.New(fault.Corrupt, "it answers %q when asked for the bytes of %s from %d to %d", resp.Header.Get("Content-Range"), b.digest, b.at, b.size-1)
		}
		return nil
	}
	if resp.ContentLength >= 0 && resp.ContentLength != b.size {
		return fault.New(fault.Corrupt, "blob %s should have %d bytes and has %d", b.digest, b.size, resp.ContentLength)
	}
	_, err := io.CopyN(io.Discard, body, b.at)
	return err
}

func (b *blob) Close() error {
	if b.body != nil {
		b.body.Close()
		b.body = nil
	}
	b.cancel()
	return nil
}

// attempt makes a small request until it succeeds or further attempts are of no use.
func (p *Repo) attempt(ctx context.Context, do func(context.Context) error) error {
	for fails := 1; ; fails++ {
		one, cancel := context.WithTimeout(ctx, 2*p.client.stall())
		err := do(one)
		cancel()
		if err == nil || ctx.Err() != nil || fails >= maxAttempts || !temporary(err) {
			return err
		}
		if err := p.client.wait(ctx, fails); err != nil {
			return err
		}
	}
}

// temporary reports whether another attempt may succeed.
func temporary(err error) bool {
	if answer, ok := errors.AsType[*transport.Error](err); ok {
		return answer.StatusCode >= 500 || answer.StatusCode == http.StatusTooManyRequests || answer.StatusCode == http.StatusRequestTimeout
	}
	var classed *fault.Error
	return !errors.As(err, &classed) || classed.Class == fault.Unavailable || classed.Class == fault.Timeout
}

// wait waits before attempt n+1, twice as long each time, with jitter so that
// many clients do not come back at once.
func (c Client) wait(ctx context.Context, n int) error {
	d := c.Pause
	if d <= 0 {
		d = 200 * time.Millisecond
	}
	d <<= n - 1
	t := time.NewTimer(d/2 + rand.N(d))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stalling is a body that fails when nothing comes for too long.
type stalling struct {
	body   io.ReadCloser
	cancel context.CancelFunc
	timer  *time.Timer
	after  time.Duration
	fired  atomic.Bool
}

func newStalling(body io.ReadCloser, cancel context.CancelFunc, after time.Duration) *stalling {
	s := &stalling{body: body, cancel: cancel, after: after}
	s.timer = time.AfterFunc(after, func() { s.fired.Store(true); cancel() })
	return s
}

func (s *stalling) Read(p []byte) (int, error) {
	s.timer.Reset(s.after) // what the reader does in between does not count
	n, err := s.body.Read(p)
	s.timer.Stop()
	if err != nil && err != io.EOF && s.fired.Load() {
		err = fault.New(fault.Unavailable, "it was silent for %s", s.after)
	}
	return n, err
}

func (s *stalling) Close() error {
	s.timer.Stop()
	s.cancel()
	return s.body.Close()
}

package s3

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// Origin is a store.Origin in a bucket. It has no background work; Close drops
// its idle connections.
type Origin struct {
	config    Config
	client    *minio.Core
	creds     *credentials.Credentials
	transport *http.Transport
	renewed   atomic.Int64 // when credentials were last thrown away, Unix nanoseconds
	swaps     swaps
}

var _ store.Origin = (*Origin)(nil)

// New makes an origin, without a request.
func New(c Config) (*Origin, error) {
	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		MaxIdleConnsPerHost:   128, // as many as package remote may have in use
		IdleConnTimeout:       time.Minute,
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true, // content is compressed already
	}
	if c.CA != "" {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fault.New(fault.Invalid, "read certificates: %w", err).WithHint("ca=FILE in the URL of the store names the file.")
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fault.New(fault.Invalid, "%s has no certificates in PEM form", c.CA)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool}
	}
	o := &Origin{config: c, transport: transport}
	if c.Anonymous {
		o.creds = credentials.NewStatic("", "", "", credentials.SignatureAnonymous)
	} else {
		o.creds = credentials.New(usualPlaces(c.Profile))
	}
	lookup := minio.BucketLookupPath
	if c.HostStyle {
		lookup = minio.BucketLookupDNS
	}
	host, secure := c.host()
	client, err := minio.NewCore(host, &minio.Options{
		Creds: o.creds, Secure: secure, Region: c.Region, Transport: transport, BucketLookup: lookup,
		MaxRetries: 1, // that is package remote's, which knows what may be done twice
	})
	if err != nil {
		return nil, fault.New(fault.Invalid, "store %s: %w", c.URL(), err).WithHint(urlHint)
	}
	client.SetAppInfo("brisk", "1")
	o.client = client
	return o, nil
}

// Close drops idle connections. Operations in progress go on.
func (o *Origin) Close() error {
	o.transport.CloseIdleConnections()
	return nil
}

// URL names the bucket; it has no secrets.
func (o *Origin) URL() string { return o.config.URL() }

// object gives the bucket's name of a key.
func (o *Origin) object(key string) (string, error) {
	if err := store.CheckKey(key); err != nil {
		return "", err
	}
	if o.config.Prefix == "" {
		return key, nil
	}
	return o.config.Prefix + "/" + key, nil
}

// name is the object's name for people.
func (o *Origin) name(key string) string {
	if o.config.Prefix != "" {
		key = o.config.Prefix + "/" + key
	}
	return "s3://" + o.config.Bucket + "/" + key
}

// get asks for an object, or a part of it (length < 0: to the end), and checks that
// the answer begins where it was asked to. size is what will come, -1 if the server does
// not say; total is the object's whole size, if it says so, else -1.
func (o *Origin) get(ctx context.Context, key string, off, length int64) (body io.ReadCloser, size, total int64, version store.Version, err error) {
	object, err := o.object(key)
	if err != nil {
		return nil, 0, 0, "", err
	}
	if err := ctx.Err(); err != nil {
		return nil, 0, 0, "", fault.Wrap(err, "read", o.name(key))
	}
	fail := func(err error) (io.ReadCloser, int64, int64, store.Version, error) {
		return nil, 0, 0, "", o.wrap(err, "read", key)
	}
	var options minio.GetObjectOptions
	whole := off == 0 && length < 0
	switch {
	case whole:
	case length < 0:
		err = options.SetRange(off, 0) // to the end
	default:
		err = options.SetRange(off, off+length-1)
	}
	if err != nil {
		return fail(err)
	}
	body, info, header, err := o.client.GetObject(ctx, o.config.Bucket, object, options)
	if err != nil {
		return fail(err)
	}
	size, total = info.Size, -1
	if whole {
		total = size
	} else if r := header.Get("Content-Range"); r != "" {
		var from, to int64
		if _, err := fmt.Sscanf(r, "bytes %d-%d/%d", &from, &to, &total); err != nil || from != off || to < from || total <= to {
			body.Close()
			return fail(fault.New(fault.Unavailable, "asked for bytes from %d on, the server answers with %q", off, r))
		}
		size = to - from + 1
	} else if off != 0 || size != length {
		body.Close()
		return fail(o.rangeIgnored(ctx, object, off, length, size))
	}
	return body, size, total, store.Version(info.ETag), nil
}

// rangeIgnored finds out why an answer is not the part that was asked for: the object
// may be too short, which some servers say by an empty answer.
func (o *Origin) rangeIgnored(ctx context.Context, object string, off, length, got int64) error {
	info, err := o.client.StatObject(ctx, o.config.Bucket, object, minio.StatObjectOptions{})
	if err != nil {
		return err
	}
	if info.Size < off+max(length, 1) {
		return short(info.Size)
	}
	return fault.New(fault.Unavailable, "asked for a part of it, the server answers with all of it or nothing (%d bytes)", got).
		WithHint("Something between this machine and the S3 server drops the Range header.")
}

func short(size int64) error {
	return &fault.Error{Class: fault.Corrupt, Err: fmt.Errorf("it has %d bytes: %w", size, io.ErrUnexpectedEOF)}
}

// ReadAt implements store.Origin.
func (o *Origin) ReadAt(ctx context.Context, key string, p []byte, off int64) error {
	if len(p) == 0 {
		_, err := o.Size(ctx, key)
		return err
	}
	body, size, total, _, err := o.get(ctx, key, off, int64(len(p)))
	if err != nil {
		return err
	}
	defer body.Close()
	if total >= 0 && total < off+int64(len(p)) {
		return o.wrap(short(total), "read", key)
	}
	if size != int64(len(p)) {
		return o.wrap(fault.New(fault.Unavailable, "asked for %d bytes, the server answers with %d", len(p), size), "read", key)
	}
	_, err = io.ReadFull(body, p)
	return o.wrap(err, "read", key)
}

// Open implements store.Origin.
func (o *Origin) Open(ctx context.Context, key string, off int64) (io.ReadCloser, error) {
	if off < 0 {
		return nil, o.wrap(&fault.Error{Class: fault.Corrupt, Err: io.ErrUnexpectedEOF}, "read", key)
	}
	body, size, total, _, err := o.get(ctx, key, off, -1)
	if err != nil {
		return nil, err
	}
	if size < 0 || total >= 0 && off+size != total {
		body.Close()
		return nil, o.wrap(fault.New(fault.Unavailable, "asked for all from byte %d, the server answers with %d bytes of %d", off, size, total), "read", key)
	}
	return &stream{ctx: ctx, o: o, key: key, body: body, left: size}, nil
}

// stream is a body that ends only when all has come.
type stream struct {
	ctx  context.Context
	o    *Origin
	key  string
	body io.ReadCloser
	left int64
}

func (s *stream) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, s.o.wrap(err, "read", s.key)
	}
	n, err := s.body.Read(p)
	s.left -= int64(n)
	switch {
	case err == io.EOF && s.left == 0:
		return n, io.EOF
	case err == io.EOF, s.left < 0:
		err = io.ErrUnexpectedEOF
	}
	return n, s.o.wrap(err, "read", s.key)
}

func (s *stream) Close() error { return s.body.Close() }

// Get implements store.Origin.
func (o *Origin) Get(ctx context.Context, key string, max int64) ([]byte, store.Version, error) {
	body, size, _, version, err := o.get(ctx, key, 0, -1)
	if err != nil {
		return nil, "", err
	}
	defer body.Close()
	if size > max {
		return nil, "", o.wrap(fault.New(fault.Corrupt, "it has %d bytes, more than the %d that may be here", size, max), "read", key)
	}
	b, err := io.ReadAll(io.LimitReader(body, max+1))
	switch {
	case err != nil:
		return nil, "", o.wrap(err, "read", key)
	case int64(len(b)) > max:
		err = fault.New(fault.Corrupt, "it has more than the %d bytes that may be here", max)
	case size >= 0 && int64(len(b)) != size:
		err = io.ErrUnexpectedEOF
	case version == "":
		err = fault.New(fault.Unavailable, "the server gives no ETag")
	case len(b) == 0: // rarely meant
		if now, e := o.Size(ctx, key); e != nil || now != 0 {
			err = errors.Join(fault.New(fault.Unavailable, "the server answers with nothing; the object has %d bytes", now), e)
		}
	}
	if err != nil {
		return nil, "", o.wrap(err, "read", key)
	}
	return b, version, nil
}

// Size implements store.Origin.
func (o *Origin) Size(ctx context.Context, key string) (int64, error) {
	object, err := o.object(key)
	if err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, fault.Wrap(err, "size", o.name(key))
	}
	info, err := o.client.StatObject(ctx, o.config.Bucket, object, minio.StatObjectOptions{})
	if err != nil {
		return 0, o.wrap(err, "size", key)
	}
	return info.Size, nil
}

// List implements store.Origin. What has no key that CheckKey allows is not Brisk's, and
// left out.
func (o *Origin) List(ctx context.Context, prefix string, fn func(store.Object) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := ctx.Err(); err != nil {
		return fault.Wrap(err, "list", o.name(prefix))
	}
	base := ""
	if o.config.Prefix != "" {
		base = o.config.Prefix + "/"
	}
	for info := range o.client.ListObjectsIter(ctx, o.config.Bucket, minio.ListObjectsOptions{Prefix: base + prefix, Recursive: true}) {
		if info.Err != nil {
			return o.wrap(info.Err, "list", prefix)
		}
		key, ok := strings.CutPrefix(info.Key, base+prefix)
		if !ok {
			return o.wrap(fault.New(fault.Unavailable, "asked for what begins with %q, the server answers with %q", base+prefix, info.Key), "list", prefix)
		}
		if key = prefix + key; store.CheckKey(key) != nil {
			continue
		}
		if err := fn(store.Object{Key: key, Size: info.Size, Modified: info.LastModified}); err != nil {
			return err
		}
	}
	return o.wrap(ctx.Err(), "list", prefix)
}

// Delete implements store.Origin.
func (o *Origin) Delete(ctx context.Context, key string) error {
	object, err := o.object(key)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fault.Wrap(err, "delete", o.name(key))
	}
	err = o.wrap(o.client.RemoveObject(ctx, o.config.Bucket, object, minio.RemoveObjectOptions{}), "delete", key)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

package s3

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/minio/minio-go/v7"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// swaps is what Swap knows.
type swaps struct {
	mu    sync.Mutex // held while the server is tried, and by swaps without its help
	tried bool       // it has conditional writes
}

// Swap implements store.Origin.
func (o *Origin) Swap(ctx context.Context, key string, old store.Version, data []byte) (store.Version, error) {
	object, err := o.object(key)
	if err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", fault.Wrap(err, "swap", o.name(key))
	}
	if !o.config.Conditional {
		return o.swapAlone(ctx, key, object, old, data)
	}
	if err := o.tryConditions(ctx); err != nil {
		return "", err
	}
	var conditions minio.PutObjectOptions
	if old == "" {
		conditions.SetMatchETagExcept("*")
	} else {
		conditions.SetMatchETag(string(old))
	}
	v, err := o.putBytes(ctx, object, data, conditions)
	err = o.wrap(err, "swap", key)
	if fault.Is(err, fault.NotFound) { // If-Match, and nothing is there
		err = &fault.Error{Class: fault.Exists, Op: "swap", Object: o.name(key), Err: fault.New(fault.Exists, "there is no object any more")}
	}
	return v, err
}

func (o *Origin) putBytes(ctx context.Context, object string, data []byte, options minio.PutObjectOptions) (store.Version, error) {
	return o.putWhole(ctx, object, io.NewSectionReader(bytes.NewReader(data), 0, int64(len(data))), options)
}

// probeKey is no key of a store, so that no listing shows it.
const probeKey = ".brisk/conditional-writes"

// tryConditions finds out, once, whether the server honours conditions of writes.
func (o *Origin) tryConditions(ctx context.Context) error {
	o.swaps.mu.Lock()
	defer o.swaps.mu.Unlock()
	if o.swaps.tried {
		return nil
	}
	object := probeKey
	if o.config.Prefix != "" {
		object = o.config.Prefix + "/" + object
	}
	data := []byte("Brisk tries here whether the server honours If-Match and If-None-Match.\n")
	var absent, other minio.PutObjectOptions
	absent.SetMatchETagExcept("*")
	other.SetMatchETag("00000000000000000000000000000000")
	if _, err := o.putBytes(ctx, object, data, absent); err != nil && !fault.Is(o.wrap(err, "", ""), fault.Exists) {
		return o.unconditional(err)
	}
	for _, c := range []struct {
		name string
		minio.PutObjectOptions
	}{{"If-None-Match", absent}, {"If-Match", other}} {
		_, err := o.putBytes(ctx, object, data, c.PutObjectOptions)
		switch {
		case err == nil:
			return o.noConditions("the S3 server at %s ignores %s", o.config.server(), c.name)
		case !fault.Is(o.wrap(err, "", ""), fault.Exists):
			return o.unconditional(err)
		}
	}
	o.swaps.tried = true
	return nil
}

// unconditional is an error of trying; a server may also say that it cannot.
func (o *Origin) unconditional(err error) error {
	if r, ok := response(err); ok && (r.Code == "NotImplemented" || r.StatusCode == http.StatusNotImplemented) {
		return o.noConditions("the S3 server at %s has no conditional writes", o.config.server())
	}
	return o.wrap(err, "try conditional writes at", probeKey)
}

var errNoConditions = errors.New("two machines could overwrite each other's changes")

func (o *Origin) noConditions(format string, args ...any) error {
	return fault.New(fault.Machine, format+": %w", append(args, errNoConditions)...).
		WithHint("Use a server that has them (Amazon's, MinIO, Ceph from 18, versitygw); or, if only this server of Brisk writes to the bucket, add conditional=off to the URL of the store.")
}

// swapAlone compares by itself: nobody else writes to the bucket.
func (o *Origin) swapAlone(ctx context.Context, key, object string, old store.Version, data []byte) (store.Version, error) {
	o.swaps.mu.Lock()
	defer o.swaps.mu.Unlock()
	info, err := o.client.StatObject(ctx, o.config.Bucket, object, minio.StatObjectOptions{})
	now := store.Version(info.ETag)
	if err := o.wrap(err, "swap", key); err != nil && !fault.Is(err, fault.NotFound) {
		return "", err
	}
	if err != nil {
		now = ""
	}
	if now != old {
		return "", o.wrap(fault.New(fault.Exists, "another was quicker: the object has version %q, not %q", now, old), "swap", key)
	}
	v, err := o.putBytes(ctx, object, data, minio.PutObjectOptions{})
	return v, o.wrap(err, "swap", key)
}

package s3

import (
	"bytes"
	"context"
	"crypto/md5" //nolint:gosec // against accidents, and what all S3 servers know
	"encoding/base64"
	"io"
	"slices"
	"time"

	"github.com/minio/minio-go/v7"
	"golang.org/x/sync/errgroup"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

const (
	// partSize is the largest single upload and the size of the parts of a larger one. Amazon
	// wants 5 MiB or more; a pack, of some 24 MiB, is two.
	partSize = 16 << 20
	// parallelParts bounds the parts of one object that go up at once.
	parallelParts = 3
	// knownBeforehand is the size from which it is cheaper to ask whether an object exists
	// than to be told after it was sent.
	knownBeforehand = 256 << 10
	// abortTime bounds the tidying up after an upload that failed, whose own context may have ended.
	abortTime = 5 * time.Second
)

// Put implements store.Origin. One of two that put a large object at once may replace the
// other's, which is the same content. What can be sought in
// (a file, bytes) is sent from where it is; else up to 16 MiB are held in memory.
func (o *Origin) Put(ctx context.Context, key string, r io.Reader) error {
	object, err := o.object(key)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fault.Wrap(err, "put", o.name(key))
	}
	at, size, err := section(r)
	if err == nil && (at == nil || size >= knownBeforehand || !o.config.Conditional) {
		if _, err := o.Size(ctx, key); err == nil || !fault.Is(err, fault.NotFound) {
			return err
		}
	}
	if err == nil && at == nil {
		// The first part decides.
		var head []byte
		if head, err = io.ReadAll(io.LimitReader(r, partSize+1)); err == nil && len(head) <= partSize {
			at, size = bytes.NewReader(head), int64(len(head))
		} else if err == nil {
			r = io.MultiReader(bytes.NewReader(head), r)
		}
	}
	if err != nil {
		return fault.Wrap(err, "put", o.name(key))
	}
	switch {
	case at == nil:
		err = o.putStream(ctx, object, r)
	case size > partSize:
		err = o.putParts(ctx, object, at, size)
	default:
		var conditions minio.PutObjectOptions
		if o.config.Conditional {
			conditions.SetMatchETagExcept("*")
		}
		_, err = o.putWhole(ctx, object, io.NewSectionReader(at, 0, size), conditions)
	}
	if err = o.wrap(err, "put", key); !fault.Is(err, fault.Exists) {
		return err
	}
	// It is there, as it should be; or somebody else is putting it, and may fail.
	if _, missing := o.Size(ctx, key); fault.Is(missing, fault.NotFound) {
		return o.wrap(fault.New(fault.Unavailable, "another upload of it is in progress"), "put", key)
	}
	return nil
}

// section gives what is left of a reader that can be read anywhere; nil if it cannot.
func section(r io.Reader) (io.ReaderAt, int64, error) {
	f, ok := r.(interface {
		io.ReaderAt
		io.Seeker
	})
	if !ok {
		return nil, 0, nil
	}
	from, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil, 0, nil //nolint:nilerr // a pipe; it is read from its beginning to its end
	}
	to, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, 0, err
	}
	return io.NewSectionReader(f, from, to-from), to - from, nil
}

// putWhole sends at most partSize bytes in one request.
func (o *Origin) putWhole(ctx context.Context, object string, r *io.SectionReader, options minio.PutObjectOptions) (store.Version, error) {
	sum, err := sumOf(r)
	if err != nil {
		return "", err
	}
	info, err := o.client.PutObject(ctx, o.config.Bucket, object, r, r.Size(), sum, "", options)
	return store.Version(info.ETag), err
}

// sumOf gives the MD5 of what r has, in the form of Content-MD5, and rewinds it.
func sumOf(r io.ReadSeeker) (string, error) {
	h := md5.New() //nolint:gosec // see the import
	if _, err := io.Copy(h, r); err != nil {
		return "", fault.Wrap(err, "read", "what to put")
	}
	_, err := r.Seek(0, io.SeekStart)
	return base64.StdEncoding.EncodeToString(h.Sum(nil)), err
}

// upload is a multipart upload in progress.
type upload struct {
	o      *Origin
	object string
	id     string
}

// begin starts an upload; end completes it with its parts, or aborts it.
func (o *Origin) begin(ctx context.Context, object string) (*upload, error) {
	id, err := o.client.NewMultipartUpload(ctx, o.config.Bucket, object, minio.PutObjectOptions{})
	return &upload{o, object, id}, err
}

func (u *upload) part(ctx context.Context, n int, r io.ReadSeeker, size int64) (minio.CompletePart, error) {
	sum, err := sumOf(r)
	if err != nil {
		return minio.CompletePart{}, err
	}
	p, err := u.o.client.PutObjectPart(ctx, u.o.config.Bucket, u.object, u.id, n, r, size, minio.PutObjectPartOptions{Md5Base64: sum})
	return minio.CompletePart{PartNumber: n, ETag: p.ETag}, err
}

func (u *upload) end(ctx context.Context, parts []minio.CompletePart, err error) error {
	if err == nil {
		_, err = u.o.client.CompleteMultipartUpload(ctx, u.o.config.Bucket, u.object, u.id, parts, minio.PutObjectOptions{})
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTime)
		defer cancel()
		_ = u.o.client.AbortMultipartUpload(ctx, u.o.config.Bucket, u.object, u.id) // else Sweep does it
	}
	return err
}

// putParts sends parts of a file side by side.
func (o *Origin) putParts(ctx context.Context, object string, r io.ReaderAt, size int64) error {
	u, err := o.begin(ctx, object)
	if err != nil {
		return err
	}
	parts := make([]minio.CompletePart, (size+partSize-1)/partSize)
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(parallelParts)
	for i := range parts {
		from := int64(i) * partSize
		n := min(partSize, size-from)
		group.Go(func() (err error) {
			parts[i], err = u.part(groupCtx, i+1, io.NewSectionReader(r, from, n), n)
			return err
		})
	}
	return u.end(ctx, parts, group.Wait())
}

// putStream sends the parts of a stream one after another.
func (o *Origin) putStream(ctx context.Context, object string, r io.Reader) error {
	u, err := o.begin(ctx, object)
	if err != nil {
		return err
	}
	var parts []minio.CompletePart
	buf := make([]byte, partSize)
	for err == nil {
		var n int
		n, err = io.ReadFull(r, buf)
		last := err == io.EOF || err == io.ErrUnexpectedEOF
		if err != nil && !last {
			err = fault.Wrap(err, "read", "what to put")
		}
		if err != nil && !last || n == 0 {
			break
		}
		var p minio.CompletePart
		if p, err = u.part(ctx, len(parts)+1, bytes.NewReader(buf[:n]), int64(n)); err != nil || last {
			parts = append(parts, p)
			break
		}
		parts = append(parts, p)
	}
	if err == io.EOF {
		err = nil
	}
	return u.end(ctx, slices.Clip(parts), err)
}

// Sweep aborts uploads that began longer than age ago, those of processes that
// died, and gives how many. The server's clock says when they began, so age is to be
// a multiple of how much clocks may differ.
func (o *Origin) Sweep(ctx context.Context, age time.Duration) (aborted int, err error) {
	prefix := ""
	if o.config.Prefix != "" {
		prefix = o.config.Prefix + "/"
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for info := range o.client.ListIncompleteUploads(ctx, o.config.Bucket, prefix, true) {
		if info.Err != nil {
			return aborted, o.wrap(info.Err, "list uploads below", "")
		}
		if time.Since(info.Initiated) < age {
			continue
		}
		err := o.client.AbortMultipartUpload(ctx, o.config.Bucket, info.Key, info.UploadID)
		if err := o.wrap(err, "abort upload of", info.Key); err != nil && !fault.Is(err, fault.NotFound) {
			return aborted, err
		}
		aborted++
	}
	return aborted, nil
}

package remote

import (
	"context"
	"errors"
	"io"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// watch gives a context that ends when nothing has touched it for so long.
func watch(ctx context.Context, idle time.Duration) (_ context.Context, touch, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(idle, func() { cancel(errAttempt) })
	return ctx, func() { timer.Reset(idle) }, func() { timer.Stop(); cancel(nil) }
}

// putIdle is how many times Options.Attempt an upload may stand still: servers
// take their time to assemble what came in parts.
const putIdle = 3

// Put implements store.Origin. It is tried again only if r can be rewound.
func (o *Origin) Put(ctx context.Context, key string, r io.Reader) error {
	seeker, rewindable := r.(io.Seeker)
	var start int64
	if rewindable {
		var err error
		if start, err = seeker.Seek(0, io.SeekCurrent); err != nil {
			rewindable = false
		}
	}
	put := func(ctx context.Context) error {
		ctx, touch, stop := watch(ctx, putIdle*o.opts.Attempt)
		defer stop()
		return late(ctx, o.origin.Put(ctx, key, touching(r, touch)))
	}
	if !rewindable {
		return o.attempt(ctx, put)
	}
	return o.persist(ctx, key, again, func(ctx context.Context) error {
		if _, err := seeker.Seek(start, io.SeekStart); err != nil {
			return fault.Wrap(err, "put", key)
		}
		return put(ctx)
	})
}

// touching is a reader that can do what r can, and says when it is read.
func touching(r io.Reader, touch func()) io.Reader {
	t := touchReader{r, touch}
	if f, ok := r.(file); ok {
		return touchFile{t, f, f}
	}
	return t
}

type file interface {
	io.ReaderAt
	io.Seeker
}

type touchReader struct {
	io.Reader
	touch func()
}

func (t touchReader) Read(p []byte) (int, error) {
	t.touch()
	return t.Reader.Read(p)
}

type touchFile struct {
	touchReader
	at io.ReaderAt
	io.Seeker
}

func (t touchFile) ReadAt(p []byte, off int64) (int, error) {
	t.touch()
	return t.at.ReadAt(p, off)
}

// List implements store.Origin. What has been given to fn is not given again, also
// if the listing has to begin anew.
func (o *Origin) List(ctx context.Context, prefix string, fn func(store.Object) error) error {
	given := map[string]struct{}{}
	var mine error
	err := o.persist(ctx, prefix, again, func(ctx context.Context) error {
		ctx, touch, stop := watch(ctx, o.opts.Attempt)
		defer stop()
		return late(ctx, o.origin.List(ctx, prefix, func(object store.Object) error {
			touch()
			if _, ok := given[object.Key]; ok {
				return nil
			}
			given[object.Key] = struct{}{}
			defer touch()
			if mine = fn(object); mine != nil {
				return errCallback
			}
			return nil
		}))
	})
	if mine != nil {
		return mine
	}
	return err
}

var errCallback = errors.New("the caller has enough")

// Open implements store.Origin. A stream that breaks off is opened again where it
// was; it fails after as many attempts as everything else without a byte in between.
func (o *Origin) Open(ctx context.Context, key string, off int64) (io.ReadCloser, error) {
	s := &stream{o: o, ctx: ctx, key: key, off: off}
	if err := s.reopen(); err != nil {
		return nil, err
	}
	return s, nil
}

type stream struct {
	o    *Origin
	ctx  context.Context
	key  string
	off  int64 // of the next byte
	err  error // the end
	body io.ReadCloser

	attempt     context.Context // of body
	touch, stop func()
	failures    int // since the last byte
}

// reopen opens the stream at off.
func (s *stream) reopen() error {
	return s.o.persist(s.ctx, s.key, again, func(ctx context.Context) error {
		ctx, touch, stop := watch(ctx, s.o.opts.Attempt)
		body, err := s.o.origin.Open(ctx, s.key, s.off)
		if err != nil {
			err = late(ctx, err)
			stop()
			return err
		}
		s.attempt, s.touch, s.stop, s.body = ctx, touch, stop, body
		return nil
	})
}

func (s *stream) Read(p []byte) (int, error) {
	for s.err == nil {
		s.touch()
		n, err := s.body.Read(p)
		s.off += int64(n)
		s.o.counts.bytes.Add(int64(n))
		if n > 0 {
			s.failures = 0
		}
		switch {
		case err == io.EOF:
			s.err = err
		case err != nil:
			s.resume(late(s.attempt, err))
		}
		if n > 0 {
			return n, nil
		}
		if s.err == nil && err == nil && len(p) == 0 {
			return 0, nil
		}
	}
	return 0, s.err
}

// resume opens the stream again, or ends it with an error.
func (s *stream) resume(err error) {
	s.close()
	s.o.breaker.report(err, false)
	s.o.counts.note(err)
	if s.failures++; !s.o.repeatable(err, again) || s.failures >= s.o.opts.Attempts || s.ctx.Err() != nil {
		s.err = err
		return
	}
	s.o.counts.retries.Add(1)
	s.err = s.reopen()
}

func (s *stream) close() {
	if s.body != nil {
		s.stop()
		_ = s.body.Close() // it is read no further
		s.body = nil
	}
}

// Close ends the stream.
func (s *stream) Close() error {
	s.close()
	if s.err == nil {
		s.err = fault.New(fault.Invalid, "%s: read after closing", s.key)
	}
	return nil
}

package lazyfs

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// spare is how many receivers are kept waiting in the kernel for requests. A file
// that is read in sequence comes as a burst of them.
const spare = 8

// server answers the kernel's requests. Whoever receives one answers it as well,
// since handing it to another costs as much as most answers, and the last to leave
// the kernel with a request sends another to wait there: so no request waits for
// another but for memory.
type server struct {
	dev      *device
	files    *files
	lookup   func(context.Context, string) (Image, error)
	deadline time.Duration
	budget   *semaphore.Weighted // bytes of READs being served, all images together
	log      *complaints
	released func(*file) // the kernel is done with a file that nothing else uses

	ctx     context.Context // ends all reads
	running sync.WaitGroup
	waiting atomic.Int32 // receivers without a request
}

// start serves until the mount is gone; wait waits for that.
func (s *server) start() { s.running.Go(s.receive) }

// wait returns when the mount is gone and every request has been answered.
func (s *server) wait() { s.running.Wait() }

// receive receives requests, and answers them, until enough others wait for more.
func (s *server) receive() {
	buf := requests.Get().(*[requestBytes]byte)
	defer requests.Put(buf)
	for {
		s.waiting.Add(1)
		n, err := s.dev.receive(buf[:])
		last := s.waiting.Add(-1) == 0
		if err == unix.ENODEV {
			return
		}
		if err != nil {
			s.log.say(slog.LevelError, "", "receive", "lazyfs cannot receive requests", "error", err)
			return
		}
		if last {
			s.running.Go(s.receive)
		}
		if r, ok := parseRequest(buf[:n]); ok {
			s.answer(r)
		} else {
			s.log.say(slog.LevelError, "", "parse", "lazyfs got a broken request", "bytes", n)
		}
		if s.waiting.Load() >= spare {
			return
		}
	}
}

var requests = sync.Pool{New: func() any { return new([requestBytes]byte) }}

// answer runs one request and replies, whatever happens.
func (s *server) answer(r request) {
	switch r.op {
	case opForget, opBatchForget, opInterrupt, opDestroy:
		// No answer is wanted. Nodes are made of names, so there is nothing to forget. An
		// interrupt only says that some signal arrived; an error in place of
		// the data would hit everybody who waits for the same page.
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.deadline)
	defer cancel()
	replied := false
	defer func() {
		if p := recover(); p != nil {
			s.log.say(slog.LevelError, "", "panic", "lazyfs: a request panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			if !replied {
				_ = s.dev.fail(r.unique, unix.EIO) // fails only when the device is gone, and the asker with it
			}
		}
	}()
	var err error
	if r.op == opRead {
		err = s.read(ctx, r, &replied)
	} else {
		body, errno := s.small(ctx, r)
		replied = true
		if errno != 0 {
			err = s.dev.fail(r.unique, errno)
		} else {
			err = s.dev.reply(r.unique, body)
		}
	}
	if err != nil {
		s.log.say(slog.LevelError, "", "reply", "lazyfs cannot answer the kernel", "operation", r.op, "error", err)
	}
}

// small answers everything but READ.
func (s *server) small(ctx context.Context, r request) ([]byte, syscall.Errno) {
	switch r.op {
	case opLookup:
		f := s.files.named(r.name())
		if r.node != rootNode || f == nil {
			return nil, unix.ENOENT
		}
		size, errno := s.size(ctx, f)
		return appendEntry(nil, f.node, size), errno
	case opGetattr:
		if r.node == rootNode {
			return appendAttrOut(nil, rootNode, -1), 0
		}
		f := s.files.get(r.node)
		if f == nil {
			return nil, unix.ESTALE
		}
		size, errno := s.size(ctx, f)
		return appendAttrOut(nil, f.node, size), errno
	case opOpen:
		if s.files.open(r.node) == nil {
			return nil, unix.ESTALE
		}
		return appendOpen(nil, keepCache), 0
	case opRelease:
		if f := s.files.get(r.node); f != nil && s.files.drop(f) {
			s.released(f)
		}
		return nil, 0
	case opOpendir:
		return appendOpen(nil, 0), 0
	case opReaddir:
		return s.readdir(r)
	case opStatfs:
		return appendStatfs(nil), 0
	case opFlush, opReleasedir, opAccess:
		return nil, 0
	}
	return nil, unix.ENOSYS
}

func (s *server) readdir(r request) ([]byte, syscall.Errno) {
	off, size, ok := r.readArgs()
	if !ok {
		return nil, unix.EINVAL
	}
	var b []byte
	for i, f := range s.files.list() {
		if int64(i) < off {
			continue
		}
		longer := appendDirent(b, f.node, f.id, i+1)
		if len(longer) > size {
			break
		}
		b = longer
	}
	return b, 0
}

func (s *server) size(ctx context.Context, f *file) (int64, syscall.Errno) {
	img, err := f.image(ctx, s.lookup)
	if err != nil {
		s.failed(f, err)
		return 0, unix.EIO
	}
	return img.size(), 0
}

// read answers a READ: all of the bytes, or EIO.
func (s *server) read(ctx context.Context, r request, replied *bool) error {
	off, size, ok := r.readArgs()
	f := s.files.get(r.node)
	if !ok || f == nil {
		*replied = true
		return s.dev.fail(r.unique, unix.EIO)
	}
	f.requests.Add(1)
	f.inFlight.Add(1)
	defer f.inFlight.Add(-1)
	release, err := s.reserve(ctx, f, int64(size))
	if err != nil {
		*replied = true
		s.failed(f, err)
		return s.dev.fail(r.unique, unix.EIO)
	}
	defer release()
	buf := buffers.get(size)
	defer buffers.put(buf)
	n, err := s.fill(ctx, f, buf.data(size), off)
	*replied = true
	if err != nil {
		s.failed(f, err)
		return s.dev.fail(r.unique, unix.EIO)
	}
	f.bytes.Add(int64(n))
	return s.dev.replyData(r.unique, buf, n)
}

// reserve waits until a read of n bytes fits into the memory that its image, and
// then that all images, may use for answers.
func (s *server) reserve(ctx context.Context, f *file, n int64) (release func(), err error) {
	if err := f.budget.Acquire(ctx, n); err != nil {
		return nil, err
	}
	if err := s.budget.Acquire(ctx, n); err != nil {
		f.budget.Release(n)
		return nil, err
	}
	return func() { s.budget.Release(n); f.budget.Release(n) }, nil
}

// fill reads what of p lies within the file, and gives its length.
func (s *server) fill(ctx context.Context, f *file, p []byte, off int64) (int, error) {
	img, err := f.image(ctx, s.lookup)
	if err != nil {
		return 0, err
	}
	p = p[:max(0, min(int64(len(p)), img.size()-off))]
	inside := p[:max(0, min(int64(len(p)), img.Blocks.Size()-off))]
	if len(inside) > 0 {
		if err := img.Blocks.ReadAt(ctx, inside, off); err != nil {
			return 0, err
		}
	}
	clear(p[len(inside):])
	return len(p), nil
}

func (s *server) failed(f *file, err error) {
	if s.ctx.Err() != nil {
		return // closing: those who still read know
	}
	f.errors.Add(1)
	s.log.say(slog.LevelError, f.id, string(fault.ClassOf(err)), "image cannot be read: its readers get EIO",
		"image", f.id, "class", string(fault.ClassOf(err)), "error", err)
}

package importer

import (
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/store"
)

// directory imports a directory as a root filesystem.
func (im *Importer) directory(ctx context.Context, r Request, progress Progress) (Report, error) {
	root, err := os.Open(r.Path)
	if err != nil {
		return Report{}, pathFault(err)
	}
	defer root.Close()
	var skipped []string
	report, err := im.build(ctx, r, Directory, image.Config{}, func(t *image.Tree, batch *store.Batch) error {
		walked, w, err := walkTree(ctx, root)
		if err != nil {
			return err
		}
		t.Root, skipped = walked.Root, w.mounts
		return w.read(ctx, batch, progress)
	})
	report.Skipped = skipped
	return report, err
}

// Reading ahead in a tree: so many files are opened before their turn, and the
// kernel told to fetch so much of each. On a disk that has to seek, small files
// would otherwise cost a seek each, one after the other.
const (
	openAhead    = 64
	prefetchSize = 1 << 20 // bytes
)

// opening is a file on its way to be read.
type opening struct {
	*source
	ready chan struct{} // closed when the rest is valid
	file  *os.File
	err   error
}

// read puts the content of all files into a batch, in the order of their paths:
// what lies together in the tree lies together in the packs, and equal trees make
// equal packs.
func (w *walk) read(ctx context.Context, batch *store.Batch, progress Progress) error {
	var total int64
	for _, s := range w.files {
		total += s.node.Size
	}
	meter := newMeter(ctx, total, progress)
	ordered, wait := w.openAll(ctx)
	adder := image.NewAdder(batch)
	var err error
	for o := range ordered {
		<-o.ready
		if err == nil {
			if err = o.err; err == nil {
				err = o.add(ctx, adder, meter)
			}
			if err != nil {
				wait.cancel()
			}
		}
		if o.file != nil {
			o.file.Close()
		}
	}
	wait.cancel()
	wait.Wait()
	if err == nil {
		err = ctx.Err() // then not all files came
	}
	return err
}

// opener is the goroutines that open files.
type opener struct {
	sync.WaitGroup
	cancel context.CancelFunc
}

// openAll opens the files, several at a time, and hands them on in their order.
// The channel ends after the last, or early with ctx or cancel. Each that comes
// out is to be waited for and closed.
func (w *walk) openAll(ctx context.Context) (<-chan *opening, *opener) {
	ordered, todo := make(chan *opening, openAhead), make(chan *opening, openAhead)
	o := &opener{}
	ctx, o.cancel = context.WithCancel(ctx)
	o.Go(func() {
		defer close(ordered)
		defer close(todo)
		for _, s := range w.files {
			next := &opening{source: s, ready: make(chan struct{})}
			select {
			case ordered <- next:
				todo <- next // those who take from it never block
			case <-ctx.Done():
				return
			}
		}
	})
	for range min(2*runtime.GOMAXPROCS(0), 8) {
		o.Go(func() {
			for next := range todo {
				next.file, next.err = w.openFile(next.source)
				close(next.ready)
			}
		})
	}
	return ordered, o
}

// openFile opens a file for reading, if it still is what the walk saw.
func (w *walk) openFile(s *source) (*os.File, error) {
	fd, err := unix.Openat2(int(w.root.Fd()), s.path, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC, Resolve: beneath,
	})
	if err != nil {
		return nil, pathError(s.path, "read", err)
	}
	f := os.NewFile(uintptr(fd), s.path)
	if err := s.check(f); err != nil {
		f.Close()
		return nil, err
	}
	// Advice: without it everything works, slower.
	_ = unix.Fadvise(fd, 0, min(s.node.Size, prefetchSize), unix.FADV_WILLNEED)
	return f, nil
}

// add puts the content into the batch. Chunks that are holes on the disk are
// holes without being looked at: a sparse file costs what it holds.
func (o *opening) add(ctx context.Context, adder *image.Adder, meter *meter) error {
	r := &sparse{f: o.file, path: o.path, size: o.node.Size, meter: meter}
	o.node.Chunks = nil
	for r.at < r.size {
		hole, data, err := r.next()
		if err != nil {
			return err
		}
		for ; hole > 0; hole -= store.ChunkSize {
			o.node.Chunks = append(o.node.Chunks, store.Chunk{Size: uint32(min(hole, store.ChunkSize))})
		}
		var part image.Node
		if err := adder.Add(ctx, &part, r, data); err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) {
				return changed(o.path)
			}
			return err
		}
		o.node.Chunks = append(o.node.Chunks, part.Chunks...)
	}
	return o.check(o.file)
}

// check fails if the file is not as the walk saw it.
func (s *source) check(f *os.File) error {
	var st unix.Statx_t
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS, &st); err != nil {
		return pathError(s.path, "read", err)
	}
	if stampOf(&st) != s.stamp {
		return changed(s.path)
	}
	return nil
}

// sparse reads a file of which only the data is on the disk: holes are zeros that
// cost no reading.
type sparse struct {
	f     *os.File
	path  string // for messages
	size  int64
	meter *meter

	at   int64 // read so far
	data int64 // where data begins, at or after at
	hole int64 // where it ends
}

func (s *sparse) Read(p []byte) (int, error) {
	if err := s.meter.ctx.Err(); err != nil {
		return 0, err
	}
	if s.at >= s.size {
		return 0, io.EOF
	}
	if s.at >= s.hole {
		if err := s.find(); err != nil {
			return 0, pathError(s.path, "read", err)
		}
	}
	p = p[:min(int64(len(p)), s.size-s.at)]
	var n int
	var err error
	if s.at < s.data {
		n = int(min(int64(len(p)), s.data-s.at))
		clear(p[:n])
	} else {
		n, err = s.f.ReadAt(p[:min(int64(len(p)), s.hole-s.at)], s.at)
		if n > 0 {
			err = nil
		}
	}
	s.at += int64(n)
	s.meter.add(int64(n))
	if err != nil && err != io.EOF {
		err = pathError(s.path, "read", err)
	}
	return n, err
}

// next skips the whole chunks that are holes and gives how many bytes that was, and how
// many bytes of chunks with data in them follow. The reader stands at a chunk's beginning.
func (s *sparse) next() (hole, data int64, err error) {
	if s.at >= s.hole {
		if err := s.find(); err != nil {
			return 0, 0, pathError(s.path, "read", err)
		}
	}
	begin, end := s.data, s.hole
	if begin < s.size {
		begin -= begin % store.ChunkSize
	}
	begin = max(begin, s.at)
	if over := end % store.ChunkSize; over > 0 {
		end = min(end+store.ChunkSize-over, s.size)
	}
	hole = begin - s.at
	s.at = begin
	s.meter.add(hole)
	return hole, end - begin, nil
}

// find looks for the next data at or behind at.
func (s *sparse) find() error {
	data, err := s.f.Seek(s.at, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO): // none up to the end
		s.data, s.hole = s.size, s.size
		return nil
	case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP): // a filesystem that cannot tell
		s.data, s.hole = s.at, s.size
		return nil
	case err != nil:
		return err
	}
	s.data = min(data, s.size)
	if s.hole, err = s.f.Seek(data, unix.SEEK_HOLE); err != nil {
		return err
	}
	s.hole = min(s.hole, s.size)
	return nil
}

package export

import (
	"archive/tar"
	"bufio"
	"context"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// ahead is how many chunks of a layer are read before they are due: 2 MiB, which
// hides an origin's latency.
const ahead = 16

// meter counts content on its way, of several layers.
type meter struct {
	mu       sync.Mutex
	done     int64
	total    int64
	progress Progress
}

func newMeter(total int64, progress Progress) *meter {
	if progress == nil {
		progress = func(int64, int64) {}
	}
	return &meter{total: total, progress: progress}
}

func (m *meter) add(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done += n
	m.progress(m.done, m.total)
}

// writeTar writes one layer as a tar.
func (x *Exporter) writeTar(ctx context.Context, l *tarred, w io.Writer, m *meter) error {
	group, ctx := errgroup.WithContext(ctx)
	content := make(chan *loading, ahead)
	group.Go(func() error {
		defer close(content)
		return x.load(ctx, group, l, content)
	})
	group.Go(func() error {
		out := bufio.NewWriterSize(w, 256<<10)
		t := tar.NewWriter(out)
		for _, i := range l.items {
			if err := writeItem(ctx, t, i, content, m); err != nil {
				return fault.Wrap(err, "write", i.path)
			}
		}
		if err := t.Close(); err != nil {
			return err
		}
		return out.Flush()
	})
	return group.Wait()
}

// loading is a chunk that is being read, or a hole.
type loading struct {
	size int64
	data *[]byte // nil: a hole
	done chan error
}

var buffers = sync.Pool{New: func() any {
	b := make([]byte, store.ChunkSize)
	return &b
}}

// load reads the chunks of a layer in order, several at a time: content's room is the bound.
func (x *Exporter) load(ctx context.Context, group *errgroup.Group, l *tarred, content chan<- *loading) error {
	for _, i := range l.items {
		if i.node == nil || i.link != "" || !i.node.IsRegular() {
			continue
		}
		for _, c := range i.node.Chunks {
			p := &loading{size: int64(c.Size), done: make(chan error, 1)}
			select {
			case content <- p:
			case <-ctx.Done():
				return ctx.Err()
			}
			if c.Digest.IsZero() {
				p.done <- nil
				continue
			}
			p.data = buffers.Get().(*[]byte)
			group.Go(func() error {
				_, err := x.Chunks.ReadChunk(ctx, c, (*p.data)[:c.Size])
				p.done <- err
				return err
			})
		}
	}
	return nil
}

var zeros [store.ChunkSize]byte

func writeItem(ctx context.Context, t *tar.Writer, i item, content <-chan *loading, m *meter) error {
	h, err := headerOf(i)
	if err != nil {
		return err
	}
	if err := t.WriteHeader(h); err != nil {
		return fault.New(fault.Invalid, "a tar cannot hold it: %w", err)
	}
	if h.Typeflag != tar.TypeReg || i.node == nil {
		return nil
	}
	for range i.node.Chunks {
		var p *loading
		select {
		case p = <-content:
		case <-ctx.Done():
			return ctx.Err()
		}
		if p == nil {
			return ctx.Err() // the reading has failed
		}
		if err := <-p.done; err != nil {
			return err
		}
		b := zeros[:p.size]
		if p.data != nil {
			b = (*p.data)[:p.size]
		}
		if _, err := t.Write(b); err != nil {
			return err
		}
		if p.data != nil {
			buffers.Put(p.data)
		}
		m.add(p.size)
	}
	return nil
}

// headerOf makes the header of an item. PAX has room for everything that a node has.
func headerOf(i item) (*tar.Header, error) {
	h := &tar.Header{Name: i.path, Format: tar.FormatPAX}
	n := i.node
	if n == nil { // a whiteout
		h.Typeflag, h.ModTime = tar.TypeReg, time.Unix(0, 0)
		return h, nil
	}
	h.Mode, h.Uid, h.Gid = int64(n.Mode&0o7777), int(n.UID), int(n.GID)
	h.ModTime = time.Unix(n.MtimeS, int64(n.MtimeNS))
	if i.link != "" {
		h.Typeflag, h.Linkname = tar.TypeLink, i.link
		return h, nil
	}
	switch n.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		h.Typeflag, h.Size = tar.TypeReg, n.Size
	case unix.S_IFDIR:
		h.Typeflag, h.Name = tar.TypeDir, i.path+"/"
	case unix.S_IFLNK:
		h.Typeflag, h.Linkname = tar.TypeSymlink, n.Link
	case unix.S_IFCHR, unix.S_IFBLK:
		h.Typeflag, h.Devmajor, h.Devminor = tar.TypeChar, int64(n.Major), int64(n.Minor)
		if n.Mode&unix.S_IFMT == unix.S_IFBLK {
			h.Typeflag = tar.TypeBlock
		}
	case unix.S_IFIFO:
		h.Typeflag = tar.TypeFifo
	default:
		return nil, fault.New(fault.Invalid, "a tar cannot hold a file of mode %o", n.Mode)
	}
	if len(n.Xattrs) > 0 {
		h.PAXRecords = make(map[string]string, len(n.Xattrs))
		for name, value := range n.Xattrs {
			h.PAXRecords["SCHILY.xattr."+name] = value
		}
	}
	return h, nil
}

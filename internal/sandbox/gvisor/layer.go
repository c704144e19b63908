package gvisor

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// Upper implements sandbox.Sandbox. What processes that still run are writing may
// be in it by halves: call it after Wait. Sockets are left out.
func (s *Sandbox) Upper(ctx context.Context, w io.Writer) error {
	if !s.spec.Upper {
		return fault.New(fault.Invalid, "%s was made without Upper", s.what())
	}
	root := filepath.Join(s.r.scratchDir(s.spec.ID), "upper")
	t := layer{ctx: ctx, root: root, out: tar.NewWriter(w), links: map[[2]uint64]string{}}
	if err := t.add("."); err != nil {
		return fault.Wrap(err, "read", "writable layer of "+s.what())
	}
	return fault.Wrap(t.out.Close(), "read", "writable layer of "+s.what())
}

// layer writes a directory as a tar: sorted, a directory before its content, hard
// links after the first name.
type layer struct {
	ctx   context.Context
	root  string
	out   *tar.Writer
	links map[[2]uint64]string // device and inode -> first name
}

func (l *layer) add(name string) error {
	if err := l.ctx.Err(); err != nil {
		return err
	}
	path := filepath.Join(l.root, name)
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return &fs.PathError{Op: "lstat", Path: name, Err: err}
	}
	h := &tar.Header{
		Name: name, Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: mtime(&st), Format: tar.FormatPAX,
	}
	kind := st.Mode & unix.S_IFMT
	switch kind {
	case unix.S_IFDIR:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case unix.S_IFREG:
		h.Typeflag, h.Size = tar.TypeReg, st.Size
	case unix.S_IFLNK:
		h.Typeflag = tar.TypeSymlink
		var err error
		if h.Linkname, err = os.Readlink(path); err != nil {
			return err
		}
	case unix.S_IFIFO:
		h.Typeflag = tar.TypeFifo
	case unix.S_IFCHR, unix.S_IFBLK:
		h.Typeflag = tar.TypeChar
		if kind == unix.S_IFBLK {
			h.Typeflag = tar.TypeBlock
		}
		h.Devmajor, h.Devminor = int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
	default:
		return nil // a socket: nobody listens on it any more
	}
	if kind != unix.S_IFDIR && st.Nlink > 1 {
		key := [2]uint64{st.Dev, st.Ino}
		if first, ok := l.links[key]; ok && !whiteout(&st) {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			return l.out.WriteHeader(h)
		}
		l.links[key] = name
	}
	if err := xattrs(path, h); err != nil {
		return err
	}
	if err := l.out.WriteHeader(h); err != nil {
		return err
	}
	switch kind {
	case unix.S_IFREG:
		return l.content(path, st.Size)
	case unix.S_IFDIR:
		return l.children(name, path)
	}
	return nil
}

func mtime(st *unix.Stat_t) time.Time { return time.Unix(st.Mtim.Unix()) }

// whiteout: overlayfs links all of them to one inode; they are told apart here.
func whiteout(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}

func (l *layer) content(path string, size int64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	_, err = io.CopyN(l.out, f, size)
	return err
}

func (l *layer) children(name, path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	all, err := d.Readdirnames(-1)
	_ = d.Close()
	if err != nil {
		return err
	}
	sort.Strings(all)
	for _, c := range all {
		if err := l.add(filepath.Join(name, c)); err != nil {
			return err
		}
	}
	return nil
}

// xattrs reads the attributes of a file. Of overlayfs's own only the mark of an
// opaque directory belongs into a layer: the others describe this mount.
func xattrs(path string, h *tar.Header) error {
	n, err := unix.Llistxattr(path, nil)
	if err != nil || n == 0 {
		return ignoreUnsupported(err)
	}
	b := make([]byte, n+1024)
	if n, err = unix.Llistxattr(path, b); err != nil {
		return ignoreUnsupported(err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(b[:n]), "\x00"), "\x00") {
		if strings.HasPrefix(name, "trusted.overlay.") && name != "trusted.overlay.opaque" {
			continue
		}
		v := make([]byte, 64<<10) // the most that Linux keeps
		m, err := unix.Lgetxattr(path, name, v)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return &fs.PathError{Op: "getxattr " + name, Path: path, Err: err}
		}
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords["SCHILY.xattr."+name] = string(v[:m])
	}
	return nil
}

func ignoreUnsupported(err error) error {
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	return err
}

package image

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"math"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image/erofs"
	"brisk.dev/brisk/internal/store"
)

// Limits of a layer, where LayerOptions has none.
const (
	DefaultMaxEntries = 4_000_000
	DefaultMaxBytes   = 256 << 30
)

// LayerOptions say how an archive is applied to a tree.
type LayerOptions struct {
	Whiteouts  Whiteouts
	MaxEntries int64 // in the archive; 0 = DefaultMaxEntries
	MaxBytes   int64 // sum of the files' sizes, holes included; 0 = DefaultMaxBytes
	// Drop, if set, is asked for each entry by its clean path ("/run/brisk"): true
	// leaves the entry out, as if it were not in the archive.
	Drop func(path string) bool
	// Entry, if set, is called after each entry that was applied, for progress.
	Entry func(LayerStats)
}

// LayerStats count what an archive did.
type LayerStats struct {
	Entries       int64 // in the archive, of any kind
	Files         int64 // regular files
	Bytes         int64 // their sizes
	Whiteouts     int64 // of names and of directories
	Dropped       int64 // entries that Drop left out
	DroppedXattrs int64 // in namespaces that a Linux root filesystem does not have
}

// ApplyTar applies a tar (plain, GNU, PAX; not compressed) to the tree: its files
// are added and replace others of their names, its whiteouts remove what was
// there before. File contents go into batch while the archive is read, a chunk at a
// time; memory does not depend on the archive's size, but for the nodes.
//
// Names are taken from the root of the tree, with or without a leading slash;
// symbolic links in the middle of a name lead to places in the tree, as they
// would in a chroot. A name that climbs above the root, a hard link to what is
// not there, and what no Linux filesystem could hold are errors of class
// fault.Invalid that name the entry, as is an archive that is cut off. After an
// error the tree is half-way: throw it away.
//
// r is read to the end-of-archive mark, not to its end.
func (t *Tree) ApplyTar(ctx context.Context, r io.Reader, batch *store.Batch, opt LayerOptions) (LayerStats, error) {
	return t.applyTar(ctx, r, batch, opt)
}

func (t *Tree) applyTar(ctx context.Context, r io.Reader, sink chunkSink, opt LayerOptions) (LayerStats, error) {
	if opt.MaxEntries == 0 {
		opt.MaxEntries = DefaultMaxEntries
	}
	if opt.MaxBytes == 0 {
		opt.MaxBytes = DefaultMaxBytes
	}
	l := layer{tree: t, opt: opt, fresh: map[*Node]struct{}{}, adder: newAdder(sink)}
	err := l.apply(ctx, tar.NewReader(r))
	return l.stats, err
}

// layer is an archive being applied.
type layer struct {
	tree  *Tree
	opt   LayerOptions
	adder *Adder
	stats LayerStats
	fresh map[*Node]struct{} // nodes of this layer: whiteouts do not touch them
}

func (l *layer) apply(ctx context.Context, tr *tar.Reader) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return readError(err, "")
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if l.stats.Entries++; l.stats.Entries > l.opt.MaxEntries {
			return fault.New(fault.Invalid, "the archive has more than %d entries", l.opt.MaxEntries)
		}
		if err := l.entry(ctx, h, tr); err != nil {
			return readError(err, h.Name)
		}
		if l.opt.Entry != nil {
			l.opt.Entry(l.stats)
		}
	}
}

// readError says which entry is at fault, and gives errors of package tar a class.
func readError(err error, entry string) error {
	var classified *fault.Error
	switch {
	case errors.As(err, &classified):
		// Ours, or of whoever feeds us, who knows better what is cut off.
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = fault.New(fault.Invalid, "the archive is cut off")
	case errors.Is(err, tar.ErrHeader), errors.Is(err, tar.ErrFieldTooLong):
		err = fault.New(fault.Invalid, "the archive is damaged, or not a tar: %v", err)
	}
	if entry == "" {
		return fault.Wrap(err, "read archive", "")
	}
	return fault.Wrap(err, "entry", quote(entry))
}

// cleanPath makes an entry's name relative to the root: "." is the root itself.
func cleanPath(name string) (string, error) {
	p := path.Clean(strings.TrimLeft(name, "/"))
	switch {
	case name == "":
		return "", fault.New(fault.Invalid, "the name is empty")
	case strings.IndexByte(name, 0) >= 0:
		return "", fault.New(fault.Invalid, "the name contains a NUL")
	case len(p) > maxPath:
		return "", fault.New(fault.Invalid, "the name is %d bytes long; the limit is %d", len(p), maxPath)
	case p == ".." || strings.HasPrefix(p, "../"):
		return "", fault.New(fault.Invalid, "the name leads outside of the image")
	}
	for rest := p; rest != ""; {
		var c string
		if c, rest, _ = strings.Cut(rest, "/"); len(c) > maxName {
			return "", fault.New(fault.Invalid, "a part of the name is %d bytes long; the limit is %d", len(c), maxName)
		}
	}
	return p, nil
}

// parent finds the directory that a clean path's last component is in.
func (l *layer) parent(clean string, create bool) (*Node, error) {
	dir, _ := path.Split(clean)
	r := resolver{tree: l.tree, create: create, made: func(n *Node) { l.fresh[n] = struct{}{} }}
	at, err := r.walkFrom(&place{node: l.tree.Root}, dir, true)
	if err != nil {
		return nil, err
	}
	if !at.node.IsDir() {
		return nil, fault.New(fault.Invalid, "it is below a file that is not a directory")
	}
	return at.node, nil
}

func (l *layer) entry(ctx context.Context, h *tar.Header, content io.Reader) error {
	clean, err := cleanPath(h.Name)
	if err != nil {
		return err
	}
	if l.opt.Drop != nil && l.opt.Drop(path.Join("/", clean)) {
		l.stats.Dropped++
		return nil
	}
	if l.opt.Whiteouts == OCI && strings.Contains("/"+path.Dir(clean), "/"+metaPrefix) {
		return nil
	}
	base := path.Base(clean)
	mark, gone, err := l.opt.Whiteouts.read(base, h)
	switch {
	case err != nil:
		return err
	case mark == isWhiteout || mark == isOpaque:
		return l.whiteout(clean, gone)
	case mark == isIgnored:
		return nil
	}
	n, opaque, err := l.node(h, base)
	if err != nil {
		return err
	}
	if clean == "." {
		if !n.IsDir() {
			return fault.New(fault.Invalid, "the root must be a directory")
		}
		l.putDir(l.tree.Root, n, opaque)
		return nil
	}
	dir, err := l.parent(clean, true)
	if err != nil {
		return err
	}
	if h.Typeflag == tar.TypeLink {
		return l.link(dir, base, h.Linkname)
	}
	old := dir.Children[base]
	if n.IsDir() && old != nil && old.IsDir() {
		l.putDir(old, n, opaque)
		return nil
	}
	if n.IsRegular() {
		if l.stats.Bytes > l.opt.MaxBytes-h.Size {
			return fault.New(fault.Invalid, "the files of the archive exceed %d bytes in all", l.opt.MaxBytes)
		}
		l.stats.Files++
		l.stats.Bytes += h.Size
		if err := l.adder.Add(ctx, n, content, h.Size); err != nil {
			return err
		}
	}
	l.put(dir, n)
	return nil
}

func (l *layer) put(dir, n *Node) {
	delete(l.fresh, dir.Children[n.Name]) // if it is of this layer, the last one wins
	dir.Put(n)
	l.fresh[n] = struct{}{}
}

// putDir gives directory old the attributes of n and keeps what is in it.
func (l *layer) putDir(old, n *Node, opaque bool) {
	n.Name, n.Children = old.Name, old.Children
	*old = *n
	l.fresh[old] = struct{}{}
	if opaque {
		l.stats.Whiteouts++
		l.clear(old)
	}
}

// link makes a further name of a file.
func (l *layer) link(dir *Node, base, to string) error {
	missing := func(format string, args ...any) error {
		return fault.New(fault.Invalid, "hard link to %s: "+format, append([]any{quote(to)}, args...)...)
	}
	clean, err := cleanPath(to)
	if err != nil {
		return missing("%w", err)
	}
	from, err := l.parent(clean, false)
	if err != nil {
		return missing("%w", errors.New("there is no such file"))
	}
	old := from.Children[path.Base(clean)]
	switch {
	case old == nil:
		return missing("there is no such file")
	case old.IsDir():
		return missing("it is a directory")
	}
	file := old.File()
	if now := dir.Children[base]; now != nil && now.File() == file {
		l.fresh[now] = struct{}{} // it is that file already
		return nil
	}
	l.put(dir, &Node{Name: base, Target: file})
	return nil
}

// whiteout removes what lower layers have under the name gone beside clean, or in
// all of its directory if gone is empty. That nothing is there is no error.
func (l *layer) whiteout(clean, gone string) error {
	l.stats.Whiteouts++
	dir, err := l.parent(clean, false)
	switch {
	case fault.Is(err, fault.NotFound):
		return nil
	case err != nil:
		return err
	case gone == "":
		l.clear(dir)
	case dir.Children[gone] != nil && !l.keep(dir.Children[gone]):
		delete(dir.Children, gone)
	}
	return nil
}

// clear removes everything from dir that is not of this layer.
func (l *layer) clear(dir *Node) {
	for name, c := range dir.Children {
		if !l.keep(c) {
			delete(dir.Children, name)
		}
	}
}

// keep clears n of what is not of this layer and reports whether anything is left.
func (l *layer) keep(n *Node) bool {
	_, fresh := l.fresh[n]
	if n.IsDir() {
		l.clear(n)
		fresh = fresh || len(n.Children) > 0
	}
	return fresh
}

// node makes a node, without content, of a header.
func (l *layer) node(h *tar.Header, base string) (n *Node, opaque bool, err error) {
	n = &Node{Name: base, Mode: uint32(h.Mode) & 0o7777}
	switch h.Typeflag {
	case tar.TypeReg, '\x00', tar.TypeCont, tar.TypeGNUSparse:
		n.Mode |= unix.S_IFREG
	case tar.TypeDir:
		n.Mode |= unix.S_IFDIR
		n.Children = map[string]*Node{}
	case tar.TypeSymlink:
		n.Mode |= unix.S_IFLNK
		n.Link = h.Linkname
		if n.Link == "" || len(n.Link) > erofs.MaxLink || strings.IndexByte(n.Link, 0) >= 0 {
			return nil, false, fault.New(fault.Invalid, "a symbolic link to %s, which cannot be", quote(n.Link))
		}
	case tar.TypeChar, tar.TypeBlock:
		n.Mode |= unix.S_IFCHR
		if h.Typeflag == tar.TypeBlock {
			n.Mode = n.Mode&^unix.S_IFMT | unix.S_IFBLK
		}
		if h.Devmajor < 0 || h.Devmajor >= 1<<12 || h.Devminor < 0 || h.Devminor >= 1<<20 {
			return nil, false, fault.New(fault.Invalid, "device %d:%d cannot be", h.Devmajor, h.Devminor)
		}
		n.Major, n.Minor = uint32(h.Devmajor), uint32(h.Devminor)
	case tar.TypeFifo:
		n.Mode |= unix.S_IFIFO
	case tar.TypeLink:
		return n, false, nil
	default:
		return nil, false, fault.New(fault.Invalid, "an entry of type %q is not known", h.Typeflag)
	}
	if !fits32(h.Uid) || !fits32(h.Gid) {
		return nil, false, fault.New(fault.Invalid, "owner %d:%d cannot be", h.Uid, h.Gid)
	}
	n.UID, n.GID = uint32(h.Uid), uint32(h.Gid)
	n.MtimeS, n.MtimeNS = h.ModTime.Unix(), uint32(h.ModTime.Nanosecond())
	opaque, err = l.xattrs(n, h.PAXRecords)
	return n, opaque, err
}

func fits32(id int) bool { return id >= 0 && int64(id) <= math.MaxUint32 }

func (l *layer) xattrs(n *Node, records map[string]string) (opaque bool, err error) {
	const prefix = "SCHILY.xattr."
	total := 0
	for key, value := range records {
		name, ok := strings.CutPrefix(key, prefix)
		if !ok {
			continue
		}
		if l.opt.Whiteouts == Overlay {
			own, op, err := overlayXattr(name, value)
			if err != nil {
				return false, err
			}
			opaque = opaque || op
			if own {
				continue
			}
		}
		if !erofs.XattrKnown(name) {
			l.stats.DroppedXattrs++
			continue
		}
		if err := erofs.XattrFits(name, value); err != nil {
			return false, fault.New(fault.Invalid, "%v", err)
		}
		if total += len(name) + len(value) + 8; total > erofs.MaxXattrs {
			return false, fault.New(fault.Invalid, "the extended attributes exceed %d bytes", erofs.MaxXattrs)
		}
		if n.Xattrs == nil {
			n.Xattrs = map[string]string{}
		}
		n.Xattrs[name] = value
	}
	return opaque, nil
}

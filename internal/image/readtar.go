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

// LayerOptions say how an archive is read.
type LayerOptions struct {
	Whiteouts  Whiteouts
	MaxEntries int64 // in the archive; 0 = DefaultMaxEntries
	MaxBytes   int64 // sum of the files' sizes, holes included; 0 = DefaultMaxBytes
	// Drop, if set, is asked for each entry by its clean path ("/run/brisk"): true
	// leaves the entry out, as if it were not in the archive.
	Drop func(path string) bool
}

// LayerStats count what is in an archive.
type LayerStats struct {
	Entries       int64 // of any kind
	Files         int64 // regular files
	Bytes         int64 // their sizes
	Whiteouts     int64 // of names and of directories
	Dropped       int64 // entries that Drop left out
	DroppedXattrs int64 // in namespaces that a Linux root filesystem does not have
}

// LayerEntry is what one member of an archive says, apart from any tree: a layer is a
// sequence of them, and can be read without the layers below it.
type LayerEntry struct {
	Action Action
	Path   string // clean and relative to the root; "." is the root itself
	Link   string // of HardLink: the clean path of the file
	Opaque bool   // of Put, a directory: what lower layers have in it goes
	Node   *Node  // of Put: the file, without children and without a Target
}

// Action says what an entry does to a tree. The values are part of a format.
type Action uint8

// The actions.
const (
	Put      Action = iota // adds a file of any kind, or replaces what is there
	HardLink               // adds a further name of a file
	Remove                 // removes what lower layers have under the path
	Clear                  // removes what lower layers have in the directory
	actions
)

// ReadTar reads a tar (plain, GNU, PAX; not compressed) and calls fn with its
// entries, in order, until that fails. File contents go into batch while the archive is read, a
// chunk at a time; memory does not depend on the archive's size. A LayerEntry, and its
// Node, are fn's to keep.
//
// What no Linux filesystem could hold, a name that climbs above the root, and an
// archive that is cut off are errors of class fault.Invalid that name the entry,
// as do the errors of fn. r is read to the end-of-archive mark, not to its end.
func ReadTar(ctx context.Context, r io.Reader, batch *store.Batch, opt LayerOptions, fn func(*LayerEntry) error) (LayerStats, error) {
	return readTar(ctx, r, batch, opt, fn)
}

func readTar(ctx context.Context, r io.Reader, sink chunkSink, opt LayerOptions, fn func(*LayerEntry) error) (LayerStats, error) {
	if opt.MaxEntries == 0 {
		opt.MaxEntries = DefaultMaxEntries
	}
	if opt.MaxBytes == 0 {
		opt.MaxBytes = DefaultMaxBytes
	}
	e := entryReader{opt: opt, adder: newAdder(sink), emit: fn}
	err := e.read(ctx, tar.NewReader(r))
	return e.stats, err
}

// entryReader is an archive being read.
type entryReader struct {
	opt   LayerOptions
	adder *Adder
	emit  func(*LayerEntry) error
	stats LayerStats
}

func (r *entryReader) read(ctx context.Context, tr *tar.Reader) error {
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
		if r.stats.Entries++; r.stats.Entries > r.opt.MaxEntries {
			return fault.New(fault.Invalid, "the archive has more than %d entries", r.opt.MaxEntries)
		}
		if err := r.entry(ctx, h, tr); err != nil {
			return readError(err, h.Name)
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

func (r *entryReader) entry(ctx context.Context, h *tar.Header, content io.Reader) error {
	clean, err := cleanPath(h.Name)
	if err != nil {
		return err
	}
	if r.opt.Drop != nil && r.opt.Drop(path.Join("/", clean)) {
		r.stats.Dropped++
		return nil
	}
	if r.opt.Whiteouts == OCI && strings.Contains("/"+path.Dir(clean), "/"+metaPrefix) {
		return nil
	}
	base := path.Base(clean)
	mark, gone, err := r.opt.Whiteouts.read(base, h)
	switch {
	case err != nil:
		return err
	case mark == isWhiteout:
		r.stats.Whiteouts++
		return r.emit(&LayerEntry{Action: Remove, Path: path.Join(path.Dir(clean), gone)})
	case mark == isOpaque:
		r.stats.Whiteouts++
		return r.emit(&LayerEntry{Action: Clear, Path: path.Dir(clean)})
	case mark == isIgnored:
		return nil
	}
	if h.Typeflag == tar.TypeLink {
		to, err := cleanPath(h.Linkname)
		if err != nil {
			return fault.New(fault.Invalid, "hard link to %s: %w", quote(h.Linkname), err)
		}
		return r.emit(&LayerEntry{Action: HardLink, Path: clean, Link: to})
	}
	n, opaque, err := r.node(h, base)
	if err != nil {
		return err
	}
	if opaque {
		r.stats.Whiteouts++
	}
	if n.IsRegular() {
		if r.stats.Bytes > r.opt.MaxBytes-h.Size {
			return fault.New(fault.Invalid, "the files of the archive exceed %d bytes in all", r.opt.MaxBytes)
		}
		r.stats.Files++
		r.stats.Bytes += h.Size
		if err := r.adder.Add(ctx, n, content, h.Size); err != nil {
			return err
		}
	}
	return r.emit(&LayerEntry{Action: Put, Path: clean, Opaque: opaque && n.IsDir(), Node: n})
}

// node makes a node, without content, of a header.
func (r *entryReader) node(h *tar.Header, base string) (n *Node, opaque bool, err error) {
	n = &Node{Name: base, Mode: uint32(h.Mode) & 0o7777}
	switch h.Typeflag {
	case tar.TypeReg, '\x00', tar.TypeCont, tar.TypeGNUSparse:
		n.Mode |= unix.S_IFREG
	case tar.TypeDir:
		n.Mode |= unix.S_IFDIR
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
	default:
		return nil, false, fault.New(fault.Invalid, "an entry of type %q is not known", h.Typeflag)
	}
	if !fits32(h.Uid) || !fits32(h.Gid) {
		return nil, false, fault.New(fault.Invalid, "owner %d:%d cannot be", h.Uid, h.Gid)
	}
	n.UID, n.GID = uint32(h.Uid), uint32(h.Gid)
	n.MtimeS, n.MtimeNS = h.ModTime.Unix(), uint32(h.ModTime.Nanosecond())
	opaque, err = r.xattrs(n, h.PAXRecords)
	return n, opaque, err
}

func fits32(id int) bool { return id >= 0 && int64(id) <= math.MaxUint32 }

func (r *entryReader) xattrs(n *Node, records map[string]string) (opaque bool, err error) {
	const prefix = "SCHILY.xattr."
	total := 0
	for key, value := range records {
		name, ok := strings.CutPrefix(key, prefix)
		if !ok {
			continue
		}
		if r.opt.Whiteouts == Overlay {
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
			r.stats.DroppedXattrs++
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

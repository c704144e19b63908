package importer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
)

// walk reads the names and attributes of a whole directory tree, without the
// files' content. The directories are read in parallel; what comes out does not
// depend on the order.
//
// Every path is resolved below the root and through no symbolic link, so that a
// tree which somebody rearranges meanwhile cannot lead out of it. Mount points
// are not entered: what is mounted there (a proc, another disk, a tree of
// Brisk's) is not part of this tree, and its place stays empty.
type walk struct {
	root  *os.File
	slots chan struct{} // directories that may be read at the same time

	mu      sync.Mutex
	files   []*source
	links   map[inode][]*source // files with several names
	mounts  []string
	entries int
}

// inode identifies a file, whatever its names.
type inode struct {
	major, minor uint32
	number       uint64
}

// source is a regular file with content to be read.
type source struct {
	node  *image.Node
	path  string // relative to the root
	stamp stamp
}

// stamp is what changes when a file does.
type stamp struct {
	inode
	size         int64
	mtime, ctime unix.StatxTimestamp
}

func stampOf(st *unix.Statx_t) stamp {
	return stamp{
		inode: inode{st.Dev_major, st.Dev_minor, st.Ino},
		size:  int64(st.Size), mtime: st.Mtime, ctime: st.Ctime,
	}
}

// maxEntries bounds a tree: the metadata of this many files takes about 3 GiB of memory.
const maxEntries = 10_000_000

const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// walkTree reads dir. It returns the tree and, in the order of their paths, the
// regular files whose content is still to be read.
func walkTree(ctx context.Context, root *os.File) (*image.Tree, *walk, error) {
	w := &walk{root: root, links: map[inode][]*source{}, slots: make(chan struct{}, 2*runtime.GOMAXPROCS(0))}
	var st unix.Statx_t
	if err := unix.Statx(int(root.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS, &st); err != nil {
		return nil, nil, fmt.Errorf("stat: %w", err)
	}
	top := node("", &st)
	var err error
	if top.Xattrs, err = xattrs(procPath(root, ".")); err != nil {
		return nil, nil, err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return w.directory(ctx, group, ".", top) })
	if err := group.Wait(); err != nil {
		return nil, nil, err
	}
	w.joinLinks()
	slices.SortFunc(w.files, func(a, b *source) int { return strings.Compare(a.path, b.path) })
	slices.Sort(w.mounts)
	return &image.Tree{Root: top}, w, nil
}

// directory reads one directory and starts the reading of those in it.
func (w *walk) directory(ctx context.Context, group *errgroup.Group, dir string, to *image.Node) error {
	select {
	case w.slots <- struct{}{}:
		defer func() { <-w.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	fd, err := unix.Openat2(int(w.root.Fd()), dir, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: beneath,
	})
	if err != nil {
		return pathError(dir, "read the directory", err)
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return pathError(dir, "read the directory", err)
	}
	to.Children = make(map[string]*image.Node, len(names))
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		where := path.Join(dir, name)
		child, enter, err := w.entry(f, name, where)
		if err != nil {
			return pathError(where, "read", err)
		}
		to.Children[name] = child
		if enter {
			group.Go(func() error { return w.directory(ctx, group, where, child) })
		}
	}
	return nil
}

// entry reads the attributes of one name in dir, and says whether it is a
// directory to be entered.
func (w *walk) entry(dir *os.File, name, where string) (*image.Node, bool, error) {
	var st unix.Statx_t
	if err := unix.Statx(int(dir.Fd()), name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS, &st); err != nil {
		return nil, false, err
	}
	n := node(name, &st)
	var err error
	if n.Xattrs, err = xattrs(procPath(dir, name)); err != nil {
		return nil, false, err
	}
	if n.Mode&unix.S_IFMT == unix.S_IFLNK {
		if n.Link, err = readlink(dir, name); err != nil {
			return nil, false, err
		}
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	if w.entries++; w.entries > maxEntries {
		return nil, false, fault.New(fault.Invalid, "the tree has more than %d files", maxEntries)
	}
	if st.Attributes&st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		w.mounts = append(w.mounts, where)
		n.Size = 0
		return n, false, nil
	}
	switch n.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return n, true, nil
	case unix.S_IFREG:
		s := &source{node: n, path: where, stamp: stampOf(&st)}
		if st.Nlink > 1 {
			w.links[s.stamp.inode] = append(w.links[s.stamp.inode], s)
		} else {
			w.files = append(w.files, s)
		}
	default:
		if st.Nlink > 1 {
			s := &source{node: n, path: where, stamp: stampOf(&st)}
			w.links[s.stamp.inode] = append(w.links[s.stamp.inode], s)
		}
	}
	return n, false, nil
}

// joinLinks makes one file of the names that share an inode: the first by path
// is the file, whatever the order in which they were met.
func (w *walk) joinLinks() {
	for _, names := range w.links {
		slices.SortFunc(names, func(a, b *source) int { return strings.Compare(a.path, b.path) })
		first := names[0]
		if first.node.Mode&unix.S_IFMT == unix.S_IFREG {
			w.files = append(w.files, first)
		}
		for _, other := range names[1:] {
			*other.node = image.Node{Name: other.node.Name, Target: first.node}
		}
	}
	w.links = nil
}

func node(name string, st *unix.Statx_t) *image.Node {
	n := &image.Node{
		Name: name, Mode: uint32(st.Mode), UID: st.Uid, GID: st.Gid,
		MtimeS: st.Mtime.Sec, MtimeNS: st.Mtime.Nsec,
	}
	switch n.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		n.Size = int64(st.Size)
	case unix.S_IFBLK, unix.S_IFCHR:
		n.Major, n.Minor = st.Rdev_major, st.Rdev_minor
	}
	return n
}

func readlink(dir *os.File, name string) (string, error) {
	var b [unix.PathMax]byte
	n, err := unix.Readlinkat(int(dir.Fd()), name, b[:])
	return string(b[:max(n, 0)]), err
}

// procPath names an entry of an open directory for calls that take only a path.
func procPath(dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
}

// xattrs reads the extended attributes of the file itself, links not followed.
// Those of overlayfs are its own bookkeeping, not the file's, and are left out.
func xattrs(name string) (map[string]string, error) {
	var list []byte
	for size := 256; ; size *= 4 {
		list = make([]byte, size)
		n, err := unix.Llistxattr(name, list)
		if errors.Is(err, unix.ERANGE) && size < 1<<17 {
			continue
		}
		if errors.Is(err, unix.ENOTSUP) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list extended attributes: %w", err)
		}
		list = list[:n]
		break
	}
	var found map[string]string
	for key := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		if key == "" || strings.HasPrefix(key, "trusted.overlay.") || strings.HasPrefix(key, "user.overlay.") {
			continue
		}
		value := make([]byte, 1<<16) // the kernel's limit for one value
		n, err := unix.Lgetxattr(name, key, value)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the extended attribute %s: %w", key, err)
		}
		if found == nil {
			found = map[string]string{}
		}
		found[key] = string(value[:n])
	}
	return found, nil
}

// pathError says which file of the tree failed. A file that went away or turned
// into something else while it was being read is a tree that changes.
func pathError(where, doing string, err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE) || errors.Is(err, unix.ELOOP) ||
		errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENXIO) {
		return changed(where)
	}
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		return fault.New(fault.Invalid, "%s %s: %w", doing, where, err).WithHint("The server has to be able to read every file of the tree.")
	}
	if errors.Is(err, unix.EIO) {
		return fault.New(fault.Corrupt, "%s %s: %w", doing, where, err)
	}
	return fmt.Errorf("%s %s: %w", doing, where, err)
}

func changed(where string) error {
	return fault.New(fault.Invalid, "%s changed while it was being read", where).
		WithHint("Import it again when nothing writes to it.")
}

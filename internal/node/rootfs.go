package node

import (
	"bufio"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
)

// Rootfs is a use of a mounted image.
type Rootfs struct {
	Path string // host directory

	root   *root
	mounts *mounts
	entry  *entry
	start  *image.Start
	once   sync.Once
	ready  atomic.Bool
	used   sync.Once
}

// Release ends the use.
func (r *Rootfs) Release() {
	r.once.Do(func() {
		if r.ready.Load() {
			r.Used()
		} else {
			r.used.Do(r.start.Fail)
		}
		r.mounts.release(r.root)
	})
}

// Go says that what the image was mounted for begins to run now; restored: from a snapshot,
// which reads other things than a start from the beginning.
func (r *Rootfs) Go(restored bool) {
	if r.entry == nil {
		return
	}
	if restored {
		r.entry = r.entry.restored()
	}
	r.start.Go(r.entry.Entry)
}

// Started says that what the image was mounted for has started, and so has read
// what a start reads.
func (r *Rootfs) Started() {
	if !r.ready.Swap(true) {
		r.start.Ready()
		r.mounts.started(r.root.img, r.entry)
		time.AfterFunc(image.FirstUse, r.Used)
	}
}

// Used says that what has started has been of use for the first time. Only now is the rest
// of the image fetched: what is decompressed beside a first use makes it slower.
func (r *Rootfs) Used() {
	r.used.Do(func() {
		r.start.Done()
		r.mounts.used(r.root.img)
	})
}

// Native reports whether the image is mounted over the slab, with nobody in between.
func (r *Rootfs) Native() bool { return r.root.key.native }

// Digest is the mounted image's.
func (r *Rootfs) Digest() string { return r.root.img.Digest.String() }

// Stats counts what has been read of the image so far, by all its users.
func (r *Rootfs) Stats() image.BlockStats { return r.root.blocks.Stats() }

// failure is the last error of reading the image, or nil; of a native mount nobody
// here hears of one.
func (r *Rootfs) failure() *error {
	if r.root == nil || r.root.blocks == nil || r.Native() {
		return nil
	}
	return r.root.blocks.Failure()
}

// Size is the image's size in bytes, as a user would count it.
func (r *Rootfs) Size() int64 { return r.root.img.Manifest.Bytes }

// DefaultPath is PATH where an image sets none.
const DefaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// env is the image's environment, then what is fixed, then the user's; sorted,
// since it is part of a sandbox's shape.
func (r *Rootfs) env(a account, user map[string]string, fixed ...string) []string {
	m := map[string]string{}
	set := func(kv string) {
		k, v, _ := strings.Cut(kv, "=")
		m[k] = v
	}
	for _, kv := range append([]string{DefaultPath, "HOME=" + a.home, "LANG=C.UTF-8"}, r.root.img.Config().Env...) {
		set(kv)
	}
	maps.Copy(m, user)
	for _, kv := range fixed {
		set(kv)
	}
	out := make([]string, 0, len(m))
	for k, v := range m {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return out
}

// workdir is what is asked for, else the image's, else the root; and the root too
// if there is no such directory, which a sandbox would refuse to start in.
func (r *Rootfs) workdir(asked string) string {
	dir := asked
	if dir == "" {
		dir = r.root.img.Config().Workdir
	}
	f, err := r.open(dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return "/"
	}
	f.Close()
	return dir
}

// open opens a path as a process inside would: a symbolic link, an absolute one
// too, leads to what the image has there and never to the host's.
func (r *Rootfs) open(path string, flags int) (*os.File, error) {
	root, err := unix.Open(r.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: r.Path, Err: err}
	}
	defer unix.Close(root)
	how := unix.OpenHow{Flags: uint64(flags) | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	for range 100 { // EAGAIN: something was renamed, anywhere, while ".." was followed
		var fd int
		if fd, err = unix.Openat2(root, path, &how); err == nil {
			return os.NewFile(uintptr(fd), path), nil
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return nil, &os.PathError{Op: "open", Path: path, Err: err}
}

// account is a user inside an image.
type account struct {
	uid, gid uint32
	groups   []uint32
	home     string
}

// user resolves "name", "uid", "name:group", "uid:gid", or the image's own default,
// against the image's passwd and group files.
func (r *Rootfs) user(asked string) (account, error) {
	if asked == "" {
		asked = r.root.img.Config().User
	}
	if asked == "" {
		asked = "0"
	}
	name, group, hasGroup := strings.Cut(asked, ":")
	a := account{home: "/"}
	entry, err := r.lookup("etc/passwd", name, 2)
	if err != nil {
		return a, err
	}
	switch id, err := strconv.ParseUint(name, 10, 32); {
	case len(entry) > 3:
		uid, err1 := strconv.ParseUint(entry[2], 10, 32)
		gid, err2 := strconv.ParseUint(entry[3], 10, 32)
		if err1 != nil || err2 != nil {
			return a, fault.New(fault.Invalid, "user %q: the image's /etc/passwd is malformed", asked)
		}
		a.uid, a.gid = uint32(uid), uint32(gid)
		if len(entry) > 5 && entry[5] != "" {
			a.home = entry[5]
		}
	case err == nil:
		a.uid = uint32(id)
		if id == 0 {
			a.home = "/root"
		}
	default:
		return a, fault.New(fault.Invalid, "user %q is not in the image's /etc/passwd", name)
	}
	if !hasGroup {
		return a, nil
	}
	entry, err = r.lookup("etc/group", group, 2)
	if err != nil {
		return a, err
	}
	if entry != nil {
		group = entry[2]
	}
	gid, err := strconv.ParseUint(group, 10, 32)
	if err != nil {
		return a, fault.New(fault.Invalid, "group %q is not in the image's /etc/group", group)
	}
	a.gid = uint32(gid)
	return a, nil
}

// lookup finds the colon-separated line whose first field, or whose field n, is name.
func (r *Rootfs) lookup(path, name string, n int) ([]string, error) {
	f, err := r.open(path, unix.O_RDONLY|unix.O_NONBLOCK) // it may be a pipe that nobody writes to
	if err != nil {
		return nil, nil // no such file: only numbers will do
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, nil
	}
	const limit = 4 << 20
	lines := bufio.NewScanner(io.LimitReader(f, limit))
	for lines.Scan() {
		fields := strings.Split(lines.Text(), ":")
		if len(fields) > n && (fields[0] == name || fields[n] == name) {
			return fields, nil
		}
	}
	return nil, nil
}

package lazyfs

import (
	"errors"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

const erofsFlags = unix.MS_RDONLY | unix.MS_NODEV | unix.MS_NOSUID

// errNoFiles means that this kernel's EROFS wants block devices, or cannot be
// told to read its files directly.
var errNoFiles = errors.New("no file-backed EROFS with direct I/O")

// mountFiles mounts metadata and data as files (Linux 6.12 and later).
//
// directio is not a matter of speed. Reading through the page cache, EROFS takes a
// short result for the end of the device and fills up with zeros; and the page
// cache gives a short result when the second of two pages cannot be read. Direct
// reads of a FUSE file, or of one on a disk, are all or nothing.
func mountFiles(meta, data, target string) error {
	err := unix.Mount(meta, target, "erofs", erofsFlags, "device="+data+",directio")
	switch {
	case errors.Is(err, unix.ENOTBLK), errors.Is(err, unix.EINVAL):
		return errNoFiles // EINVAL: or the metadata is bad, as the second way will find too
	case err != nil:
		return mountFault(err, meta)
	}
	return nil
}

// direct reports whether a file can be read directly. If it cannot, EROFS reads it
// through the page cache and says nothing.
func direct(path string) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	return !errors.Is(err, unix.EINVAL)
}

// mountLoops mounts metadata and data as loop devices. The one over the data
// reads directly as well, and saves a copy in the page cache.
func mountLoops(meta, data, target string) error {
	m, err := attachLoop(meta, false)
	if err != nil {
		return err
	}
	defer m.close()
	d, err := attachLoop(data, true)
	if err != nil {
		return err
	}
	defer d.close()
	return mountFault(unix.Mount(m.path, target, "erofs", erofsFlags, "device="+d.path), meta)
}

func mountFault(err error, meta string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENODEV):
		return (&fault.Error{Class: fault.Machine, Op: "mount an image", Err: err}).
			WithHint("The kernel has no EROFS: modprobe erofs.")
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EUCLEAN), errors.Is(err, unix.EOPNOTSUPP):
		return (&fault.Error{Class: fault.Corrupt, Op: "mount metadata", Object: meta, Err: err}).
			WithHint("The kernel's log (dmesg) says what it dislikes.")
	}
	return fault.Wrap(err, "mount metadata", meta)
}

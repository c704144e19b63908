package store

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// DiskError wraps an error of an operation on the filesystem that holds path. A
// full filesystem becomes fault.DiskFull with a hint that says where to free how
// much; one that is read-only is fault.Machine, with a hint; other errors keep their class.
func DiskError(err error, op, path string) error {
	if errors.Is(err, unix.EROFS) {
		return (&fault.Error{Class: fault.Machine, Op: op, Object: path, Err: err}).
			WithHint("The filesystem that holds %s is read-only; if nobody wanted that, its disk had an error: look at dmesg, then mount -o remount,rw.", path)
	}
	if !fault.Is(err, fault.DiskFull) {
		return fault.Wrap(err, op, path)
	}
	full := &fault.Error{Class: fault.DiskFull, Op: op, Object: path, Err: err}
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return full.WithHint("Free space on the filesystem that holds %s: remove images with `brisk image rm`, or other files there.", path)
	}
	return full.WithHint("Free space on the filesystem that holds %s (%d MiB of %d MiB are free): remove images with `brisk image rm`, or other files there.",
		path, st.Bavail*uint64(st.Bsize)>>20, st.Blocks*uint64(st.Bsize)>>20)
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// syncFile makes a file's content durable, whoever wrote it.
func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

package lazyfs

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// Reread makes the files of all mounts be read anew: it is for whoever has changed
// data below a native mount, because it was damaged, and wants the page cache of no
// other filesystem to suffer. Nothing of the images is read, so it takes some
// milliseconds per thousand files.
//
// What a running program has mapped of a file stays in its memory until it ends: the
// kernel takes away only what nobody holds. The error names files that could not be
// opened; all others have been dealt with, unless it is ctx's.
func (f *FS) Reread(ctx context.Context) error {
	var failed []error
	for _, id := range f.Mounted() {
		err := filepath.WalkDir(imagePath(f.o.Dir, id), func(path string, e fs.DirEntry, err error) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err == nil && e.Type().IsRegular() {
				err = dropPages(path)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // unmounted meanwhile, and its pages gone
				failed = append(failed, err)
			}
			return nil
		})
		if err != nil {
			return fault.Wrap(err, "have mounted files read anew", "")
		}
	}
	return fault.Wrap(errors.Join(failed...), "have mounted files read anew", "")
}

// dropPages takes a file's pages out of the page cache.
func dropPages(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err == nil {
		err = unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED) // all of it: large folios go only whole
		unix.Close(fd)
	}
	if err != nil {
		return &fs.PathError{Op: "drop the pages of", Path: path, Err: err}
	}
	return nil
}

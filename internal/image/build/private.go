package build

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// private makes a directory for work in progress; remove is to be called.
func (b *Builder) private(what string) (dir string, remove func(), err error) {
	dir, err = os.MkdirTemp(b.work, what+"-")
	if err != nil {
		return "", nil, store.DiskError(err, "make a directory in", b.work)
	}
	return dir, func() {
		if err := removeAll(dir); err != nil {
			b.opts.Log.Warn("work in progress is not removed", "dir", dir, "error", err)
		}
	}, nil
}

// removeAll removes a directory of ours, and never anything that is mounted in
// it: mounts that should not be there are detached first. While there is one, nothing is removed.
func removeAll(dir string) error {
	dir, err := filepath.EvalSymlinks(dir) // as the list of mounts has it
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for range 2 {
		mounts, err := mountsBelow(dir)
		if err != nil {
			return err
		}
		if len(mounts) == 0 {
			return os.RemoveAll(dir)
		}
		for _, m := range slices.Backward(mounts) {
			_ = unix.Unmount(m, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) // looked at again
		}
	}
	return fault.New(fault.Exists, "something is mounted below %s", dir)
}

// mountsBelow lists the mounts below a directory, in the order of mounting.
func mountsBelow(dir string) ([]string, error) {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	var found []string
	for line := range strings.Lines(string(info)) {
		if f := strings.Fields(line); len(f) > 4 {
			if m := unescape.Replace(f[4]); strings.HasPrefix(m, dir+"/") {
				found = append(found, m)
			}
		}
	}
	return found, nil
}

// unescape undoes what mountinfo does to white space in paths.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

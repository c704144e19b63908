package lazyfs

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// mountsBelow lists the mount points of this namespace at or below dir, in the
// order in which they were mounted; one that is covered twice comes twice.
func mountsBelow(dir string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, &fault.Error{Class: fault.Machine, Op: "list mounts", Err: err}
	}
	defer f.Close()
	var points []string
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.SplitN(lines.Text(), " ", 6)
		if len(fields) < 6 {
			continue
		}
		p := unescape(fields[4])
		if p == dir || strings.HasPrefix(p, dir+"/") {
			points = append(points, p)
		}
	}
	return points, lines.Err()
}

// unescape undoes the kernel's \ooo for blanks and backslashes.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// The places below Options.Dir.
func fuseDir(dir string) string       { return filepath.Join(dir, "fuse") }
func fusePath(dir, id string) string  { return filepath.Join(dir, "fuse", id) }
func imagesDir(dir string) string     { return filepath.Join(dir, "images") }
func imagePath(dir, id string) string { return filepath.Join(dir, "images", id) }
func holderSocket(dir string) string  { return filepath.Join(dir, "holder.sock") }
func holderLock(dir string) string    { return filepath.Join(dir, "holder.lock") }

// detachAll takes down everything that was ever mounted below dir, whoever uses
// it. It is safe to call with nothing there.
func detachAll(dir string) error {
	// FUSE first, by force: that aborts its connection, and reads that nobody
	// will answer fail. Until they do, unmounting an image would wait for them.
	err := detach(fuseDir(dir), unix.MNT_FORCE|unix.MNT_DETACH)
	err = errors.Join(err, detach(imagesDir(dir), unix.MNT_DETACH))
	entries, _ := os.ReadDir(imagesDir(dir))
	for _, e := range entries {
		os.Remove(imagePath(dir, e.Name())) // only if empty: never what shows through
	}
	return err
}

// detach unmounts all at and below dir, the newest first.
func detach(dir string, flags int) error {
	points, err := mountsBelow(dir)
	for _, p := range slices.Backward(points) {
		if e := unix.Unmount(p, flags); e != nil && e != unix.EINVAL {
			err = errors.Join(err, fault.Wrap(e, "unmount", p))
		}
	}
	return err
}

package server

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// prepareRun makes the run directory; fresh is whether there was none.
func prepareRun(p Paths) (fresh bool, err error) {
	if err := os.MkdirAll(filepath.Dir(p.Run), 0o700); err != nil {
		return false, fault.Wrap(err, "create run directory", p.Run)
	}
	err = os.Mkdir(p.Run, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return false, fault.Wrap(os.Chmod(p.Run, 0o700), "close to others", p.Run)
	}
	return err == nil, fault.Wrap(err, "create run directory", p.Run)
}

// removeRun takes the run directory away, and with it what is still mounted there
// in this namespace: never does it delete through a mount.
func removeRun(p Paths) error {
	if _, err := os.Lstat(p.Run); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := detachBelow(p.Run); err != nil {
		return err
	}
	if err := os.RemoveAll(p.Run); err != nil {
		return fault.Wrap(err, "remove run directory", p.Run)
	}
	_ = os.Remove(filepath.Dir(p.Run)) // if it was the last
	return nil
}

// detachBelow unmounts all below dir, the latest first, and makes sure.
func detachBelow(dir string) error {
	points, err := mountsBelow(dir)
	if err != nil {
		return fault.Wrap(err, "list mounts below", dir)
	}
	for _, at := range slices.Backward(points) {
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			return fault.Wrap(err, "unmount", at)
		}
	}
	if points, err = mountsBelow(dir); err != nil || len(points) > 0 {
		return fault.New(fault.Internal, "mounts stay below %s: %s", dir, strings.Join(points, ", "))
	}
	return nil
}

// mountsBelow lists the mount points strictly below dir in this mount namespace.
func mountsBelow(dir string) (points []string, err error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		if at := unescape(fields[4]); strings.HasPrefix(at, dir+"/") {
			points = append(points, at)
		}
	}
	return points, lines.Err()
}

// unescape reads the kernel's octal escapes of blanks and backslashes (\040).
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

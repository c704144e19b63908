package gvisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/sandbox"
)

func (r *Runtime) scratchDir(id string) string { return filepath.Join(r.options.Scratch, id) }
func (r *Runtime) mergedDir(id string) string  { return filepath.Join(r.bundleDir(id), "root") }

// prepareRoot gives the directory that the sandbox runs on. That is the spec's own
// wherever possible. An overlay of the host's kernel comes over it in two cases.
//
// A mount point is missing: runsc binds on the host's side of the root, and cannot
// make the directory on a read-only one. Images have /etc/resolv.conf or not.
//
// The spec asks for Upper. gVisor has a writable overlay of its own and can export
// it, but only while the sandbox runs, and it lives in memory: what a build step
// installs does not belong there.
func (r *Runtime) prepareRoot(s sandbox.Spec) (string, error) {
	fi, err := os.Stat(s.Rootfs)
	if err != nil || !fi.IsDir() {
		return "", fault.New(fault.Invalid, "root %s of sandbox %s is not a directory", s.Rootfs, s.ID)
	}
	points, err := r.mountPoints(s)
	if err != nil {
		return "", err
	}
	if len(points) == 0 && !s.Upper {
		return s.Rootfs, nil
	}
	lower := escape(s.Rootfs)
	if len(points) > 0 {
		layer := filepath.Join(r.bundleDir(s.ID), "points")
		if err := makePoints(layer, s.Rootfs, points); err != nil {
			return "", fault.Wrap(err, "make mount points of", "sandbox "+s.ID)
		}
		lower = escape(layer) + ":" + lower
	}
	merged := r.mergedDir(s.ID)
	if err := os.Mkdir(merged, 0o700); err != nil {
		return "", fault.Wrap(err, "prepare", "root of sandbox "+s.ID)
	}
	flags := uintptr(unix.MS_NODEV | unix.MS_NOSUID)
	options := "lowerdir=" + lower
	if s.Upper {
		writable, err := r.upperOptions(s)
		if err != nil {
			return "", err
		}
		options += writable
	} else {
		flags |= unix.MS_RDONLY
	}
	if err := unix.Mount("overlay", merged, "overlay", flags, options); err != nil {
		return "", fault.New(fault.Machine, "mount root of sandbox %s: %w", s.ID, err)
	}
	return merged, nil
}

// upperOptions makes the directories of the writable layer.
func (r *Runtime) upperOptions(s sandbox.Spec) (string, error) {
	upper, work := filepath.Join(r.scratchDir(s.ID), "upper"), filepath.Join(r.scratchDir(s.ID), "work")
	for _, d := range []string{upper, work} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return "", fault.Wrap(err, "prepare", "writable layer of sandbox "+s.ID)
		}
	}
	// The upper directory becomes the root directory inside: it has to look like it.
	if err := copyAttributes(s.Rootfs, upper); err != nil {
		return "", fault.Wrap(err, "prepare", "writable layer of sandbox "+s.ID)
	}
	// Off: what would make the upper directory more than the plain convention.
	return fmt.Sprintf(",upperdir=%s,workdir=%s,redirect_dir=off,metacopy=off,index=off,xino=off",
		escape(upper), escape(work)), nil
}

// releaseRoot unmounts what prepareRoot may have mounted.
func (r *Runtime) releaseRoot(id string) error {
	err := unix.Unmount(r.mergedDir(id), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err == nil || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return fault.Wrap(err, "unmount", "root of sandbox "+id)
}

// point is a mount point that the root lacks.
type point struct {
	path string // inside, clean, without symbolic links
	dir  bool
}

// mountPoints lists the missing ones. With Upper also those of the file systems
// that the sentry mounts itself, because it would make the directories in the layer.
func (r *Runtime) mountPoints(s sandbox.Spec) ([]point, error) {
	var missing []point
	add := func(target string, dir bool) error {
		path, err := resolveIn(s.Rootfs, target)
		if err != nil {
			return fault.New(fault.Invalid, "mount point %s of sandbox %s: %w", target, s.ID, err)
		}
		fi, err := os.Lstat(filepath.Join(s.Rootfs, path))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			missing = append(missing, point{path, dir})
		case errors.Is(err, unix.ENOTDIR):
			return inTheWay("the image has a file above %s, where Brisk mounts something", target)
		case err != nil:
			return fault.New(fault.Invalid, "mount point %s of sandbox %s: %w", target, s.ID, err)
		case dir && !fi.IsDir():
			return inTheWay("the image has %s as a file, and Brisk mounts a directory there", target)
		case !dir && fi.IsDir():
			return inTheWay("the image has %s as a directory, and Brisk mounts a file there", target)
		}
		return nil
	}
	for _, m := range s.Mounts {
		fi, err := os.Stat(m.Source)
		if err != nil {
			return nil, fault.New(fault.Invalid, "mount on %s of sandbox %s: %w", m.Target, s.ID, err)
		}
		// A target below another mount is made on that one, by runsc.
		if below(m.Target, s.Mounts) {
			continue
		}
		if err := add(m.Target, fi.IsDir()); err != nil {
			return nil, err
		}
	}
	if s.Upper {
		for _, d := range []string{"/proc", "/sys", "/dev", "/tmp"} {
			if err := add(d, true); err != nil {
				return nil, err
			}
		}
	}
	return missing, nil
}

// inTheWay is the error for a root that has something else where a mount has to be.
func inTheWay(format, target string) error {
	return fault.New(fault.Invalid, format, target).WithHint("Remove that from the image.")
}

func below(target string, mounts []sandbox.Mount) bool {
	for _, m := range mounts {
		if strings.HasPrefix(filepath.Clean(target), filepath.Clean(m.Target)+"/") {
			return true
		}
	}
	return false
}

// resolveIn follows the symbolic links in path as a process would whose root
// directory is root. What does not exist is taken as it is.
func resolveIn(root, path string) (string, error) {
	resolved := "/"
	rest := strings.Split(path, "/")
	for links := 0; len(rest) > 0; {
		c := rest[0]
		rest = rest[1:]
		switch c {
		case "", ".":
			continue
		case "..":
			resolved = filepath.Dir(resolved)
			continue
		}
		next := filepath.Join(resolved, c)
		target, err := os.Readlink(filepath.Join(root, next))
		if err != nil {
			resolved = next // no link, or nothing at all
			continue
		}
		if links++; links > 40 {
			return "", unix.ELOOP
		}
		if filepath.IsAbs(target) {
			resolved = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return resolved, nil
}

// makePoints builds a layer that holds the mount points and the directories above
// them, which look as they do in the root.
func makePoints(layer, root string, points []point) error {
	if err := os.Mkdir(layer, 0o755); err != nil {
		return err
	}
	if err := copyAttributes(root, layer); err != nil {
		return err
	}
	for _, p := range points {
		if err := makeAbove(layer, root, p.path); err != nil {
			return err
		}
		at := filepath.Join(layer, p.path)
		var err error
		if p.dir {
			err = os.Mkdir(at, 0o755)
		} else {
			err = os.WriteFile(at, nil, 0o644)
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

func makeAbove(layer, root, path string) error {
	at := ""
	for c := range strings.SplitSeq(strings.Trim(filepath.Dir(path), "/"), "/") {
		at = filepath.Join(at, c)
		switch err := os.Mkdir(filepath.Join(layer, at), 0o755); {
		case errors.Is(err, fs.ErrExist):
			continue
		case err != nil:
			return err
		}
		err := copyAttributes(filepath.Join(root, at), filepath.Join(layer, at))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// copyAttributes gives a directory the owner and mode of another.
func copyAttributes(from, to string) error {
	var st unix.Stat_t
	if err := unix.Stat(from, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: from, Err: err}
	}
	return errors.Join(os.Chown(to, int(st.Uid), int(st.Gid)), unix.Chmod(to, st.Mode&0o7777))
}

// escape protects the characters that have a meaning in overlay's options.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `,`, `\,`, `:`, `\:`).Replace(path)
}

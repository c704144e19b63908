package fidelity

import (
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"
)

// file is everything that the kernel says of one file, in words that can be
// compared and read.
type file struct {
	kind    string // as in ls -l: - d l c b p s
	mode    string // the twelve permission bits, octal
	owner   string // uid:gid
	mtime   string // seconds and nanoseconds
	size    int64  // of regular files
	rdev    string // of devices
	link    string // of symbolic links
	same    string // the first name, in the order of paths, of the same inode
	links   uint64 // of what is not a directory
	xattrs  string // sorted, quoted
	content string // digest, of regular files
}

// survey looks at every file below root, the root itself included. Paths are
// relative and as bytes. It never follows a link.
func survey(root string) (map[string]file, error) {
	out := map[string]file{}
	first := map[uint64]string{}
	var walk func(rel string) error
	walk = func(rel string) error {
		path := filepath.Join(root, rel)
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return &os.PathError{Op: "lstat", Path: path, Err: err}
		}
		f := file{
			mode:  fmt.Sprintf("%04o", st.Mode&0o7777),
			owner: fmt.Sprintf("%d:%d", st.Uid, st.Gid),
			mtime: fmt.Sprintf("%d.%09d", st.Mtim.Sec, st.Mtim.Nsec),
		}
		var err error
		if f.xattrs, err = xattrs(path); err != nil {
			return err
		}
		kind := st.Mode & unix.S_IFMT
		if kind != unix.S_IFDIR {
			f.links = st.Nlink
			if name, again := first[st.Ino]; again {
				f.same = name
			} else {
				first[st.Ino] = rel
			}
		}
		switch kind {
		case unix.S_IFDIR:
			f.kind = "d"
			entries, err := os.ReadDir(path)
			if err != nil {
				return err
			}
			slices.SortFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
			for _, e := range entries {
				if err := walk(filepath.Join(rel, e.Name())); err != nil {
					return err
				}
			}
		case unix.S_IFREG:
			f.kind, f.size = "-", st.Size
			if f.same == "" {
				if f.content, err = content(path, st.Size); err != nil {
					return err
				}
			}
		case unix.S_IFLNK:
			f.kind = "l"
			if f.link, err = os.Readlink(path); err != nil {
				return err
			}
		case unix.S_IFCHR, unix.S_IFBLK:
			f.kind = map[uint32]string{unix.S_IFCHR: "c", unix.S_IFBLK: "b"}[kind]
			f.rdev = fmt.Sprintf("%d,%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
		case unix.S_IFIFO:
			f.kind = "p"
		case unix.S_IFSOCK:
			f.kind = "s"
		}
		out[rel] = f
		return nil
	}
	return out, walk(".")
}

// large files are compared in samples, holes being what makes them large here.
const large = 1 << 30

// content is the digest of a file, which must have as many bytes as stat says.
func content(path string, size int64) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := blake3.New()
	if size < large {
		n, err := io.Copy(h, f)
		if err == nil && n != size {
			err = fmt.Errorf("%s has %d bytes, and stat says %d", path, n, size)
		}
		return hex.EncodeToString(h.Sum(nil)[:8]), err
	}
	const step, sample = 61 << 20, 64 << 10
	buf := make([]byte, sample)
	for at := int64(0); at < size; at += step {
		n, err := f.ReadAt(buf, at)
		if err != nil && err != io.EOF {
			return "", err
		}
		_, _ = h.Write(buf[:n])
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

func xattrs(path string) (string, error) {
	list := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, list)
	if err != nil {
		return "", &os.PathError{Op: "listxattr", Path: path, Err: err}
	}
	var out []string
	for name := range strings.SplitSeq(string(list[:n]), "\x00") {
		if name == "" {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			return "", &os.PathError{Op: "getxattr " + name, Path: path, Err: err}
		}
		out = append(out, fmt.Sprintf("%s=%q", name, value[:n]))
	}
	slices.Sort(out)
	return strings.Join(out, " "), nil
}

// differences compares two surveys and describes at most a dozen differences.
func differences(want, got map[string]file) []string {
	var out []string
	paths := map[string]bool{}
	for p := range want {
		paths[p] = true
	}
	for p := range got {
		paths[p] = true
	}
	all := make([]string, 0, len(paths))
	for p := range paths {
		all = append(all, p)
	}
	slices.Sort(all)
	for _, p := range all {
		w, inWant := want[p]
		g, inGot := got[p]
		switch {
		case !inGot:
			out = append(out, fmt.Sprintf("%q is missing: %+v", p, w))
		case !inWant:
			out = append(out, fmt.Sprintf("%q is too much: %+v", p, g))
		case w != g:
			out = append(out, fmt.Sprintf("%q:\n\twant %+v\n\tgot  %+v", p, w, g))
		}
		if len(out) == 12 {
			return append(out, "...")
		}
	}
	return out
}

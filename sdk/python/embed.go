// Package sdk is the Python package brisk, SDK and runner, as it is built into
// the binary: nothing has to be installed on a host or in an image.
//
// The directory that Extract makes is bound read-only into sandboxes, where the
// runner is python3 DIR/brisk/_runner.py, and is a program for the host's Python:
// python3 DIR run FILE. Digest names its content, so
// that a directory named by it never has to change.
package sdk

import (
	"bytes"
	"embed"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// By pattern, not by directory: a directory would bring byte code that a test run left behind.
//
//go:embed __main__.py brisk/*.py brisk/py.typed brisk/_vendor/*.py brisk/_vendor/cloudpickle/*.py brisk/_vendor/cloudpickle/LICENSE
var files embed.FS

type file struct {
	path string // relative, with slashes
	data []byte
}

// content lists the files, sorted by path: fs.WalkDir goes in lexical order.
var content = sync.OnceValue(func() []file {
	var out []file
	err := fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := files.ReadFile(path)
		out = append(out, file{path, data})
		return err
	})
	if err != nil {
		panic("sdk: embedded files can always be read: " + err.Error())
	}
	return out
})

// Digest names the names and contents of all files.
func Digest() store.Digest { return digest() }

var digest = sync.OnceValue(func() store.Digest {
	var b bytes.Buffer
	b.WriteString("brisk sdk v1\n")
	for _, f := range content() {
		for _, s := range [][]byte{[]byte(f.path), f.data} {
			b.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(s))))
			b.Write(s)
		}
	}
	return store.Sum(b.Bytes())
})

// Extract makes dir a directory that holds the package, for PYTHONPATH: world
// readable, since a sandbox's user may be anybody. All of it is there and durable
// when Extract returns, or dir is as it was. One that holds the package already
// stays as it is; files that it has beyond (byte code) do no harm.
func Extract(dir string) error {
	if complete(dir) {
		return nil
	}
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return fault.Wrap(err, "make", parent)
	}
	temp, err := os.MkdirTemp(parent, ".sdk-*")
	if err != nil {
		return fault.Wrap(err, "unpack the SDK into", parent)
	}
	defer os.RemoveAll(temp) // what is left of it: after success, what was in dir before
	fresh := filepath.Join(temp, "new")
	if err := write(fresh); err != nil {
		return fault.Wrap(err, "unpack the SDK into", fresh)
	}
	// An incomplete dir goes first. Should we die in between, the next call finds none and makes it.
	if err := os.Rename(dir, filepath.Join(temp, "old")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.Wrap(err, "replace", dir)
	}
	if err := os.Rename(fresh, dir); err != nil {
		if complete(dir) { // another process was faster
			return nil
		}
		return fault.Wrap(err, "unpack the SDK into", dir)
	}
	return fault.Wrap(syncDir(parent), "sync", parent)
}

// complete reports whether dir holds every file as it should be.
func complete(dir string) bool {
	for _, f := range content() {
		b, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(f.path)))
		if err != nil || !bytes.Equal(b, f.data) {
			return false
		}
	}
	return true
}

func write(dir string) error {
	made := []string{dir}
	if err := mkdir(dir); err != nil {
		return err
	}
	for _, f := range content() {
		path := filepath.Join(dir, filepath.FromSlash(f.path))
		if parent := filepath.Dir(path); made[len(made)-1] != parent {
			if err := mkdir(parent); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			made = append(made, parent)
		}
		if err := writeFile(path, f.data); err != nil {
			return err
		}
	}
	for _, d := range made {
		if err := syncDir(d); err != nil {
			return err
		}
	}
	return nil
}

// mkdir makes a directory that everybody may read, whatever the umask.
func mkdir(path string) error {
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	return os.Chmod(path, 0o755)
}

func writeFile(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

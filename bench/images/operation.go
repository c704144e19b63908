package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// An operation is what is timed on a directory tree. It runs in a process of its
// own, since the one that serves a mount must not map its files; the time is taken
// in there, around the work alone.
const operationArg = "operation"

var operations = map[string]func(root string) (work func() error, err error){
	"find":            find,
	"stat":            statAll,
	"sequential read": sequential,
	"random 4K reads": random,
	"mmap faults":     faults,
}

// timed runs an operation in a process of its own and gives its milliseconds.
func timed(o options, name, root string) (float64, error) {
	if name == "import" {
		return timedImport(o, root)
	}
	cmd := exec.CommandContext(o.ctx, "/proc/self/exe", operationArg, name, root)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("%s of %s: %w: %s", name, root, err, stderr.Bytes())
	}
	var ms float64
	return ms, json.Unmarshal(out, &ms)
}

// timedImport is a whole process: Python from the tree, in the tree.
func timedImport(o options, root string) (float64, error) {
	cmd := exec.CommandContext(o.ctx, "chroot", root, "python3", "-I", "-c", "import numpy, pandas, sklearn.linear_model")
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONDONTWRITEBYTECODE=1", "HOME=/"}
	began := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("import in %s: %w: %s", root, err, out)
	}
	return ms(time.Since(began)), nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// operate is the main function of such a process.
func operate(args []string) {
	work, err := operations[args[0]](args[1])
	began := time.Now()
	if err == nil {
		err = work()
	}
	took := time.Since(began)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(ms(took))
}

func find(root string) (func() error, error) {
	return func() error {
		return filepath.WalkDir(root, func(_ string, _ fs.DirEntry, err error) error { return err })
	}, nil
}

// statAll looks at every file, in the order in which the directories list them.
func statAll(root string) (func() error, error) {
	return func() error {
		return filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			var st unix.Stat_t
			return unix.Lstat(path, &st)
		})
	}, nil
}

// largest lists the paths of the largest regular files, until they have total bytes.
func largest(root string, total int64) ([]string, error) {
	type sized struct {
		path string
		size int64
	}
	var all []sized
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			all = append(all, sized{path, info.Size()})
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b sized) int { return int(b.size - a.size) })
	var out []string
	for _, f := range all {
		if total <= 0 {
			break
		}
		out, total = append(out, f.path), total-f.size
	}
	return out, nil
}

const sequentialBytes = 200 << 20

func sequential(root string) (func() error, error) {
	files, err := largest(root, sequentialBytes)
	buf := make([]byte, 1<<20)
	return func() error {
		for _, path := range files {
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, buf)
			f.Close()
			if err != nil {
				return err
			}
		}
		return nil
	}, err
}

const accesses = 20_000

func random(root string) (func() error, error) {
	f, size, err := one(root)
	if err != nil {
		return nil, err
	}
	buf, r := make([]byte, 4096), rand.New(rand.NewPCG(1, 2))
	return func() error {
		for range accesses {
			if _, err := f.ReadAt(buf, r.Int64N(size/4096)*4096); err != nil && !errors.Is(err, io.EOF) {
				return err
			}
		}
		return nil
	}, nil
}

func faults(root string) (func() error, error) {
	f, size, err := one(root)
	if err != nil {
		return nil, err
	}
	return func() error {
		m, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return err
		}
		_ = unix.Madvise(m, unix.MADV_RANDOM) // one fault a page, but for fault-around
		sum := byte(0)
		for range 4 {
			for at := 0; at < len(m); at += 4096 {
				sum += m[at]
			}
			if err := unix.Madvise(m, unix.MADV_DONTNEED); err != nil { // out of the page table, not of the page cache
				return err
			}
		}
		runtime.KeepAlive(sum)
		return unix.Munmap(m)
	}, nil
}

// one is the largest file, in the page cache as far as it fits.
func one(root string) (*os.File, int64, error) {
	files, err := largest(root, 1)
	if err != nil {
		return nil, 0, err
	}
	f, err := os.Open(files[0])
	if err != nil {
		return nil, 0, err
	}
	size, err := io.Copy(io.Discard, f)
	return f, size, err
}

// Package netns makes network namespaces, keeps them by a bind mount, and runs
// functions inside.
//
// A network namespace belongs to a thread. Go moves goroutines between threads at
// will, so a thread that has changed its namespace must never run anything else:
// here it is locked to one goroutine and ends with it. The process's first thread
// cannot end, and /proc/self speaks of it: it is never used.
package netns

import (
	"errors"
	"io/fs"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// onThread runs f on a thread that ends afterwards.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			// The first thread: stay on it, idle, while another one does the work.
			done <- onThread(f)
			runtime.UnlockOSThread()
			return
		}
		done <- f()
	}()
	return <-done
}

// New makes a namespace, with its loopback down and without IPv6, and binds it to
// path, where no file may be. Nothing is left on an error.
func New(path string) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o600)
	if err != nil {
		return fault.Wrap(err, "make network namespace", path)
	}
	_ = f.Close()
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		for _, conf := range []string{"all", "default"} {
			err := os.WriteFile("/proc/sys/net/ipv6/conf/"+conf+"/disable_ipv6", []byte("1"), 0)
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
				return err
			}
		}
		return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	})
	if err != nil {
		_ = os.Remove(path)
	}
	return fault.Wrap(err, "make network namespace", path)
}

// Do runs f on a thread inside the namespace. f must not start goroutines that
// need to be in there as well.
func Do(path string, f func() error) error {
	return onThread(func() error {
		ns, err := os.Open(path)
		if err != nil {
			return fault.Wrap(err, "enter network namespace", path)
		}
		defer func() { _ = ns.Close() }()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fault.Wrap(err, "enter network namespace", path)
		}
		return f()
	})
}

// Remove unbinds a namespace, which ends when no process is in it. What is not
// there is no error.
func Remove(path string) error {
	err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fault.Wrap(err, "remove network namespace", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.Wrap(err, "remove network namespace", path)
	}
	return nil
}

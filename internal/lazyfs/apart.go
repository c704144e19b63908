package lazyfs

import (
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// apart runs fn on a thread that has no descriptor of this process open, for
// everything that asks our own FUSE mount something: opening its files, and
// mounting images on them.
//
// Once a request is with the server, the kernel lets nobody who waits for the
// answer go, not even when killed. If the server is killed then, its own thread
// that waits would keep the whole table of descriptors, and with it the FUSE
// device, whose closing is what would end the waiting: a process that cannot die,
// and holds the lock of the data directory for ever. A table of its own holds
// nothing. With a holder the next server answers; without, the connection ends.
//
// fn has to do with plain descriptors, since an *os.File asks the runtime's
// poller, and that a FUSE file, too. Those that it leaves open are closed.
func apart(fn func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			// The main thread cannot end, and its table stands for the process's in
			// /proc. While this goroutine has it, no other gets it.
			defer runtime.UnlockOSThread()
			result <- apart(fn)
			return
		}
		err := fault.Wrap(unix.Unshare(unix.CLONE_FILES), "give a thread descriptors of its own", "")
		if err == nil {
			err = fault.Wrap(closeInherited(), "close a thread's descriptors", "")
		}
		if err == nil {
			err = fn()
		}
		result <- err
	}()
	return <-result
}

// closeInherited closes all descriptors of the calling thread but those of the
// runtime's poller, which the runtime wakes from any thread.
func closeInherited() error {
	const list = "/proc/thread-self/fd"
	dir, err := unix.Open(list, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: list, Err: err}
	}
	defer unix.Close(dir)
	var names []string
	for buf := make([]byte, 8<<10); ; {
		n, err := unix.ReadDirent(dir, buf)
		if err != nil {
			return &os.PathError{Op: "list", Path: list, Err: err}
		}
		if n == 0 {
			break
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
	to := make([]byte, 64)
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil || fd == dir {
			continue
		}
		n, err := unix.Readlink(list+"/"+name, to)
		if err == nil && (strings.HasPrefix(string(to[:n]), "anon_inode:[eventpoll]") || strings.HasPrefix(string(to[:n]), "anon_inode:[eventfd]")) {
			continue
		}
		_ = unix.Close(fd) // all that close does here is to let go
	}
	return nil
}

// Package mountns moves this process into a mount namespace of Brisk's own.
//
// A mount namespace belongs to a thread, and a Go program cannot choose its
// threads. So both functions change the namespace of one locked thread and then
// execute the program again: execve ends all other threads, and the process goes
// on with the same pid, arguments, environment and open files (those that are
// not close-on-exec) in the new namespace. They must therefore come first in
// main, before anything that would be a pity to lose.
//
// The namespace is a recursive slave of the one it came from: what is mounted on
// the host later shows up inside, what Brisk mounts stays inside and is gone when
// the last process in it is.
package mountns

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// marker is the environment variable that tells the program, executed again,
// that it is where it wanted to be. Its value is the namespace's identity, so
// that one inherited by a process elsewhere means nothing.
const marker = "BRISK_MOUNT_NAMESPACE"

// entered remembers a marker that was found and removed, so that child processes
// do not inherit it.
var entered bool

// Enter makes sure that the process lives in a mount namespace of its own. It
// returns nil in there; on the way it executes the program again and does not
// return. Needs CAP_SYS_ADMIN.
func Enter() error {
	if inside() {
		return nil
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		runtime.UnlockOSThread()
		return wrap("create a mount namespace", err)
	}
	// From here on this thread differs from the others: it stays locked also on
	// an error, and the program should end.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return wrap("detach the mount namespace from the host's", err)
	}
	return again()
}

// Join moves the process into the mount namespace of process pid (a holder that
// outlived its server). It returns nil in there; on the way it executes the
// program again and does not return. The working directory stays the same path.
func Join(pid int) error {
	there := fmt.Sprintf("/proc/%d/ns/mnt", pid)
	want, err := os.Readlink(there)
	if err != nil {
		return wrap("find the mount namespace", err)
	}
	if here, err := os.Readlink("/proc/self/ns/mnt"); err == nil && here == want {
		inside() // a marker has done its duty
		entered = true
		return nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return wrap("find the working directory", err)
	}
	ns, err := unix.Open(there, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return wrap("open the mount namespace", err)
	}
	defer unix.Close(ns)
	runtime.LockOSThread()
	// Threads of a process share root and working directory, and as long as
	// they do the kernel lets none of them change its mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return wrap("join the mount namespace", err)
	}
	if err := unix.Setns(ns, unix.CLONE_NEWNS); err != nil {
		return wrap("join the mount namespace", err)
	}
	if err := unix.Chdir(dir); err != nil {
		return wrap("return to the working directory", err)
	}
	return again()
}

// inside reports whether this process was executed by Enter or Join.
func inside() bool {
	if v := os.Getenv(marker); v != "" {
		os.Unsetenv(marker)
		here, err := os.Readlink("/proc/self/ns/mnt")
		entered = err == nil && v == here
	}
	return entered
}

// again executes the program on the calling thread, in its present namespace.
func again() error {
	here, err := os.Readlink("/proc/thread-self/ns/mnt")
	if err != nil {
		return wrap("identify the mount namespace", err)
	}
	env := []string{marker + "=" + here}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, marker+"=") {
			env = append(env, v)
		}
	}
	return wrap("execute again in the mount namespace", syscall.Exec(program(), os.Args, env))
}

// program is the path of this program. The link in /proc always works, but makes
// a process that is listed as "exe".
func program() string {
	const link = "/proc/self/exe"
	if path, err := os.Executable(); err == nil {
		a, aerr := os.Stat(path)
		b, berr := os.Stat(link)
		if aerr == nil && berr == nil && os.SameFile(a, b) {
			return path
		}
	}
	return link
}

func wrap(op string, err error) error {
	return (&fault.Error{Class: fault.Machine, Op: op, Err: err}).
		WithHint("Brisk needs root (CAP_SYS_ADMIN) to make mounts of its own; run it with sudo.")
}

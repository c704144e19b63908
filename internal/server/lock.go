package server

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// lock is the right to be the server of a data directory. It ends with the
// process, however that ends, and it is not inherited.
type lock struct{ f *os.File }

// takeLock never waits: a lock that is held is fault.Exists and names the holder.
func takeLock(p Paths) (*lock, error) {
	f, err := os.OpenFile(p.lockFile(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, store.DiskError(err, "open", p.lockFile())
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fault.Wrap(err, "lock", p.lockFile())
		}
		who := "another server"
		if pid := lockHolder(p); pid != 0 {
			who = fmt.Sprintf("the server with pid %d", pid)
		}
		return nil, fault.New(fault.Exists, "%s uses %s", who, p.Data).
			WithHint("`brisk down --data %s` stops it; `--data` with another directory runs one beside it.", p.Data)
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	if err != nil {
		f.Close()
		return nil, fault.Wrap(err, "write", p.lockFile())
	}
	return &lock{f}, nil
}

// release lets the next server in. The file stays: removing it would let two
// servers hold two files of the same name.
func (l *lock) release() { _ = l.f.Close() }

// lockHolder is the pid of the server that holds the lock, 0 if there is none or
// it has not yet said.
func lockHolder(p Paths) int {
	f, err := os.Open(p.lockFile())
	if err != nil {
		return 0
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err == nil {
		return 0 // what it says is about a server of the past
	}
	b := make([]byte, 32)
	n, _ := f.Read(b)
	pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if err != nil || pid <= 1 {
		return 0
	}
	return pid
}

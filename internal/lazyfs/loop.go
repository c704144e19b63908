package lazyfs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// loop is a block device that is open. It is a plain descriptor, see apart.
type loop struct {
	fd   int
	path string
}

func (l loop) close() { _ = unix.Close(l.fd) } // there is nothing to write back

// attachLoop makes a read-only block device of a file, for kernels whose EROFS
// cannot use files themselves. The device goes by itself when nothing has it open
// any more, so the caller closes the result once a mount holds it, and a killed
// server leaves none behind.
func attachLoop(path string, direct bool) (l loop, err error) {
	backing, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return l, fault.Wrap(err, "open", path)
	}
	defer unix.Close(backing)
	control, err := unix.Open("/dev/loop-control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return l, (&fault.Error{Class: fault.Machine, Op: "open loop devices", Err: err}).
			WithHint("Load the kernel module: modprobe loop.")
	}
	defer unix.Close(control)
	config := unix.LoopConfig{Fd: uint32(backing)}
	config.Info.Flags = unix.LO_FLAGS_READ_ONLY | unix.LO_FLAGS_AUTOCLEAR
	if direct {
		config.Info.Flags |= unix.LO_FLAGS_DIRECT_IO
	}
	copy(config.Info.File_name[:len(config.Info.File_name)-1], path)
	// Others take loop devices too; each round means that one was faster.
	for range 64 {
		n, err := unix.IoctlRetInt(control, unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return l, &fault.Error{Class: fault.Machine, Op: "find a free loop device", Err: err}
		}
		l.path = fmt.Sprintf("/dev/loop%d", n)
		if l.fd, err = unix.Open(l.path, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return l, &fault.Error{Class: fault.Machine, Op: "open a loop device", Err: err}
		}
		err = unix.IoctlLoopConfigure(l.fd, &config)
		if err == nil {
			return l, nil
		}
		l.close()
		if !errors.Is(err, unix.EBUSY) {
			return l, &fault.Error{Class: fault.Machine, Op: "set up a loop device for", Object: path, Err: err}
		}
	}
	return l, fault.New(fault.Unavailable, "others keep taking the free loop devices")
}

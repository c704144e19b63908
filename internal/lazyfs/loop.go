package lazyfs

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// attachLoop makes a read-only block device of a file, for kernels whose EROFS
// cannot use files themselves. The device goes by itself when nothing has it open
// any more, so the caller closes the result once a mount holds it, and a killed
// server leaves none behind.
func attachLoop(path string, direct bool) (*os.File, error) {
	backing, err := os.Open(path)
	if err != nil {
		return nil, fault.Wrap(err, "open", path)
	}
	defer backing.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, (&fault.Error{Class: fault.Machine, Op: "open loop devices", Err: err}).
			WithHint("Load the kernel module: modprobe loop.")
	}
	defer control.Close()
	config := unix.LoopConfig{Fd: uint32(backing.Fd())}
	config.Info.Flags = unix.LO_FLAGS_READ_ONLY | unix.LO_FLAGS_AUTOCLEAR
	if direct {
		config.Info.Flags |= unix.LO_FLAGS_DIRECT_IO
	}
	copy(config.Info.File_name[:len(config.Info.File_name)-1], path)
	// Others take loop devices too; each round means that one was faster.
	for range 64 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, &fault.Error{Class: fault.Machine, Op: "find a free loop device", Err: err}
		}
		dev, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDONLY, 0)
		if err != nil {
			return nil, &fault.Error{Class: fault.Machine, Op: "open a loop device", Err: err}
		}
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &config)
		if err == nil {
			return dev, nil
		}
		dev.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, &fault.Error{Class: fault.Machine, Op: "set up a loop device for", Object: path, Err: err}
		}
	}
	return nil, fault.New(fault.Unavailable, "others keep taking the free loop devices")
}

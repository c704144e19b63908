package lazyfs

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// device is the connection to the kernel's side of a FUSE mount. The descriptor
// is a plain number, blocking, because the runtime's poller would make the open
// file, which the holder shares, non-blocking.
type device struct {
	fd int
	session
}

// mountDevice makes a FUSE mount at dir and answers the kernel's INIT.
func mountDevice(dir string) (*device, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, (&fault.Error{Class: fault.Machine, Op: "open", Object: "/dev/fuse", Err: err}).
			WithHint("Load the kernel module: modprobe fuse.")
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions,max_read=%d", fd, maxRead)
	err = unix.Mount("brisk", dir, "fuse.brisk", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options)
	if err != nil {
		unix.Close(fd)
		return nil, &fault.Error{Class: fault.Machine, Op: "mount FUSE at", Object: dir, Err: err}
	}
	d := &device{fd: fd}
	if err := d.init(); err != nil {
		unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH)
		unix.Close(fd)
		return nil, err
	}
	return d, nil
}

// init answers the first request, which the kernel sends with the mount.
func (d *device) init() error {
	buf := make([]byte, requestBytes)
	n, err := d.receive(buf)
	if err != nil {
		return &fault.Error{Class: fault.Machine, Op: "greet FUSE", Err: err}
	}
	r, ok := parseRequest(buf[:n])
	if !ok || r.op != opInit {
		return fault.New(fault.Internal, "FUSE began with request %d of %d bytes", r.op, n)
	}
	body, s := answerInit(r.body)
	if body == nil {
		return fault.New(fault.Machine, "the kernel's FUSE is too old").
			WithHint("Brisk needs Linux 5.16 or later.")
	}
	d.session = s
	return d.reply(r.unique, body)
}

// receive waits for the kernel's next request. unix.ENODEV means that the mount
// is gone, or was aborted.
func (d *device) receive(buf []byte) (int, error) {
	for {
		n, err := unix.Read(d.fd, buf)
		switch err {
		case nil:
			return n, nil
		case unix.EINTR, unix.EAGAIN, unix.ENOENT: // ENOENT: its sender was killed meanwhile
			continue
		case unix.ECONNABORTED:
			err = unix.ENODEV
		}
		return 0, err
	}
}

// reply answers a request. That nobody waits any more is no error.
func (d *device) reply(unique uint64, body []byte) error {
	b := make([]byte, outHeader, outHeader+len(body))
	putHeader(b, unique, 0, len(body))
	_, err := unix.Write(d.fd, append(b, body...))
	return gone(err)
}

// replyData answers a READ with the first n bytes of a buffer's data.
func (d *device) replyData(unique uint64, b buffer, n int) error {
	message := b[dataStart-outHeader : dataStart+n]
	putHeader(message, unique, 0, n)
	_, err := unix.Write(d.fd, message)
	return gone(err)
}

// fail answers a request with an error.
func (d *device) fail(unique uint64, errno syscall.Errno) error {
	b := make([]byte, outHeader)
	putHeader(b, unique, errno, 0)
	_, err := unix.Write(d.fd, b)
	return gone(err)
}

// askAgain has the kernel send every request again that a predecessor took and
// did not answer.
func (d *device) askAgain() error {
	_, err := unix.Write(d.fd, resendMessage())
	return err
}

func (d *device) close() { unix.Close(d.fd) }

func gone(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ECONNABORTED) {
		return nil
	}
	return err
}

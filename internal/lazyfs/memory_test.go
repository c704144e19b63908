package lazyfs

import (
	"io"
	"unsafe"

	"golang.org/x/sys/unix"
)

func addr(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }

// fdReader reads from a plain descriptor.
type fdReader int

func (f fdReader) Read(p []byte) (int, error) {
	n, err := unix.Read(int(f), p)
	if n == 0 && err == nil {
		return 0, io.EOF
	}
	return n, err
}

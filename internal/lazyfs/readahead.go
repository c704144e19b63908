package lazyfs

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// readAheadOf is how far the kernel reads ahead in a file of a filesystem on a block
// device, in bytes, as the machine's owner has it; 0 if that is not known.
func readAheadOf(file string) int {
	var st unix.Stat_t
	if unix.Stat(file, &st) != nil {
		return 0
	}
	b, err := os.ReadFile(fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		return 0
	}
	kib, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return kib << 10
}

// setReadAhead sets how far the kernel reads ahead in the files of the EROFS mount
// at target, for those opened from now on. There is no mount option for it.
func setReadAhead(target string, bytes int) error {
	bdi, err := backingDevice(target)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join("/sys/class/bdi", bdi, "read_ahead_kb"), []byte(strconv.Itoa(bytes>>10)), 0)
}

// backingDevice names what the kernel keeps a mount's read-ahead in: the block
// device by its numbers, or else the mount by a name of its own making.
func backingDevice(target string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(target, &st); err != nil {
		return "", err
	}
	if major := unix.Major(st.Dev); major != 0 {
		return fmt.Sprintf("%d:%d", major, unix.Minor(st.Dev)), nil
	}
	dir, err := os.Open(target)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	// FS_IOC_GETFSSYSFSPATH, from Linux 6.9: a length and "erofs/NAME".
	const getSysfsPath = 0x80811501
	var path struct {
		n    uint8
		name [128]byte
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), getSysfsPath, uintptr(unsafe.Pointer(&path))); errno != 0 {
		return "", os.NewSyscallError("find the mount in sysfs", errno)
	}
	return filepath.Base(string(path.name[:min(int(path.n), len(path.name))])), nil
}

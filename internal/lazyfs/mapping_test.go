package lazyfs

import (
	"io"
	"os"
	"os/exec"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// mapFile names the environment variable that makes the test binary map a file.
const mapFile = "LAZYFS_TEST_MAP"

// mapElsewhere gives the pages of a file that can be had by mapping it; nil for
// one that cannot be read. It maps in another process: see the package's doc.
func mapElsewhere(t *testing.T, path string) [][]byte {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), mapFile+"="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	var pages [][]byte
	for len(out) > 0 {
		there := out[0] == 1
		out = out[1:]
		if !there {
			pages = append(pages, nil)
			continue
		}
		pages = append(pages, out[:4096])
		out = out[4096:]
	}
	return pages
}

// runMap writes for each page of a file 1 and its content, or 0. It asks for huge
// pages, behind which the kernel reads several MiB at once.
func runMap(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	unix.Madvise(mem, unix.MADV_HUGEPAGE)
	unix.Madvise(mem, unix.MADV_POPULATE_READ) // stops at what fails, without a SIGBUS
	resident := make([]byte, len(mem)/4096)
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, address(mem), uintptr(len(mem)), address(resident))
	if errno != 0 {
		return errno
	}
	out := io.Writer(os.Stdout)
	for i, state := range resident {
		if state&1 == 0 {
			if _, err := out.Write([]byte{0}); err != nil {
				return err
			}
			continue
		}
		if _, err := out.Write(append([]byte{1}, mem[i*4096:(i+1)*4096]...)); err != nil {
			return err
		}
	}
	return nil
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }

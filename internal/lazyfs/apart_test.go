package lazyfs

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// askOwn names the environment variable that makes the test binary a server that
// takes the first request of its own thread and does not answer.
const askOwn = "LAZYFS_TEST_ASK"

func runAskOwn(dir string) error {
	d, err := mountDevice(dir)
	if err != nil {
		return err
	}
	go func() {
		_, _ = d.receive(make([]byte, requestBytes))
		fmt.Println("asked")
	}()
	return apart(func() error {
		_, err := unix.Open(dir+"/x", unix.O_RDONLY, 0)
		return err
	})
}

// A server that is killed while it waits for its own answer dies.
func TestAServerThatAsksItselfCanBeKilled(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	// If it does not die after all, it does when the connection is aborted.
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH) })
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), askOwn+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "asked\n", line)
	require.NoError(t, cmd.Process.Kill())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-ended:
		require.Equal(t, syscall.SIGKILL, cmd.ProcessState.Sys().(syscall.WaitStatus).Signal())
	case <-time.After(20 * time.Second):
		require.FailNow(t, "it does not die")
	}
}

func TestApartHasNoDescriptors(t *testing.T) {
	f, err := os.Open(os.Args[0])
	require.NoError(t, err)
	defer f.Close()
	for range 20 { // the runtime has to get on with such threads
		var own, opened int
		require.NoError(t, apart(func() (err error) {
			if _, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); !errors.Is(err, unix.EBADF) {
				return fmt.Errorf("descriptor %d: %w", f.Fd(), err)
			}
			opened, err = unix.Open("/", unix.O_RDONLY, 0)
			own = unix.Gettid()
			return err
		}))
		require.NotEqual(t, unix.Getpid(), own)
		time.AfterFunc(time.Microsecond, func() {})
		_, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0)
		require.NoError(t, err, "it is open here, still; %d was not", opened)
	}
	wrong := errors.New("wrong")
	require.Equal(t, wrong, apart(func() error { return wrong }))
}

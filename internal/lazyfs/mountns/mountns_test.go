package mountns_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/lazyfs/mountns"
)

// The test binary is also the processes that move; the variable says into which
// namespace: "enter", or the pid of one to join.
const role = "MOUNTNS_TEST_ROLE"

func TestMain(m *testing.M) {
	if r := os.Getenv(role); r != "" {
		if err := move(r, os.Args[1]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// move goes where r says, twice, mounts something at dir if it is alone there,
// reports, and lives until its standard input ends.
func move(r, dir string) error {
	for range 2 {
		pid, err := strconv.Atoi(r)
		if err == nil {
			err = mountns.Join(pid)
		} else {
			err = mountns.Enter()
		}
		if err != nil {
			return err
		}
	}
	if r == "enter" {
		if err := unix.Mount("none", dir, "tmpfs", 0, "size=64k"); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "inside"), nil, 0o600); err != nil {
			return err
		}
	} else if err := mountns.Enter(); err != nil { // in the joined one, that is nothing to do
		return err
	}
	ns, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return err
	}
	work, err := os.Getwd()
	if err != nil {
		return err
	}
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		return err
	}
	names, _ := filepath.Glob(filepath.Join(dir, "*"))
	fmt.Printf("pid=%d ns=%s work=%s marker=%q names=%v comm=%s", os.Getpid(), ns, work, os.Getenv("BRISK_MOUNT_NAMESPACE"), names, comm)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// start starts a process that moves, and gives its report by key.
func start(t *testing.T, r, dir, work string) (*exec.Cmd, map[string]string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], dir)
	cmd.Env = append(os.Environ(), role+"="+r)
	cmd.Dir = work
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		require.NoError(t, cmd.Wait())
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err, line)
	report := map[string]string{}
	for field := range strings.FieldsSeq(line) {
		k, v, ok := strings.Cut(field, "=")
		require.True(t, ok, line)
		report[k] = v
	}
	return cmd, report
}

func TestEnterAndJoin(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mount namespaces need root")
	}
	dir, work := t.TempDir(), t.TempDir()
	here, err := os.Readlink("/proc/self/ns/mnt")
	require.NoError(t, err)

	first, a := start(t, "enter", dir, work)
	require.NotEqual(t, here, a["ns"])
	require.Equal(t, strconv.Itoa(first.Process.Pid), a["pid"], "the process stays the same")
	require.Equal(t, work, a["work"])
	require.Equal(t, `""`, a["marker"], "children shall not inherit it")
	require.Equal(t, "["+filepath.Join(dir, "inside")+"]", a["names"])
	require.Equal(t, filepath.Base(os.Args[0])[:min(15, len(filepath.Base(os.Args[0])))], a["comm"])
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left, "the mount stays inside")

	second, b := start(t, a["pid"], dir, work)
	require.Equal(t, a["ns"], b["ns"])
	require.Equal(t, strconv.Itoa(second.Process.Pid), b["pid"])
	require.Equal(t, work, b["work"])
	require.Equal(t, a["names"], b["names"])
}

func TestMarkersOfOthersMeanNothing(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mount namespaces need root")
	}
	t.Setenv("BRISK_MOUNT_NAMESPACE", "mnt:[1]")
	here, err := os.Readlink("/proc/self/ns/mnt")
	require.NoError(t, err)
	_, a := start(t, "enter", t.TempDir(), "/")
	require.NotEqual(t, here, a["ns"])
}

func TestJoiningNobodyFails(t *testing.T) {
	require.Error(t, mountns.Join(1<<22+1))
}

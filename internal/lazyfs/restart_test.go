package lazyfs

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// childConfig names the environment variable that makes the test binary a server
// with one image, to be killed.
const childConfig = "LAZYFS_TEST_SERVER"

type childOptions struct {
	Dir, ID, Meta, Data string
	Device              string // mount natively
	Compat, Hang, Mount bool
	Loops               bool // as with Linux 6.9 to 6.11: loop devices, and yet a holder
	Linger              time.Duration
}

// runChild is the server's main function. It says what has happened in lines on
// standard output: "open", "mounted", "reading".
func runChild(config string) error {
	var c childOptions
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	data, err := os.ReadFile(c.Data)
	if err != nil {
		return err
	}
	fake := &fakeBlocks{data: data}
	img := Image{ID: c.ID, Meta: c.Meta, Blocks: fake}
	var begun <-chan struct{}
	if c.Device != "" {
		img = Image{ID: c.ID, Meta: c.Meta, Device: c.Device}
	}
	if c.Hang {
		begun, _ = fake.hang()
	}
	f, err := Open(context.Background(), Options{
		Dir: c.Dir, Compat: c.Compat, Linger: c.Linger, Holder: []string{os.Args[0], "holder"},
		Lookup: func(_ context.Context, id string) (Image, error) {
			if id != img.ID {
				return Image{}, fault.New(fault.NotFound, "no image %s", id)
			}
			return img, nil
		},
	})
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.loops = f.loops || c.Loops
	f.mu.Unlock()
	fmt.Println("open")
	over := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin) // until the test wants it to close, or has died
		close(over)
	}()
	if c.Mount {
		if _, err := f.Mount(context.Background(), img); err != nil {
			return err
		}
		fmt.Println("mounted")
	}
	if c.Hang {
		select {
		case <-begun:
			fmt.Println("reading")
		case <-over:
		}
	}
	<-over
	return f.Close()
}

type child struct {
	*exec.Cmd
	lines *bufio.Scanner
	stdin io.WriteCloser
}

func startChild(t *testing.T, c childOptions) *child {
	t.Helper()
	config, err := json.Marshal(c)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childConfig+"="+string(config))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	ch := &child{cmd, bufio.NewScanner(out), in}
	t.Cleanup(func() { ch.kill() })
	return ch
}

func (c *child) expect(t *testing.T, line string) {
	t.Helper()
	require.True(t, c.lines.Scan(), "the server ended before it said %q", line)
	require.Equal(t, line, c.lines.Text())
}

func (c *child) kill() {
	c.Process.Kill()
	c.Wait()
}

func (c *child) end(t *testing.T) {
	t.Helper()
	require.NoError(t, c.stdin.Close())
	require.NoError(t, c.Wait())
}

func restartable(t *testing.T, compat bool) (*testImage, childOptions) {
	needRoot(t)
	img := oneFile(t, 1<<20)
	data := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.WriteFile(data, img.fake.data, 0o600))
	c := childOptions{Dir: t.TempDir(), ID: img.ID, Meta: img.Meta, Data: data, Compat: compat, Mount: true, Hang: true, Linger: time.Minute}
	t.Cleanup(func() {
		detachAll(c.Dir)
		if pid, ok := HolderPID(c.Dir); ok {
			unix.Kill(pid, unix.SIGKILL)
			t.Errorf("a holder was left")
		}
	})
	return img, c
}

// reading starts a read of the image's file.
func reading(dir string, img *testImage) <-chan error {
	done := make(chan error, 1)
	go func() {
		got, err := os.ReadFile(filepath.Join(imagePath(dir, img.ID), "file"))
		if err == nil && string(got) != string(img.files["file"]) {
			err = fmt.Errorf("wrong bytes")
		}
		done <- err
	}()
	return done
}

func TestReadersSurviveTheServersDeath(t *testing.T) {
	for name, loops := range map[string]bool{"files": false, "loop devices": true} {
		t.Run(name, func(t *testing.T) { survive(t, loops) })
	}
}

func survive(t *testing.T, loops bool) {
	img, c := restartable(t, false)
	c.Loops = loops
	first := startChild(t, c)
	first.expect(t, "open")
	first.expect(t, "mounted")
	read := reading(c.Dir, img)
	first.expect(t, "reading")
	holder, alive := HolderPID(c.Dir)
	require.True(t, alive)
	require.Equal(t, loops, len(loopsOf(t, fuseDir(c.Dir))) > 0)
	first.kill()

	for range 3 { // each takes the requests of the one before, and dies over them
		c.Mount = false
		next := startChild(t, c)
		next.expect(t, "open")
		next.expect(t, "reading")
		next.kill()
	}

	c.Hang = false
	last := startChild(t, c)
	last.expect(t, "open")
	require.NoError(t, <-read)
	pid, alive := HolderPID(c.Dir)
	require.True(t, alive)
	require.Equal(t, holder, pid)
	last.end(t)
	requireNothingLeft(t, c.Dir)
}

func TestASuccessorKnowsTheMountsOfTheDead(t *testing.T) {
	img, c := restartable(t, false)
	c.Hang = false
	first := startChild(t, c)
	first.expect(t, "open")
	first.expect(t, "mounted")
	first.kill()

	f := open(t, Options{Dir: c.Dir, Holder: []string{os.Args[0], "holder"}})
	require.Equal(t, []string{img.ID}, f.Mounted())
	require.ErrorIs(t, <-reading(c.Dir, img), unix.EIO, "nobody can find the image")
	m := mountImage(t, f, img)
	requireContent(t, m.Path, img)
	m.Release()
	require.Equal(t, 1, f.Sweep())
	require.Eventually(t, func() bool { return len(f.files.list()) == 0 }, 10*time.Second, time.Millisecond)
	requireContent(t, mountImage(t, f, img).Path, img)
}

func TestWithoutASuccessorReadersGetErrors(t *testing.T) {
	img, c := restartable(t, false)
	c.Linger = 50 * time.Millisecond
	server := startChild(t, c)
	server.expect(t, "open")
	server.expect(t, "mounted")
	read := reading(c.Dir, img)
	server.expect(t, "reading")
	server.kill()
	require.ErrorIs(t, <-read, unix.EIO)
	require.Eventually(t, func() bool { _, alive := HolderPID(c.Dir); return !alive }, 10*time.Second, time.Millisecond)
	points, err := mountsBelow(c.Dir)
	require.NoError(t, err)
	require.Empty(t, points)
	f := open(t, Options{Dir: c.Dir, Holder: []string{os.Args[0], "holder"}})
	requireContent(t, mountImage(t, f, img).Path, img)
}

func TestCompatReadersGetErrorsWhenTheServerDies(t *testing.T) {
	img, c := restartable(t, true)
	server := startChild(t, c)
	server.expect(t, "open")
	server.expect(t, "mounted")
	read := reading(c.Dir, img)
	server.expect(t, "reading")
	server.kill()
	require.ErrorIs(t, <-read, unix.EIO)

	f := open(t, Options{Dir: c.Dir, Compat: true})
	requireContent(t, mountImage(t, f, img).Path, img)
}

func TestAKilledHolderIsReplaced(t *testing.T) {
	img, c := restartable(t, false)
	server := startChild(t, c)
	server.expect(t, "open")
	server.expect(t, "mounted")
	read := reading(c.Dir, img)
	server.expect(t, "reading")
	holder, alive := HolderPID(c.Dir)
	require.True(t, alive)
	require.NoError(t, unix.Kill(holder, unix.SIGKILL))
	require.Eventually(t, func() bool {
		pid, alive := HolderPID(c.Dir)
		return alive && pid != holder
	}, 10*time.Second, time.Millisecond)
	server.kill()
	c.Hang, c.Mount = false, false
	next := startChild(t, c)
	next.expect(t, "open")
	require.NoError(t, <-read)
	next.end(t)
	requireNothingLeft(t, c.Dir)
}

func TestOneServerAtATime(t *testing.T) {
	needRoot(t)
	o := Options{Dir: t.TempDir(), Holder: []string{os.Args[0], "holder"}}
	open(t, o)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := Open(ctx, o)
	require.True(t, fault.Is(err, fault.Exists), "%v", err)
}

func TestTheHolderEndsOnSIGTERMWhenNoServerIsThere(t *testing.T) {
	img, c := restartable(t, false)
	c.Hang = false
	server := startChild(t, c)
	server.expect(t, "open")
	server.expect(t, "mounted")
	pid, alive := HolderPID(c.Dir)
	require.True(t, alive)
	for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGHUP, unix.SIGTERM} {
		require.NoError(t, unix.Kill(pid, sig))
	}
	require.NoError(t, <-reading(c.Dir, img), "the server has its mounts still")
	server.kill()
	require.Eventually(t, func() bool { _, alive := HolderPID(c.Dir); return !alive }, 10*time.Second, time.Millisecond)
	points, err := mountsBelow(c.Dir)
	require.NoError(t, err)
	require.Empty(t, points)
}

func TestAHolderThatCannotStartSaysWhy(t *testing.T) {
	needRoot(t)
	o := Options{Dir: t.TempDir(), Holder: []string{"/bin/echo"}}
	_, err := Open(context.Background(), o)
	require.Error(t, err)
	require.Contains(t, err.Error(), "start holder")
	points, _ := mountsBelow(o.Dir)
	require.Empty(t, points)
	require.ErrorContains(t, RunHolder("-nonsense"), "holder: ")
}

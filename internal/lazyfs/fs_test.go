package lazyfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// modes are the ways of the kernels that Brisk runs on.
var modes = map[string]bool{"modern": false, "compat": true}

func eachMode(t *testing.T, test func(t *testing.T, o Options)) {
	needRoot(t)
	for name, compat := range modes {
		t.Run(name, func(t *testing.T) {
			test(t, Options{Dir: t.TempDir(), Compat: compat, Holder: []string{os.Args[0], "holder"}})
		})
	}
}

// open opens and, at the end, closes and looks for what was left behind.
func open(t testing.TB, o Options) *FS {
	t.Helper()
	others := goleak.IgnoreCurrent()
	f, err := Open(context.Background(), o)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, f.Close())
		requireNothingLeft(t, o.Dir)
		goleak.VerifyNone(t, others)
	})
	return f
}

func requireNothingLeft(t testing.TB, dir string) {
	t.Helper()
	points, err := mountsBelow(dir)
	require.NoError(t, err)
	require.Empty(t, points, "mounts")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left, "files")
	require.Empty(t, loopsOf(t, dir), "loop devices")
	_, alive := HolderPID(dir)
	require.False(t, alive, "holder")
}

// loopsOf lists the loop devices over files below dir.
func loopsOf(t testing.TB, dir string) (found []string) {
	names, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	require.NoError(t, err)
	for _, n := range names {
		if b, err := os.ReadFile(n); err == nil && strings.HasPrefix(string(b), dir+"/") {
			found = append(found, n)
		}
	}
	return found
}

func mountImage(t testing.TB, f *FS, img *testImage) *Mount {
	t.Helper()
	m, err := f.Mount(context.Background(), img.Image)
	require.NoError(t, err)
	return m
}

func requireContent(t testing.TB, dir string, img *testImage) {
	t.Helper()
	for name, want := range img.files {
		got, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err, name)
		require.True(t, bytes.Equal(want, got), "content of %s differs", name)
	}
}

func TestFilesReadAsWritten(t *testing.T) {
	eachMode(t, func(t *testing.T, o Options) {
		files := map[string][]byte{}
		for i, n := range []int{0, 1, 4095, 4096, 4097, 131071, 131072, 131073, 3<<20 + 17} {
			files[fmt.Sprint("size-", n)] = noise(uint64(i), n)
		}
		files["the-last"] = noise(10, 10)
		img := makeImage(t, files)
		img.fake.data = img.fake.data[:img.at["the-last"]+10] // a device need not end with a whole block
		f := open(t, o)
		m := mountImage(t, f, img)
		require.Equal(t, filepath.Join(o.Dir, "images", img.ID), m.Path)
		require.Equal(t, []string{img.ID}, f.Mounted())
		require.Zero(t, f.Stats(img.ID).Requests, "mounting reads no data")
		requireContent(t, m.Path, img)
		s := f.Stats(img.ID)
		require.GreaterOrEqual(t, s.Bytes, int64(3<<20))
		require.Zero(t, s.Errors)

		var st unix.Statfs_t
		require.NoError(t, unix.Statfs(m.Path, &st))
		want := int64(unix.ST_RDONLY | unix.ST_NODEV | unix.ST_NOSUID)
		require.Equal(t, want, st.Flags&want)
		require.Equal(t, o.Compat, len(loopsOf(t, filepath.Join(o.Dir, "fuse"))) > 0)
		names, err := os.ReadDir(filepath.Join(o.Dir, "fuse"))
		require.NoError(t, err)
		require.Len(t, names, 1)
		require.Equal(t, img.ID, names[0].Name())
	})
}

func TestManyReadersAtOnce(t *testing.T) {
	eachMode(t, func(t *testing.T, o Options) {
		files := map[string][]byte{}
		for i := range 5 {
			files[fmt.Sprint(i)] = noise(uint64(i), 1<<20+i)
		}
		img := makeImage(t, files)
		o.Memory = 1 // the least that is possible
		m := mountImage(t, open(t, o), img)
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				want := files[fmt.Sprint(i%5)]
				f, err := os.Open(filepath.Join(m.Path, fmt.Sprint(i%5)))
				if err != nil {
					t.Error(err)
					return
				}
				defer f.Close()
				got := make([]byte, 10_000)
				for off := i * 37; off < len(want)-len(got); off += 50_000 {
					if _, err := f.ReadAt(got, int64(off)); err != nil || !bytes.Equal(got, want[off:off+len(got)]) {
						t.Errorf("reader %d at %d: wrong bytes, or %v", i, off, err)
						return
					}
				}
			})
		}
		all.Wait()
	})
}

func TestErrorsFailReadsUntilTheyAreGone(t *testing.T) {
	eachMode(t, func(t *testing.T, o Options) {
		img := oneFile(t, 1<<20)
		f := open(t, o)
		m := mountImage(t, f, img)
		img.fake.set(func(context.Context, int64, int64) error { return fault.New(fault.Corrupt, "a flipped bit") })
		_, err := os.ReadFile(filepath.Join(m.Path, "file"))
		require.ErrorIs(t, err, unix.EIO)
		require.NotZero(t, f.Stats(img.ID).Errors)
		img.fake.set(func(context.Context, int64, int64) error { panic("a bug") })
		_, err = os.ReadFile(filepath.Join(m.Path, "file"))
		require.ErrorIs(t, err, unix.EIO)
		img.fake.set(nil)
		requireContent(t, m.Path, img)
	})
}

// The kernel merges neighbouring pages into one read of the device, and if that
// comes back short, fills the rest with zeros. So no answer may ever be short:
// here the first page of a larger read could come from a cache, and what follows
// cannot be read.
func TestPartOfAReadFailingNeverGivesZeros(t *testing.T) {
	eachMode(t, func(t *testing.T, o Options) {
		const size, at = 2 << 20, 1 << 20
		img := oneFile(t, size)
		m := mountImage(t, open(t, o), img)
		want := img.files["file"]
		f, err := os.Open(filepath.Join(m.Path, "file"))
		require.NoError(t, err)
		defer f.Close()
		device, err := os.Open(fusePath(o.Dir, img.ID))
		require.NoError(t, err)
		defer device.Close()
		require.NoError(t, unix.Fadvise(int(device.Fd()), 0, 0, unix.FADV_RANDOM))
		_, err = device.ReadAt(make([]byte, 4096), at) // now in the FUSE file's page cache
		require.NoError(t, err)
		img.fake.set(func(context.Context, int64, int64) error { return errors.New("no network") })
		got := make([]byte, 64<<10)
		n, err := f.ReadAt(got, at)
		require.ErrorIs(t, err, unix.EIO)
		require.True(t, bytes.Equal(want[at:at+n], got[:n]), "wrong bytes")
	})
}

func TestNoPatternOfBadBlocksGivesWrongBytes(t *testing.T) {
	eachMode(t, func(t *testing.T, o Options) {
		const size = 4 << 20
		img := oneFile(t, size)
		o.ReadAhead = 2 << 20
		m := mountImage(t, open(t, o), img)
		want := img.files["file"]
		path := filepath.Join(m.Path, "file")
		f, err := os.Open(path)
		require.NoError(t, err)
		defer f.Close()
		for bad := int64(0); bad < size; bad += size / 4 {
			require.NoError(t, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
			img.fake.set(func(_ context.Context, off, n int64) error {
				if off <= bad && bad < off+n {
					return errors.New("bad block")
				}
				return nil
			})
			for i, page := range mapElsewhere(t, path) {
				require.True(t, page == nil || bytes.Equal(want[i*4096:(i+1)*4096], page), "bad block at %d: wrong bytes mapped in page %d", bad, i)
			}
			for _, step := range []int64{64 << 10, 2 << 20} {
				buf := make([]byte, step)
				for off := int64(0); off < size; off += step {
					n, err := f.ReadAt(buf, off)
					require.True(t, bytes.Equal(want[off:off+int64(n)], buf[:n]), "bad block at %d: wrong bytes in %d+%d", bad, off, n)
					if err != nil {
						require.ErrorIs(t, err, unix.EIO)
					}
				}
			}
		}
	})
}

func TestReadsHaveADeadline(t *testing.T) {
	needRoot(t)
	img := oneFile(t, 4096)
	f := open(t, Options{Dir: t.TempDir(), Deadline: 20 * time.Millisecond})
	m := mountImage(t, f, img)
	_, release := img.fake.hang()
	defer release()
	_, err := os.ReadFile(filepath.Join(m.Path, "file"))
	require.ErrorIs(t, err, unix.EIO)
}

func TestAHangingImageDoesNotHoldUpAnother(t *testing.T) {
	eachMode(t, func(t *testing.T, o Options) {
		stuck, other := oneFile(t, 64<<20), makeImage(t, map[string][]byte{"other": noise(9, 1<<20)})
		o.Memory = 1
		f := open(t, o)
		m, healthy := mountImage(t, f, stuck), mountImage(t, f, other)
		begun, release := stuck.fake.hang()
		var readers sync.WaitGroup
		for i := range 40 {
			readers.Go(func() {
				file, err := os.Open(filepath.Join(m.Path, "file"))
				if err != nil {
					t.Error(err)
					return
				}
				defer file.Close()
				if _, err := file.ReadAt(make([]byte, 4096), int64(i)*1500_000); err != nil {
					t.Error(err)
				}
			})
		}
		<-begun
		requireContent(t, healthy.Path, other)
		release()
		readers.Wait()
	})
}

func TestCloseEndsHangingReads(t *testing.T) {
	eachMode(t, func(t *testing.T, o Options) {
		img := oneFile(t, 1<<20)
		f := open(t, o)
		m := mountImage(t, f, img)
		begun, release := img.fake.hang()
		defer release()
		read := make(chan error, 1)
		go func() {
			_, err := os.ReadFile(filepath.Join(m.Path, "file"))
			read <- err
		}()
		<-begun
		require.NoError(t, f.Close())
		require.ErrorIs(t, <-read, unix.EIO)
		_, err := f.Mount(context.Background(), img.Image)
		require.True(t, fault.Is(err, fault.Cancelled), "%v", err)
	})
}

func TestKilledReadersDoNotWait(t *testing.T) {
	eachMode(t, func(t *testing.T, o Options) {
		img := oneFile(t, 1<<20)
		m := mountImage(t, open(t, o), img)
		begun, release := img.fake.hang()
		defer release()
		reader := exec.Command("cat", filepath.Join(m.Path, "file"))
		require.NoError(t, reader.Start())
		<-begun
		require.NoError(t, reader.Process.Kill())
		require.EqualError(t, reader.Wait(), "signal: killed")
	})
}

func TestCloseEndsASweepThatWaitsForReadAhead(t *testing.T) {
	eachMode(t, func(t *testing.T, o Options) {
		img := oneFile(t, 1<<20)
		f := open(t, o)
		m := mountImage(t, f, img)
		begun, release := img.fake.hang()
		defer release()
		file, err := os.Open(filepath.Join(m.Path, "file"))
		require.NoError(t, err)
		require.NoError(t, unix.Fadvise(int(file.Fd()), 0, 1<<20, unix.FADV_WILLNEED))
		<-begun
		require.NoError(t, file.Close())
		m.Release()
		swept := make(chan int)
		go func() { swept <- f.Sweep() }()
		require.NoError(t, f.Close())
		<-swept
	})
}

func TestMountsAreSharedAndSweptWhenUnused(t *testing.T) {
	eachMode(t, func(t *testing.T, o Options) {
		img := oneFile(t, 1<<20)
		f := open(t, o)
		var holds [8]*Mount
		var all sync.WaitGroup
		for i := range holds {
			all.Go(func() { holds[i] = mountImage(t, f, img) })
		}
		all.Wait()
		points, err := mountsBelow(imagesDir(o.Dir))
		require.NoError(t, err)
		require.Len(t, points, 1, "one mount for all")
		for _, m := range holds {
			require.Zero(t, f.Sweep())
			m.Release()
			m.Release() // counts once
		}
		file, err := os.Open(filepath.Join(holds[0].Path, "file"))
		require.NoError(t, err)
		require.Zero(t, f.Sweep(), "somebody has a file open")
		require.NoError(t, file.Close())
		require.Equal(t, 1, f.Sweep())
		require.Empty(t, f.Mounted())
		require.Empty(t, loopsOf(t, o.Dir))
		requireContent(t, mountImage(t, f, img).Path, img)
	})
}

func TestUnusedMountsGoByThemselves(t *testing.T) {
	needRoot(t)
	f := open(t, Options{Dir: t.TempDir(), Keep: time.Nanosecond})
	mountImage(t, f, oneFile(t, 4096)).Release()
	require.Eventually(t, func() bool { return len(f.Mounted()) == 0 }, 20*time.Second, 50*time.Millisecond)
}

func TestCyclesLeakNothing(t *testing.T) {
	eachMode(t, func(t *testing.T, o Options) {
		img := oneFile(t, 300_000)
		f := open(t, o)
		cycle := func() {
			m := mountImage(t, f, img)
			requireContent(t, m.Path, img)
			m.Release()
			require.Equal(t, 1, f.Sweep())
		}
		cycle()
		before := openFiles(t)
		for range 100 {
			cycle()
		}
		require.Eventually(t, func() bool { return len(f.files.list()) == 0 }, 10*time.Second, time.Millisecond, "the kernel's last word on a file comes late")
		require.Equal(t, before, openFiles(t))
		left, err := os.ReadDir(imagesDir(o.Dir))
		require.NoError(t, err)
		require.Empty(t, left)
	})
}

func openFiles(t *testing.T) int {
	names, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(names)
}

func TestBadImagesAreRefused(t *testing.T) {
	eachMode(t, func(t *testing.T, o Options) {
		f := open(t, o)
		good := oneFile(t, 4096)
		bad := good.Image
		bad.ID = "../../etc"
		_, err := f.Mount(context.Background(), bad)
		require.True(t, fault.Is(err, fault.Invalid), "%v", err)
		bad = good.Image
		bad.Blocks = nil
		_, err = f.Mount(context.Background(), bad)
		require.True(t, fault.Is(err, fault.Invalid), "%v", err)
		bad = good.Image
		bad.Meta = filepath.Join(t.TempDir(), "none")
		_, err = f.Mount(context.Background(), bad)
		require.True(t, fault.Is(err, fault.NotFound), "%v", err)
		require.NoError(t, os.WriteFile(bad.Meta, make([]byte, 1<<20), 0o600))
		_, err = f.Mount(context.Background(), bad)
		require.True(t, fault.Is(err, fault.Corrupt), "%v", err)
		require.Empty(t, f.Mounted())
		requireContent(t, mountImage(t, f, good).Path, good)
	})
}

func TestReadAheadIsSet(t *testing.T) {
	eachMode(t, func(t *testing.T, o Options) {
		o.ReadAhead = 768 << 10
		m := mountImage(t, open(t, o), oneFile(t, 4096))
		bdi, err := backingDevice(m.Path)
		require.NoError(t, err)
		got, err := os.ReadFile(filepath.Join("/sys/class/bdi", bdi, "read_ahead_kb"))
		require.NoError(t, err)
		require.Equal(t, "768\n", string(got))
	})
}

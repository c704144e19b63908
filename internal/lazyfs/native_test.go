package lazyfs

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image/erofs"
)

// slabFile is a file in which the data of images lies, with something of somebody
// else's in front of each.
type slabFile struct {
	path string
	data []byte
}

// native places an image's data and gives the image as one to be mounted natively.
func (s *slabFile) native(t testing.TB, img *testImage, place string) Image {
	t.Helper()
	s.data = append(s.data, bytes.Repeat([]byte("other"), erofs.BlockSize)...)
	start := uint32(len(s.data) / erofs.BlockSize)
	s.data = append(s.data, img.fake.data...)
	require.NoError(t, os.WriteFile(s.path, s.data, 0o600))
	lazy, err := os.ReadFile(img.Meta)
	require.NoError(t, err)
	meta, err := erofs.Relocate(lazy, uint32(len(s.data)/erofs.BlockSize), func(addr, _ uint32) (uint32, error) { return start + addr, nil })
	require.NoError(t, err)
	n := Image{ID: img.ID + "-" + place, Meta: filepath.Join(t.TempDir(), "native"), Device: s.path}
	require.NoError(t, os.WriteFile(n.Meta, meta, 0o600))
	return n
}

const somewhere, elsewhere = "0123456789abcdef", "fedcba9876543210"

func newSlabFile(t testing.TB) *slabFile { return &slabFile{path: filepath.Join(t.TempDir(), "slab")} }

func mountNative(t testing.TB, f *FS, img Image) *Mount {
	t.Helper()
	m, err := f.Mount(context.Background(), img)
	require.NoError(t, err)
	return m
}

func TestNativeMountsReadTheSlabAlone(t *testing.T) {
	eachMode(t, func(t *testing.T, o Options) {
		one := makeImage(t, map[string][]byte{"empty": {}, "small": noise(1, 5000), "large": noise(2, 3<<20+17)})
		two := makeImage(t, map[string][]byte{"large": noise(3, 3<<20+17)})
		slab := newSlabFile(t)
		nativeOne, nativeTwo := slab.native(t, one, somewhere), slab.native(t, two, somewhere)
		f := open(t, o)
		lazy, m1, m2 := mountImage(t, f, one), mountNative(t, f, nativeOne), mountNative(t, f, nativeTwo)
		require.Equal(t, filepath.Join(o.Dir, "images", nativeOne.ID), m1.Path)
		require.ElementsMatch(t, []string{one.ID, nativeOne.ID, nativeTwo.ID}, f.Mounted())

		var all sync.WaitGroup // side by side, both images out of one file
		for range 4 {
			all.Go(func() { requireContent(t, m1.Path, one) })
			all.Go(func() { requireContent(t, m2.Path, two) })
		}
		all.Wait()
		require.Zero(t, one.fake.reads.Load())
		requireContent(t, lazy.Path, one)
		require.NotZero(t, one.fake.reads.Load())

		var st unix.Statfs_t
		require.NoError(t, unix.Statfs(m1.Path, &st))
		want := int64(unix.ST_RDONLY | unix.ST_NODEV | unix.ST_NOSUID)
		require.Equal(t, want, st.Flags&want)
		require.Equal(t, o.Compat, len(loopsOf(t, filepath.Dir(slab.path))) > 0)
	})
}

// TestNativeReadsLeaveNothingBehind: the page cache has what the image's files
// consist of once, and not a second time as the slab's.
func TestNativeReadsLeaveNothingBehind(t *testing.T) {
	eachMode(t, func(t *testing.T, o Options) {
		img := oneFile(t, 4<<20)
		slab := newSlabFile(t)
		n := slab.native(t, img, somewhere)
		fd, err := os.Open(slab.path)
		require.NoError(t, err)
		defer fd.Close()
		require.NoError(t, fd.Sync())
		require.NoError(t, unix.Fadvise(int(fd.Fd()), 0, 0, unix.FADV_DONTNEED))
		m := mountNative(t, open(t, o), n)
		requireContent(t, m.Path, img)
		require.Less(t, cachedPages(t, fd), 64)
		file, err := os.Open(filepath.Join(m.Path, "file"))
		require.NoError(t, err)
		defer file.Close()
		require.Greater(t, cachedPages(t, file), 900, "of 1024, unless the machine is short of memory")
	})
}

// cachedPages counts the pages of a file that the page cache has.
func cachedPages(t *testing.T, f *os.File) int {
	var stat unix.Cachestat_t
	err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &stat, 0)
	if err == unix.ENOSYS {
		t.Skip("the kernel cannot count cached pages")
	}
	require.NoError(t, err)
	return int(stat.Cache)
}

func TestNativeMountsAreHeldAndSwept(t *testing.T) {
	eachMode(t, func(t *testing.T, o Options) {
		img := oneFile(t, 100_000)
		slab := newSlabFile(t)
		here, there := slab.native(t, img, somewhere), slab.native(t, img, elsewhere)
		f := open(t, o)
		m := mountNative(t, f, here)
		again := mountNative(t, f, here)
		require.Equal(t, m.Path, again.Path)
		moved := mountNative(t, f, there)
		require.NotEqual(t, m.Path, moved.Path, "after its data has moved")
		m.Release()
		moved.Release()
		require.Equal(t, 1, f.Sweep())
		require.Equal(t, []string{here.ID}, f.Mounted())
		require.NoDirExists(t, moved.Path)

		file, err := os.Open(filepath.Join(again.Path, "file"))
		require.NoError(t, err)
		again.Release()
		require.Zero(t, f.Sweep(), "somebody reads a file")
		requireContent(t, again.Path, img)
		require.NoError(t, file.Close())
		require.Equal(t, 1, f.Sweep())
		requireContent(t, mountNative(t, f, there).Path, img)
	})
}

func TestNativeReadersDoNotNoticeTheServersDeath(t *testing.T) {
	for name, compat := range modes {
		t.Run(name, func(t *testing.T) {
			img, c := restartable(t, compat)
			slab := newSlabFile(t)
			n := slab.native(t, img, somewhere)
			c.Hang, c.ID, c.Meta, c.Device = false, n.ID, n.Meta, n.Device
			first := startChild(t, c)
			first.expect(t, "open")
			first.expect(t, "mounted")
			file, err := os.Open(filepath.Join(imagePath(c.Dir, n.ID), "file"))
			require.NoError(t, err)
			defer file.Close()
			requireRead := func() {
				t.Helper()
				require.NoError(t, unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED))
				got, err := io.ReadAll(io.NewSectionReader(file, 0, 1<<30))
				require.NoError(t, err)
				require.True(t, bytes.Equal(img.files["file"], got))
			}
			requireRead()
			first.kill()
			requireRead()
			if !compat {
				requireContent(t, imagePath(c.Dir, n.ID), img)
				f, err := Open(context.Background(), Options{Dir: c.Dir, Holder: []string{os.Args[0], "holder"}})
				require.NoError(t, err)
				require.Equal(t, []string{n.ID}, f.Mounted(), "and it is known to the next server")
				m := mountNative(t, f, n)
				require.Equal(t, imagePath(c.Dir, n.ID), m.Path)
				holder, alive := HolderPID(c.Dir)
				require.True(t, alive)
				require.NoError(t, unix.Kill(holder, unix.SIGKILL))
				requireRead()
				require.Eventually(t, func() bool { p, alive := HolderPID(c.Dir); return alive && p != holder }, 10*time.Second, time.Millisecond)
				require.NoError(t, f.Close())
			}
			// All that knew of it is gone; a process that has a file open reads on.
			f := open(t, Options{Dir: c.Dir, Compat: compat})
			require.Empty(t, f.Mounted())
			requireRead()
		})
	}
}

func TestBadNativeImagesAreRefused(t *testing.T) {
	eachMode(t, func(t *testing.T, o Options) {
		img := oneFile(t, 4096)
		slab := newSlabFile(t)
		good := slab.native(t, img, somewhere)
		f := open(t, o)
		for name, change := range map[string]func(*Image){
			"a lazy mount's name":   func(i *Image) { i.ID = img.ID },
			"no places":             func(i *Image) { i.ID = img.ID + "-" },
			"a path":                func(i *Image) { i.ID = img.ID + "-../../../../etc" },
			"a relative device":     func(i *Image) { i.Device = "slab" },
			"options for EROFS":     func(i *Image) { i.Device += ",fsid=1" },
			"a native mount's name": func(i *Image) { i.Device, i.Blocks = "", img.fake },
		} {
			bad := good
			change(&bad)
			_, err := f.Mount(context.Background(), bad)
			require.True(t, fault.Is(err, fault.Invalid), "%s: %v", name, err)
		}
		bad := good
		bad.Device += "gone"
		_, err := f.Mount(context.Background(), bad)
		require.True(t, fault.Is(err, fault.NotFound), "%v", err)
		require.Empty(t, f.Mounted())
		requireContent(t, mountNative(t, f, good).Path, img)
	})
}

package lazyfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestRereadSeesWhatWasRepaired: the slab's bytes change below a native mount that
// has read them, and only the mounts' files leave the page cache for that.
func TestRereadSeesWhatWasRepaired(t *testing.T) {
	eachMode(t, func(t *testing.T, o Options) {
		img := makeImage(t, map[string][]byte{"empty": {}, "bad": noise(1, 3<<20+17), "good": noise(2, 300_000)})
		slab := newSlabFile(t)
		n := slab.native(t, img, somewhere)
		at := int64(bytes.Index(slab.data, img.files["bad"]))
		device, err := os.OpenFile(slab.path, os.O_RDWR, 0)
		require.NoError(t, err)
		defer device.Close()
		_, err = device.WriteAt([]byte("rot"), at+2<<20)
		require.NoError(t, err)
		require.NoError(t, device.Sync())

		f := open(t, o)
		lazy, native := mountImage(t, f, img), mountNative(t, f, n)
		requireContent(t, lazy.Path, img)
		bad, err := os.ReadFile(filepath.Join(native.Path, "bad"))
		require.NoError(t, err)
		require.Equal(t, "rot", string(bad[2<<20:2<<20+3]), "nobody verifies what a native mount reads")
		_, err = os.ReadFile(filepath.Join(native.Path, "good"))
		require.NoError(t, err)
		outside, err := os.Create(filepath.Join(t.TempDir(), "outside"))
		require.NoError(t, err)
		defer outside.Close()
		_, err = outside.Write(noise(3, 1<<20))
		require.NoError(t, err)
		require.NoError(t, outside.Sync())
		require.NotZero(t, cachedPages(t, outside))

		_, err = device.WriteAt(img.files["bad"][2<<20:2<<20+3], at+2<<20)
		require.NoError(t, err)
		require.NoError(t, device.Sync())
		stale, err := os.ReadFile(filepath.Join(native.Path, "bad"))
		require.NoError(t, err)
		require.Equal(t, "rot", string(stale[2<<20:2<<20+3]), "the page cache has it")

		reads := img.fake.reads.Load()
		require.NoError(t, f.Reread(context.Background()))
		for _, dir := range []string{lazy.Path, native.Path} {
			for name := range img.files {
				file, err := os.Open(filepath.Join(dir, name))
				require.NoError(t, err)
				require.Zero(t, cachedPages(t, file), "%s/%s", dir, name)
				require.NoError(t, file.Close())
			}
		}
		require.Equal(t, reads, img.fake.reads.Load(), "it reads nothing itself")
		require.NotZero(t, cachedPages(t, outside), "other filesystems keep theirs")
		requireContent(t, native.Path, img)
		requireContent(t, lazy.Path, img)

		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		require.True(t, errors.Is(f.Reread(ctx), context.Canceled))
	})
}

// A program that has a file mapped keeps its pages; so the promise ends there.
func TestRereadLeavesWhatIsMapped(t *testing.T) {
	eachMode(t, func(t *testing.T, o Options) {
		img := oneFile(t, 64<<10)
		slab := newSlabFile(t)
		m := mountNative(t, open(t, o), slab.native(t, img, somewhere))
		file, err := os.Open(filepath.Join(m.Path, "file"))
		require.NoError(t, err)
		defer file.Close()
		mapped, err := unix.Mmap(int(file.Fd()), 0, 64<<10, unix.PROT_READ, unix.MAP_PRIVATE) // here, since nobody serves a native mount
		require.NoError(t, err)
		require.NoError(t, unix.Madvise(mapped, unix.MADV_POPULATE_READ))
		require.NoError(t, m.fs.Reread(context.Background()))
		require.Equal(t, 16, cachedPages(t, file))
		require.NoError(t, unix.Munmap(mapped))
		require.NoError(t, m.fs.Reread(context.Background()))
		require.Zero(t, cachedPages(t, file))
	})
}

func BenchmarkReread(b *testing.B) {
	needRoot(b)
	files := map[string][]byte{}
	for i := range 30_000 {
		files[fmt.Sprintf("%05d", i)] = noise(uint64(i), 100)
	}
	img := makeImage(b, files)
	slab := newSlabFile(b)
	f := open(b, Options{Dir: b.TempDir(), Holder: []string{os.Args[0], "holder"}})
	mountNative(b, f, slab.native(b, img, somewhere))
	for b.Loop() {
		require.NoError(b, f.Reread(context.Background()))
	}
}

package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image/erofs"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/slab"
	"brisk.dev/brisk/internal/store/storetest"
)

// shuffled is a slab in which chunks lie in no order, with gaps that are full of
// what nobody should ever see.
type shuffled struct {
	t      testing.TB
	w      *world
	path   string
	random *rand.Rand

	mu     sync.Mutex
	places map[store.Digest]uint32
	end    uint32
	pins   map[string]bool
	fail   error
	change func(*slab.Placement)
}

func newShuffled(t testing.TB, w *world) *shuffled {
	s := &shuffled{t: t, w: w, path: filepath.Join(t.TempDir(), "slab"), random: rand.New(rand.NewPCG(1, 2)),
		places: map[store.Digest]uint32{}, pins: map[string]bool{}, end: 1}
	require.NoError(t, os.WriteFile(s.path, bytes.Repeat([]byte{0xee}, store.BlockSize), 0o600))
	return s
}

func (s *shuffled) Place(owner string, chunks []store.Chunk) (slab.Placement, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return slab.Placement{}, s.fail
	}
	f, err := os.OpenFile(s.path, os.O_RDWR, 0)
	require.NoError(s.t, err)
	defer f.Close()
	for _, i := range s.random.Perm(len(chunks)) {
		c := chunks[i]
		if _, ok := s.places[c.Digest]; ok {
			continue
		}
		gap := uint32(s.random.IntN(3))
		data := make([]byte, blocksOf(c.Size)*store.BlockSize)
		_, err := s.w.store.ReadChunk(s.t.Context(), c, data[:c.Size])
		require.NoError(s.t, err)
		data = append(bytes.Repeat([]byte{0xee}, int(gap)*store.BlockSize), data...)
		_, err = f.WriteAt(data, int64(s.end)*store.BlockSize)
		require.NoError(s.t, err)
		s.places[c.Digest] = s.end + gap
		s.end += gap + blocksOf(c.Size)
	}
	p := slab.Placement{File: s.path}
	for _, c := range chunks {
		p.Blocks = append(p.Blocks, s.places[c.Digest])
	}
	s.pins[owner] = true
	if s.change != nil {
		s.change(&p)
	}
	return p, nil
}

func (s *shuffled) Owners() (l []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for o := range s.pins {
		l = append(l, o)
	}
	return l
}

func (s *shuffled) Unpin(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pins, owner)
}

// forget has chunks lie elsewhere the next time.
func (s *shuffled) forget() { clear(s.places) }

// mountAt mounts as lazyfs does.
func mountAt(t testing.TB, meta, device string) string {
	t.Helper()
	mnt := t.TempDir()
	require.NoError(t, unix.Mount(meta, mnt, "erofs", unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOSUID, "device="+device+",directio"))
	t.Cleanup(func() { _ = unix.Unmount(mnt, unix.MNT_DETACH) }) // most tests have done it
	return mnt
}

// mountFlat mounts an image over its whole device as one file, chunks in order.
func mountFlat(t testing.TB, img *Image) string {
	t.Helper()
	meta, err := img.MetaPath(t.Context())
	require.NoError(t, err)
	blocks, err := img.Blocks(t.Context())
	require.NoError(t, err)
	all := make([]byte, blocks.Size())
	require.NoError(t, blocks.ReadAt(t.Context(), all, 0))
	device := filepath.Join(t.TempDir(), "device")
	require.NoError(t, os.WriteFile(device, all, 0o600))
	return mountAt(t, meta, device)
}

func native(t testing.TB, img *Image, s Slab) *NativeImage {
	t.Helper()
	n, err := img.Native(t.Context(), s)
	require.NoError(t, err)
	t.Cleanup(n.Release)
	return n
}

func needRoot(t testing.TB) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
}

func TestNativeMountHasTheSameFiles(t *testing.T) {
	needRoot(t)
	src := t.TempDir()
	zoo(t, src)
	out, err := exec.Command("tar", "-C", src, "-S", "--format=posix", "--xattrs", "--xattrs-include=*", "--numeric-owner", "-cf", "-", ".").Output()
	require.NoError(t, err)
	w := newWorld(t)
	batch := w.store.Begin(t.Context())
	defer batch.Abort()
	tree := NewTree()
	_, err = tree.ApplyTar(t.Context(), bytes.NewReader(out), batch, LayerOptions{})
	require.NoError(t, err)
	img, _, err := w.images.Write(t.Context(), tree, Config{}, batch, DefaultWorkspace, "zoo")
	require.NoError(t, err)

	n := native(t, img, newShuffled(t, w))
	want := survey(t, src)
	require.Greater(t, len(want), 2000)
	require.Equal(t, want, survey(t, mountAt(t, n.Meta, n.Device)))
}

// TestNativeMountsOfRandomTrees compares many images that share one slab, and
// chunks in it, all mounted at once, with what they are mounted over files of their own.
func TestNativeMountsOfRandomTrees(t *testing.T) {
	needRoot(t)
	w := newWorld(t)
	cache := newShuffled(t, w)
	count := 0
	rapid.Check(t, func(r *rapid.T) {
		if count++; count > 30 {
			return // each takes milliseconds of mounting
		}
		var entries []tar.Header
		for i := range rapid.IntRange(0, 20).Draw(r, "files") {
			dir := strings.Repeat("d/", rapid.IntRange(0, 3).Draw(r, "depth"))
			size := rapid.OneOf(rapid.IntRange(0, 3*store.ChunkSize), rapid.SampledFrom([]int{0, 1, 4096, store.ChunkSize, store.ChunkSize + 1})).Draw(r, "size")
			content := storetest.Data(uint64(rapid.IntRange(0, 5).Draw(r, "content")), size)
			if rapid.Bool().Draw(r, "with a hole") {
				clear(content[:len(content)/2])
			}
			entries = append(entries, file(fmt.Sprintf("%sfile%d", dir, i), string(content)))
		}
		img := w.must(fmt.Sprint("tree", count), entries...)
		n := native(t, img, cache)
		if got, want := survey(t, mountAt(t, n.Meta, n.Device)), survey(t, mountFlat(t, img)); fmt.Sprint(got) != fmt.Sprint(want) {
			r.Fatalf("mounted natively it is\n%v\nand should be\n%v", got, want)
		}
	})
}

func TestNativeMetadataIsVerifiedAndMadeAnew(t *testing.T) {
	w := newWorld(t)
	img := w.must("a", file("x", "content"), file("y", string(storetest.Data(1, 300_000))))
	cache := newShuffled(t, w)
	n := native(t, img, cache)
	require.Equal(t, filepath.Join(w.dir, "images", DefaultWorkspace, "native", n.ID+".erofs"), n.Meta)
	require.True(t, strings.HasPrefix(n.ID, img.Digest.String()+"-"))
	good, err := os.ReadFile(n.Meta)
	require.NoError(t, err)

	again := native(t, img, cache)
	require.Equal(t, n.ID, again.ID)

	// What an earlier process left is not trusted.
	bad := bytes.Clone(good)
	bad[len(bad)/2] ^= 1
	require.NoError(t, os.WriteFile(n.Meta, bad, 0o600))
	w.open()
	img, err = w.get("a")
	require.NoError(t, err)
	require.Equal(t, n.ID, native(t, img, cache).ID)
	b, err := os.ReadFile(n.Meta)
	require.NoError(t, err)
	require.True(t, bytes.Equal(good, b))
	require.NoError(t, os.Remove(n.Meta))
	native(t, img, cache)
	require.FileExists(t, n.Meta)

	// Other places are another file, and so is another slab.
	cache.forget()
	moved := native(t, img, cache)
	require.NotEqual(t, n.ID, moved.ID)
	require.FileExists(t, n.Meta)
	f, err := os.OpenFile(cache.path, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("another slab"), 0)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NotEqual(t, moved.ID, native(t, img, cache).ID)
}

func TestNativeNeverMountsAHole(t *testing.T) {
	w := newWorld(t)
	img := w.must("a", file("x", "content"), file("y", string(storetest.Data(1, 300_000))))
	cache := newShuffled(t, w)
	missing := &slab.MissingError{Missing: 1, Total: 4, Bytes: 7}
	cache.fail = missing
	_, err := img.Native(t.Context(), cache)
	require.ErrorIs(t, err, missing)
	cache.fail = nil
	for name, change := range map[string]func(*slab.Placement){
		"no place":             func(p *slab.Placement) { p.Blocks[1] = slab.Hole },
		"too few":              func(p *slab.Placement) { p.Blocks = p.Blocks[1:] },
		"behind the slab":      func(p *slab.Placement) { p.Blocks[0] = 1 << 20 },
		"a slab that is gone":  func(p *slab.Placement) { p.File += "gone" },
		"at the very last one": func(p *slab.Placement) { p.Blocks[0] = slab.Hole - 1 },
	} {
		cache.change = change
		_, err := img.Native(t.Context(), cache)
		require.Error(t, err, name)
	}
	entries, err := os.ReadDir(filepath.Join(w.dir, "images", DefaultWorkspace, "native"))
	require.True(t, errors.Is(err, os.ErrNotExist) || len(entries) == 0, "nothing was made")
	require.Empty(t, w.images.native.held)
	require.Equal(t, 1, w.images.FreeNative(cache))
	require.Empty(t, cache.pins)
}

// TestNativeMetadataNamesWholeChunks: a piece that is no whole chunk would lead
// into the chunk behind it, which may be somebody else's.
func TestNativeMetadataNamesWholeChunks(t *testing.T) {
	chunks := []store.Chunk{{Digest: store.Sum([]byte("a")), Size: 5000}, {Digest: store.Sum([]byte("b")), Size: 1}}
	dev, err := newDevice(chunks)
	require.NoError(t, err)
	p := &places{dev: dev, blocks: []uint32{100, 200}}
	for _, c := range []struct{ addr, size, want uint32 }{
		{0, 5000, 100}, {2, 1, 200}, {0, 5000, 100}, {0, 4999, 0}, {0, 8192, 0}, {1, 904, 0}, {2, 2, 0}, {3, 1, 0}, {erofs.Hole, 1, 0},
	} {
		got, err := p.of(c.addr, c.size)
		require.Equal(t, c.want, got, "%v", c)
		require.Equal(t, c.want == 0, fault.Is(err, fault.Corrupt), "%v", err)
	}
}

func TestNativeImagesAreFreedWhenNobodyHasThem(t *testing.T) {
	needRoot(t)
	w := newWorld(t)
	img := w.must("a", file("x", "content"))
	cache := newShuffled(t, w)
	cache.pins["somebody else"] = true
	n := native(t, img, cache)
	require.Zero(t, w.images.FreeNative(cache), "it is about to be mounted")
	mnt := mountAt(t, n.Meta, n.Device)
	n.Release()
	n.Release()
	require.Zero(t, w.images.FreeNative(cache), "it is mounted")

	// Another process, as a sandbox has one, with the mount in a namespace of its own.
	other := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", "echo there; cat")
	in, err := other.StdinPipe()
	require.NoError(t, err)
	out, err := other.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, other.Start())
	_, err = io.ReadFull(out, make([]byte, 6))
	require.NoError(t, err)
	require.NoError(t, unix.Unmount(mnt, 0))
	w.open() // and after a restart it is no different
	require.Zero(t, w.images.FreeNative(cache), "it is mounted elsewhere")
	require.FileExists(t, n.Meta)
	require.NoError(t, in.Close())
	require.NoError(t, other.Wait())

	require.Equal(t, 1, w.images.FreeNative(cache))
	require.NoFileExists(t, n.Meta)
	require.Equal(t, map[string]bool{"somebody else": true}, cache.pins)
	require.Zero(t, w.images.FreeNative(cache))
}

func TestAnOlderNativeMountKeepsItsChunks(t *testing.T) {
	needRoot(t)
	w := newWorld(t)
	img := w.must("a", file("x", "content"))
	cache := newShuffled(t, w)
	first := native(t, img, cache)
	mnt := mountAt(t, first.Meta, first.Device)
	first.Release()
	cache.forget()
	second := native(t, img, cache)
	second.Release()
	require.Zero(t, w.images.FreeNative(cache), "what the older mount reads is pinned for the same owner")
	require.NoFileExists(t, second.Meta)
	require.FileExists(t, first.Meta)
	b, err := os.ReadFile(filepath.Join(mnt, "x"))
	require.NoError(t, err)
	require.Equal(t, "content", string(b))
	require.NoError(t, unix.Unmount(mnt, 0))
	require.Equal(t, 1, w.images.FreeNative(cache))
}

func TestNativeSideBySide(t *testing.T) {
	w := newWorld(t)
	img := w.must("a", file("x", "content"))
	cache := newShuffled(t, w)
	var all sync.WaitGroup
	ids := make([]string, 8)
	for i := range ids {
		all.Go(func() {
			n, err := img.Native(t.Context(), cache)
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = n.ID
			n.Release()
		})
	}
	all.Go(func() { w.images.FreeNative(cache) })
	all.Wait()
	require.Len(t, slices.Compact(ids), 1)
	require.LessOrEqual(t, w.images.FreeNative(cache), 1)
	require.Empty(t, cache.pins)
}

package node

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/lazyfs"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/slab"
	"brisk.dev/brisk/internal/store/storetest"
)

// site is a machine with images, and kernel mounts of them, but no sandboxes.
type site struct {
	*mounts
	t      *testing.T
	cache  *slab.Slab
	origin *storetest.Faults
	store  *store.Store
	images *image.Images
	fs     *lazyfs.FS
	filled chan string // digests of images, after each attempt to complete them
}

type siteOptions struct {
	limit   int64
	noFill  bool
	compat  bool
	idle    time.Duration
	slab    func(Slab) Slab // wraps
	profile *image.Profiles
}

func newSite(t *testing.T, o siteOptions) *site {
	if os.Getuid() != 0 {
		t.Skip("mounts need root")
	}
	leaks := goleak.IgnoreCurrent()
	dir, log := t.TempDir(), storetest.Log(t)
	t.Cleanup(func() { goleak.VerifyNone(t, leaks) })
	cache, err := slab.Open(slab.Options{Dir: filepath.Join(dir, "cache"), Limit: o.limit, Log: log})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cache.Close()) })
	s := &site{t: t, cache: cache, filled: make(chan string, 100)}
	origin := &storetest.Faults{Origin: storetest.NewMemOrigin()}
	s.origin = origin
	stores := storetest.Workspaces(t, store.WorkspacesOptions{Dir: filepath.Join(dir, "packs"), Origin: origin, Cache: cache})
	s.store = storetest.Store(t, stores, image.DefaultWorkspace)
	s.images, err = image.Open(t.Context(), image.Options{Dir: filepath.Join(dir, "images"), Stores: stores, Log: log})
	require.NoError(t, err)
	s.fs, err = lazyfs.Open(t.Context(), lazyfs.Options{Dir: t.TempDir(), Compat: o.compat, Log: log})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.fs.Close()) })
	var wrapped Slab = cache
	if o.slab != nil {
		wrapped = o.slab(cache)
	}
	s.mounts = newMounts(Options{
		Images: s.images, FS: s.fs, Slab: wrapped, Fill: !o.noFill, IdleMount: o.idle, Profiles: o.profile, Log: log,
	})
	s.completed = func(digest string) { s.filled <- digest }
	t.Cleanup(s.close)
	return s
}

// image makes one of a file of so many chunks, none of which the cache has.
func (s *site) image(name string, seed uint64, chunks int) *image.Image {
	s.t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	data := storetest.Data(seed, chunks*store.ChunkSize)
	require.NoError(s.t, w.WriteHeader(&tar.Header{Name: "file", Typeflag: tar.TypeReg, Size: int64(len(data)), Mode: 0o644}))
	_, err := w.Write(data)
	require.NoError(s.t, err)
	require.NoError(s.t, w.Close())
	batch := s.store.Begin(s.t.Context())
	defer batch.Abort()
	tree := image.NewTree()
	_, err = tree.ApplyTar(s.t.Context(), &b, batch, image.LayerOptions{})
	require.NoError(s.t, err)
	img, _, err := s.images.Write(s.t.Context(), tree, image.Config{}, batch, image.DefaultWorkspace, name)
	require.NoError(s.t, err)
	return img
}

// entryOf is an entry point, "" none.
func entryOf(name string) *entry {
	if name == "" {
		return nil
	}
	return &entry{Entry: image.NewEntry("test", name)}
}

func (s *site) use(name, entry string) *Rootfs {
	s.t.Helper()
	r, err := s.get(s.t.Context(), image.DefaultWorkspace, name, entryOf(entry))
	require.NoError(s.t, err)
	return r
}

// requireFile reads the whole image.
// waitComplete waits until the cache has all of an image that was read.
func (s *site) waitComplete(img *image.Image) {
	for {
		l, err := img.Local(s.t.Context(), s.cache)
		require.NoError(s.t, err)
		if l.Chunks == l.Total {
			return
		}
		runtime.Gosched()
	}
}

func requireFile(t *testing.T, r *Rootfs, seed uint64, chunks int) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(r.Path, "file"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(storetest.Data(seed, chunks*store.ChunkSize), b))
}

func TestTheSecondStartIsNative(t *testing.T) {
	for _, compat := range []bool{false, true} {
		t.Run(fmt.Sprintf("compat=%v", compat), func(t *testing.T) {
			s := newSite(t, siteOptions{compat: compat})
			img := s.image("a", 1, 20)
			first := s.use("a", "x")
			require.False(t, first.Native())
			require.True(t, s.inUse(img.Digest.String()))
			first.Started()
			first.Used()
			require.Equal(t, img.Digest.String(), <-s.filled)
			require.Zero(t, first.Stats().OriginChunks, "nobody has read any of it")

			second := s.use("a", "x")
			require.True(t, second.Native())
			st := s.stats()
			require.Equal(t, []int{1, 1, 2, 0}, []int{st.Lazy, st.Native, st.Used, st.Queued})
			require.EqualValues(t, 1, st.Filled[Filled])
			other := s.use("a", "y")
			require.False(t, other.Native(), "what it reads is not known yet")
			require.Equal(t, first.Path, other.Path)
			requireFile(t, second, 1, 20)
			requireFile(t, first, 1, 20)

			first.Release()
			first.Release()
			require.Zero(t, s.fs.Sweep(), "there is another user of the lazy mount")
			other.Release()
			require.Equal(t, 1, s.fs.Sweep(), "it goes with its last user")
			require.Equal(t, []string{filepath.Base(second.Path)}, s.fs.Mounted())
			second.Release()
			require.Zero(t, s.fs.Sweep(), "the native one is kept for the next start")
			require.True(t, s.use("a", "").Native(), "nobody has to learn of a build step")
		})
	}
}

// TestAnImageIsCompletedAfterItsFirstUse: a start that is ready is about to be used, and
// its first use may be as heavy as the start was.
func TestAnImageIsCompletedAfterItsFirstUse(t *testing.T) {
	s := newSite(t, siteOptions{})
	s.image("a", 1, 5)
	r := s.use("a", "x")
	var asked atomic.Int64
	s.origin.Before(func(context.Context, storetest.Op) error { asked.Add(1); return nil })
	r.Started()
	s.mu.Lock()
	require.Empty(t, s.todo)
	require.Empty(t, s.filling)
	s.mu.Unlock()
	require.Zero(t, asked.Load())
	r.Used()
	<-s.filled
	require.NotZero(t, asked.Load())
	require.True(t, s.use("a", "x").Native())
}

// TestWhatWasNeverUsedIsCompletedWhenItEnds: an instance may have been started for a snapshot.
func TestWhatWasNeverUsedIsCompletedWhenItEnds(t *testing.T) {
	s := newSite(t, siteOptions{})
	s.image("a", 1, 5)
	failed := s.use("a", "y")
	failed.Release()
	s.mu.Lock()
	require.Empty(t, s.todo, "it has not started")
	require.Empty(t, s.filling)
	s.mu.Unlock()
	r := s.use("a", "x")
	r.Started()
	r.Release()
	<-s.filled
	require.True(t, s.use("a", "x").Native())
}

func TestACompleteImageIsLearntFromBeforeItIsNative(t *testing.T) {
	s := newSite(t, siteOptions{noFill: true})
	img := s.image("a", 1, 5)
	first := s.use("a", "x")
	requireFile(t, first, 1, 5)
	s.waitComplete(img)
	again := s.use("a", "x")
	require.False(t, again.Native())
	again.Started()
	again.Used()
	<-s.filled
	require.True(t, s.use("a", "x").Native())
}

func TestAnIncompleteImageStaysLazy(t *testing.T) {
	s := newSite(t, siteOptions{noFill: true})
	img := s.image("a", 1, 20)
	r := s.use("a", "x")
	r.Started()
	r.Used()
	<-s.filled
	r = s.use("a", "x")
	require.False(t, r.Native())
	requireFile(t, r, 1, 20)
	s.waitComplete(img)
	require.True(t, s.use("a", "x").Native(), "what was read last was the last that was missing")
}

func TestFillingStopsWhenTheCacheIsFull(t *testing.T) {
	s := newSite(t, siteOptions{limit: 16 << 20})
	img := s.image("large", 1, 200)
	r := s.use("large", "x")
	r.Started()
	r.Used()
	<-s.filled
	st := s.stats()
	require.Equal(t, map[Filling]int64{Filled: 0, NoRoom: 1, Failed: 0, Cancelled: 0}, st.Filled)
	require.Equal(t, []int{1, 0, 1, 0}, []int{st.Lazy, st.Native, st.Used, st.Queued})
	l, err := img.Local(t.Context(), s.cache)
	require.NoError(t, err)
	require.Less(t, l.Chunks, l.Total)
	require.False(t, s.use("large", "x").Native())
	requireFile(t, r, 1, 200)
}

// TestEvictionSparesWhatIsMounted has other images pass through a small cache.
func TestEvictionSparesWhatIsMounted(t *testing.T) {
	s := newSite(t, siteOptions{limit: 16 << 20, noFill: true})
	lazy, native := s.image("lazy", 1, 20), s.image("native", 2, 20)
	l, n := s.use("lazy", "x"), s.use("native", "x")
	requireFile(t, l, 1, 20)
	requireFile(t, n, 2, 20)
	s.waitComplete(lazy)
	s.waitComplete(native)
	n.Started()
	n.Used()
	<-s.filled
	n = s.use("native", "x")
	require.True(t, n.Native())
	for i := range 4 {
		name := fmt.Sprint("passing", i)
		s.image(name, uint64(100+i), 60)
		r := s.use(name, "x")
		requireFile(t, r, uint64(100+i), 60)
		r.Release()
		s.forget(filepath.Base(r.Path))
	}
	require.NotZero(t, s.cache.Stats().Evicted)
	for _, img := range []*image.Image{lazy, native} {
		local, err := img.Local(t.Context(), s.cache)
		require.NoError(t, err)
		require.Equal(t, local.Total, local.Chunks)
	}
}

// slowSlab verifies for as long as a test wants.
type slowSlab struct {
	Slab
	gate   chan struct{}
	placed atomic.Int64
}

func (s *slowSlab) Place(owner string, chunks []store.Chunk) (slab.Placement, error) {
	s.placed.Add(1)
	<-s.gate
	return s.Slab.Place(owner, chunks)
}

func TestAStartDoesNotWaitForVerification(t *testing.T) {
	slow := &slowSlab{gate: make(chan struct{})}
	s := newSite(t, siteOptions{slab: func(inner Slab) Slab { slow.Slab = inner; return slow }})
	img := s.image("a", 1, 5)
	requireFile(t, s.use("a", ""), 1, 5)
	s.waitComplete(img)
	require.False(t, s.use("a", "").Native())
	require.False(t, s.use("a", "").Native())
	require.EqualValues(t, 1, slow.placed.Load())
	close(slow.gate)
	require.Eventually(t, func() bool { return s.use("a", "").Native() }, 10*time.Second, time.Millisecond)
}

func TestIdleImagesAreGivenUp(t *testing.T) {
	s := newSite(t, siteOptions{idle: 50 * time.Millisecond})
	s.image("a", 1, 5)
	r := s.use("a", "x")
	r.Started()
	r.Used()
	<-s.filled
	r.Release()
	require.Eventually(t, func() bool { s.fs.Sweep(); return len(s.fs.Mounted()) == 0 }, 10*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return len(s.cache.Owners()) == 0 }, 10*time.Second, time.Millisecond)
	require.Zero(t, s.cache.Stats().Pinned)
	r = s.use("a", "x")
	require.True(t, r.Native())
	requireFile(t, r, 1, 5)
}

// TestMountsOfTheDeadKeepTheirPins: what an earlier node has mounted natively stays
// in the cache until it is unmounted, and is used again.
func TestMountsOfTheDeadKeepTheirPins(t *testing.T) {
	s := newSite(t, siteOptions{})
	img := s.image("a", 1, 5)
	r := s.use("a", "x")
	r.Started()
	r.Used()
	<-s.filled
	r = s.use("a", "")
	require.True(t, r.Native())
	s.stop() // and nothing else: it died
	s.work.Wait()

	next := newMounts(Options{Images: s.images, FS: s.fs, Slab: s.cache, Log: s.log})
	defer next.close()
	owner := "native/" + image.DefaultWorkspace + "/" + img.Digest.String()
	require.Equal(t, []string{owner}, s.cache.Owners())
	again, err := next.get(t.Context(), image.DefaultWorkspace, "a", nil)
	require.NoError(t, err)
	require.Equal(t, r.Path, again.Path)
	again.Release()
	r.Release()
	next.forget(img.Digest.String())
	s.forget(img.Digest.String())
	require.Equal(t, 1, s.fs.Sweep())
	next.free()
	require.Empty(t, s.cache.Owners())
}

func TestRemovingAnImageEndsItsCompletion(t *testing.T) {
	s := newSite(t, siteOptions{})
	img := s.image("a", 1, 10)
	asked := make(chan struct{}, 100)
	s.origin.Before(func(ctx context.Context, op storetest.Op) error {
		if op.Name == "read" || op.Name == "open" {
			asked <- struct{}{}
			<-ctx.Done()
		}
		return ctx.Err()
	})
	r := s.use("a", "x")
	r.Started()
	r.Used()
	<-asked
	r.Release()
	s.forget(img.Digest.String())
	<-s.filled
	require.Equal(t, 1, s.fs.Sweep())
}

func TestManyStartsAtOnce(t *testing.T) {
	s := newSite(t, siteOptions{})
	img := s.image("a", 1, 10)
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			r, err := s.get(context.Background(), image.DefaultWorkspace, "a", entryOf(fmt.Sprint(i%3)))
			if err != nil {
				t.Error(err)
				return
			}
			requireFile(t, r, 1, 10)
			r.Started()
			r.Release()
		})
	}
	all.Wait()
	require.False(t, s.inUse(img.Digest.String()))
	<-s.filled
	require.True(t, s.use("a", "0").Native())
}

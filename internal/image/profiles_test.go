package image

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/seal"
	"brisk.dev/brisk/internal/store/storetest"
)

// records are those of one bucket.
type records struct {
	mu   sync.Mutex
	next int
	by   map[string]record
}

type record struct {
	data    []byte
	version store.Version
}

// machine is one machine: a store with an empty cache over the shared origin.
type machine struct {
	*store.Store
	stores   *store.Workspaces
	cache    *storetest.MemCache
	records  *records
	img      *Image
	blocks   *Blocks
	profiles *Profiles
	broken   error // of GetRecord
	streams  []store.Streamed
	course   *course // of the last start
}

func (m *machine) GetRecord(ctx context.Context, kind, name string) ([]byte, store.Version, error) {
	m.records.mu.Lock()
	defer m.records.mu.Unlock()
	if m.broken != nil {
		return nil, "", m.broken
	}
	r, ok := m.records.by[kind+"/"+name]
	if !ok {
		return nil, "", fault.New(fault.NotFound, "no record %s", name)
	}
	return r.data, r.version, nil
}

func (m *machine) PutRecord(ctx context.Context, kind, name string, data []byte, old *store.Version) (store.Version, error) {
	m.records.mu.Lock()
	defer m.records.mu.Unlock()
	if r := m.records.by[kind+"/"+name]; old != nil && r.version != *old {
		return "", fault.New(fault.Exists, "version %q", r.version)
	}
	m.records.next++
	v := store.Version(strconv.Itoa(m.records.next))
	m.records.by[kind+"/"+name] = record{data, v}
	return v, nil
}

func (m *machine) ListRecords(ctx context.Context, kind string, fn func(name string) error) error {
	m.records.mu.Lock()
	var names []string
	for k := range m.records.by {
		names = append(names, k[len(kind)+1:])
	}
	m.records.mu.Unlock()
	for _, n := range names {
		if err := fn(n); err != nil {
			return err
		}
	}
	return nil
}

func (m *machine) DeleteRecord(ctx context.Context, kind, name string) error {
	m.records.mu.Lock()
	defer m.records.mu.Unlock()
	delete(m.records.by, kind+"/"+name)
	return nil
}

func (m *machine) Stream(ctx context.Context, packs []store.HotPack) (store.Streamed, error) {
	got, err := m.Store.Stream(ctx, packs)
	m.records.mu.Lock()
	defer m.records.mu.Unlock()
	m.streams = append(m.streams, got)
	return got, err
}

// cluster is an origin with one image of n files of 128 KiB.
type cluster struct {
	t       *testing.T
	world   *world
	records *records
	files   int
}

func newCluster(t *testing.T, n int) *cluster {
	w := newWorld(t)
	batch := w.store.Begin(t.Context())
	tree := NewTree()
	for i := range n {
		data := storetest.Data(uint64(i), store.ChunkSize)
		c, _, err := batch.Add(data)
		require.NoError(t, err)
		name := strconv.Itoa(1000 + i)
		tree.Root.Children[name] = &Node{Name: name, Mode: 0o100644, Size: store.ChunkSize, Chunks: []store.Chunk{c}}
	}
	_, _, err := w.images.Write(t.Context(), tree, Config{}, batch, DefaultWorkspace, "i")
	require.NoError(t, err)
	return &cluster{t, w, &records{by: map[string]record{}}, n}
}

func (c *cluster) machine(o ProfilesOptions) *machine {
	c.t.Helper()
	m := &machine{cache: storetest.NewMemCache(), records: c.records}
	ring, err := seal.OpenKeyring(filepath.Join(c.world.dir, "cache", "keys"))
	require.NoError(c.t, err)
	stores := storetest.Workspaces(c.t, store.WorkspacesOptions{Origin: c.world.origin, Cache: m.cache, Keyring: ring})
	m.stores = stores
	m.Store = storetest.Store(c.t, stores, DefaultWorkspace)
	images, err := Open(c.t.Context(), Options{Dir: c.t.TempDir(), Stores: stores, Log: storetest.Log(c.t)})
	require.NoError(c.t, err)
	first, err := c.world.get("i")
	require.NoError(c.t, err)
	m.img, err = images.Get(c.t.Context(), Ref{DefaultWorkspace, first.Digest.String()})
	require.NoError(c.t, err)
	m.blocks, err = m.img.Blocks(c.t.Context())
	require.NoError(c.t, err)
	o.Store, o.Log = func(string) (ProfileStore, error) { return m, nil }, storetest.Log(c.t)
	m.profiles = OpenProfiles(o)
	c.t.Cleanup(func() { m.profiles.Close() })
	return m
}

var entryF = NewEntry("function", "app", "f")

func (m *machine) begin(e Entry, fresh bool, guess Guess) *Start {
	s := m.profiles.Begin(StartSpec{Workspace: DefaultWorkspace, Image: m.img.Digest, Entry: e, Guess: guess})
	m.blocks.Mounted(fresh)
	s.Attach(m.img, m.blocks)
	s.Go(e)
	m.course = s.course
	return s
}

func (m *machine) profile(e Entry) (*Profile, error) {
	return m.profiles.Get(context.Background(), DefaultWorkspace, m.img.Digest, e.ID)
}

// start runs a start that reads some chunks, and waits until it has been learnt.
func (m *machine) start(t *testing.T, e Entry, fresh bool, chunks ...int) StartReport {
	t.Helper()
	s := m.begin(e, fresh, nil)
	<-m.course.finished
	touch(t, m.blocks, chunks...)
	s.Done()
	for {
		m.profiles.wait()
		l, err := m.profiles.List(t.Context(), DefaultWorkspace, m.img.Digest)
		require.NoError(t, err)
		for _, p := range l {
			if p.Entry.ID == e.ID && p.Last != nil {
				return *p.Last
			}
		}
		time.Sleep(time.Millisecond)
	}
}

// wait waits for learning, in tests without hot packs.
func (p *Profiles) wait() {
	if !p.opt.Hot {
		p.wg.Wait()
	}
}

func until(cond func() bool) {
	for !cond() {
		runtime.Gosched()
		time.Sleep(time.Millisecond)
	}
}

func (m *machine) has(i int) bool { return m.cache.Has(m.blocks.Chunks()[i].Digest) }

func TestWhatOneStartReadTheNextFinds(t *testing.T) {
	c := newCluster(t, 20)
	one := c.machine(ProfilesOptions{})
	s := one.begin(entryF, true, nil)
	touch(t, one.blocks, 7, 3, 11)
	s.Ready()
	touch(t, one.blocks, 2)
	s.Done()
	one.profiles.wait()
	p, err := one.profile(entryF)
	require.NoError(t, err)
	require.Equal(t, []int{7, 3, 11, -2}, order(p, one.blocks.Chunks()))
	require.Equal(t, uint32(1), p.Runs)

	two := c.machine(ProfilesOptions{})
	s = two.begin(entryF, true, nil)
	<-two.course.finished
	for _, i := range []int{7, 3, 11, 2} {
		require.True(t, two.has(i), i)
	}
	require.False(t, two.has(4))
	touch(t, two.blocks, 7, 3, 5)
	s.Done()
	two.profiles.wait()
	l, err := two.profiles.List(t.Context(), DefaultWorkspace, two.img.Digest)
	require.NoError(t, err)
	require.Len(t, l, 1)
	last := l[0].Last
	require.False(t, last.At.IsZero())
	last.At = time.Time{}
	require.Equal(t, &StartReport{Source: "profile", Listed: 4, Touched: 3, Used: 2, Brought: 4, Bytes: 4 * store.ChunkSize}, last)
	require.Equal(t, []int{7, 3, 11, 5, -2}, order(l[0].Profile, two.blocks.Chunks()))
	require.Equal(t, ProfileStats{
		Starts: 1, Listed: 4, Used: 2, Touched: 3, Merged: 1, Written: 2, ListedBytes: 4 * store.ChunkSize, UsedBytes: 2 * store.ChunkSize,
		Courses: 1, Brought: 4, BroughtBytes: 4 * store.ChunkSize,
	}, two.profiles.Stats())
}

func TestAnotherEntryPointOfTheImageHelps(t *testing.T) {
	c := newCluster(t, 20)
	c.machine(ProfilesOptions{}).start(t, entryF, true, 7, 3)
	two := c.machine(ProfilesOptions{})
	require.Equal(t, "image", two.start(t, NewEntry("function", "app", "g"), true, 3, 4).Source)
	require.True(t, two.has(7))
	l, err := two.profiles.List(t.Context(), DefaultWorkspace, two.img.Digest)
	require.NoError(t, err)
	require.Len(t, l, 2)
}

func TestGuess(t *testing.T) {
	m := newCluster(t, 20).machine(ProfilesOptions{})
	s := m.begin(entryF, true, func(_ context.Context, img *Image, emit func([]store.Chunk)) error {
		require.Same(t, m.img, img)
		emit(m.blocks.Chunks()[4:5])
		emit(m.blocks.Chunks()[5:6])
		return errors.New("that is all that it could find")
	})
	<-m.course.finished
	require.True(t, m.has(4) && m.has(5))
	touch(t, m.blocks, 5, 9)
	s.Done()
	m.profiles.wait()
	p, err := m.profile(entryF)
	require.NoError(t, err)
	require.Equal(t, []int{5, 9}, order(p, m.blocks.Chunks()))
	l, err := m.profiles.List(t.Context(), DefaultWorkspace, m.img.Digest)
	require.NoError(t, err)
	require.Equal(t, "guess", l[0].Last.Source)
	require.Equal(t, 1, l[0].Last.Used)
}

func TestHotPackIsWrittenAndStreamed(t *testing.T) {
	c := newCluster(t, 20)
	one := c.machine(ProfilesOptions{Hot: true, Settle: time.Millisecond})
	one.start(t, entryF, true, 12, 7, 3, 11, 2, 5, 9, 0, 8, 13)
	until(func() bool { return one.profiles.Stats().HotPacks == 1 })
	require.NoError(t, one.profiles.Close())

	two := c.machine(ProfilesOptions{})
	reads := c.world.origin.Count("read")
	s := two.begin(entryF, true, nil)
	<-two.course.finished
	require.Equal(t, []store.Streamed{{Chunks: 10, Bytes: 10 * store.ChunkSize, Stored: two.streams[0].Stored}}, two.streams)
	touch(t, two.blocks, 12, 7, 3, 11, 2, 5, 9, 0, 8, 13)
	s.Done()
	require.LessOrEqual(t, c.world.origin.Count("read")-reads, 3, "of the indexes of the packs")
	two.profiles.wait()

	// What it holds is as the profile wants it: it stays.
	p, err := two.profile(entryF)
	require.NoError(t, err)
	require.False(t, p.Stale())
	require.Len(t, p.Hot, 1)
}

// TestTwentyFirstStartsReadTheOriginOnce: manifest, metadata, chunk table and hot pack.
func TestTwentyFirstStartsReadTheOriginOnce(t *testing.T) {
	c := newCluster(t, 20)
	one := c.machine(ProfilesOptions{Hot: true, Settle: time.Millisecond})
	one.start(t, entryF, true, 12, 7, 3, 11, 2, 5, 9, 0, 8, 13)
	until(func() bool { return one.profiles.Stats().HotPacks == 1 })
	require.NoError(t, one.profiles.Close())

	two := c.machine(ProfilesOptions{})
	empty, err := Open(t.Context(), Options{Dir: t.TempDir(), Stores: two.stores, Log: storetest.Log(t)})
	require.NoError(t, err)
	c.world.origin.Forget()
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			s := two.profiles.Begin(StartSpec{Workspace: DefaultWorkspace, Image: two.img.Digest, Entry: entryF})
			course := s.course
			defer s.Fail()
			img, err := empty.Get(t.Context(), Ref{DefaultWorkspace, two.img.Digest.String()})
			if err == nil {
				_, err = img.MetaPath(t.Context())
			}
			if err == nil {
				_, err = img.Blocks(t.Context())
			}
			if err != nil {
				t.Error(err)
				return
			}
			s.Attach(two.img, two.blocks)
			<-course.finished
			if !two.has(12) || !two.has(13) {
				t.Error("a start went on without its chunks")
			}
		})
	}
	all.Wait()
	asked := map[string]int{}
	for _, op := range c.world.origin.Ops() {
		kind, _, _ := strings.Cut(strings.TrimPrefix(op.Key, "default/"), "/")
		asked[op.Name+" "+kind]++
	}
	require.Equal(t, map[string]int{"get records": 1, "get blobs": 2, "open packs": 1}, asked)
	require.Equal(t, int64(10), two.Stats().StreamedChunks)
}

func TestHotPackThatIsGoneIsWrittenAnew(t *testing.T) {
	c := newCluster(t, 20)
	one := c.machine(ProfilesOptions{Hot: true, Settle: time.Millisecond})
	one.start(t, entryF, true, 12, 7, 3, 11, 2, 5, 9, 0, 8, 13)
	until(func() bool { return one.profiles.Stats().HotPacks == 1 })
	require.NoError(t, one.profiles.Close())
	p, err := one.profile(entryF)
	require.NoError(t, err)
	hex := p.Hot[0].Pack.String()
	require.NoError(t, c.world.mem.Delete(t.Context(), "default/packs/"+hex[:2]+"/"+hex))

	two := c.machine(ProfilesOptions{Hot: true, Settle: time.Millisecond})
	s := two.begin(entryF, true, nil)
	<-two.course.finished
	require.True(t, two.has(12), "from the image's own packs")
	s.Fail()
	until(func() bool { return two.profiles.Stats().HotPacks == 1 })
	three := c.machine(ProfilesOptions{})
	three.begin(entryF, true, nil)
	<-three.course.finished
	require.Equal(t, int64(10), three.streams[0].Chunks)
}

// Two machines that learn at the same moment lose nothing of each other's.
func TestMachinesLearnTogether(t *testing.T) {
	c := newCluster(t, 20)
	machines := []*machine{c.machine(ProfilesOptions{}), c.machine(ProfilesOptions{}), c.machine(ProfilesOptions{})}
	for _, m := range machines { // all know that there is no profile
		_, err := m.profile(entryF)
		require.True(t, fault.Is(err, fault.NotFound))
	}
	for i, m := range machines {
		m.start(t, entryF, true, i, 10+i)
	}
	p, err := c.machine(ProfilesOptions{}).profile(entryF)
	require.NoError(t, err)
	require.ElementsMatch(t, []int{0, 10, 1, 11, 2, 12}, order(p, machines[0].blocks.Chunks()))
	require.Equal(t, uint32(3), p.Runs)
}

func TestProfileThatCannotBeUsed(t *testing.T) {
	c := newCluster(t, 20)
	one := c.machine(ProfilesOptions{})
	one.start(t, entryF, true, 7, 3)
	name := "profiles/" + one.img.Digest.String() + "/" + entryF.ID.String()
	good := c.records.by[name]
	other := sampleProfile()
	foreign := &Profile{Image: one.img.Digest, Entry: entryF}
	foreign.Merge(complete(3, 0, 1, 2), chunksNamed(3)) // chunks that no store has
	for _, b := range [][]byte{nil, good.data[:50], other.Encode(), foreign.Encode()} {
		c.records.by[name] = record{b, "x"}
		m := c.machine(ProfilesOptions{})
		m.start(t, entryF, true, 9)
		p, err := m.profile(entryF)
		require.NoError(t, err)
		require.Contains(t, order(p, m.blocks.Chunks()), 9)
		require.NotEqual(t, store.Version("x"), c.records.by[name].version, "replaced")
	}
}

func TestOriginThatIsGoneIsInNobodysWay(t *testing.T) {
	c := newCluster(t, 20)
	m := c.machine(ProfilesOptions{})
	m.broken = fault.New(fault.Unavailable, "gone")
	s := m.begin(entryF, true, nil)
	touch(t, m.blocks, 1)
	s.Done()
	m.profiles.wait()
	m.records.mu.Lock()
	m.broken = nil
	m.records.mu.Unlock()
	m.start(t, entryF, true, 1)
	_, err := m.profile(entryF)
	require.NoError(t, err)
}

func TestStartThatEndsStopsFetching(t *testing.T) {
	c := newCluster(t, 20)
	c.machine(ProfilesOptions{}).start(t, entryF, true, 1, 2, 3)
	m := c.machine(ProfilesOptions{})
	m.Has(m.blocks.Chunks()[0].Digest) // its index is loaded
	c.world.origin.Before(func(ctx context.Context, _ storetest.Op) error {
		<-ctx.Done()
		return ctx.Err()
	})
	s := m.begin(entryF, true, nil)
	s.Fail()
	<-m.course.finished
	s = m.begin(entryF, true, nil)
	require.NoError(t, m.profiles.Close())
	s.Done()
	m.profiles.Begin(StartSpec{}).Done()
	(*Profiles)(nil).Begin(StartSpec{}).Attach(nil, nil)
	c.world.origin.Before(nil)
}

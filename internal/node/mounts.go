package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/lazyfs"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/slab"
	"brisk.dev/brisk/internal/trace"
)

// Slab is the machine's chunk cache, which complete images are mounted over.
type Slab interface {
	store.Cache
	image.Slab
}

const (
	// nativeWait is how long a start waits for an image to be placed in the slab.
	// It takes some milliseconds; but after a crash all of its chunks are read and
	// verified first, and then this start goes on lazily and the next one need not wait.
	nativeWait = 100 * time.Millisecond
	// defaultIdleMount is how long an image stays mounted, and in the cache, that nobody uses.
	defaultIdleMount = 10 * time.Minute
)

// mounts are the images that are mounted on this node: which are, how, and for how
// long. Each image is mounted at most once in each way.
//
// A start whose entry point has been seen before gets a native mount if the image
// is complete in the slab. Any other gets a lazy one: what it reads has to be seen, or
// fetched. After its first use the rest of the image is fetched, and as soon as it is
// there the native mount is made, so that the next start finds it. Who uses a
// mount stays on it; the lazy mount goes with its last user then.
type mounts struct {
	images   Images
	fs       Filesystem
	slab     Slab            // nil: all mounts are lazy
	profiles *image.Profiles // nil: nothing is learnt
	fill     bool            // fetch what is missing after a start
	idle     time.Duration
	log      *slog.Logger

	ctx  context.Context // ends all that runs behind
	stop context.CancelFunc
	work sync.WaitGroup
	wake chan struct{} // something is to be completed

	mu        sync.Mutex
	closed    bool
	serial    int // makes owners of pins
	roots     map[rootKey]*root
	gone      []*root                  // dropped, and to be let go
	placing   map[string]chan struct{} // by digest: native mounts in the making; closed at the end
	hopeless  map[string]bool          // images that cannot be mounted natively, whatever is in the slab
	todo      []*image.Image           // to be completed
	filling   string                   // digest of the image that is being completed
	unfill    context.CancelFunc       // ends that
	completed func(digest string)      // for tests, after each attempt; may be nil
	seen      map[seenEntry]bool       // entry points that were started by this process
	ended     map[Filling]int64        // attempts to complete images, by how they ended
}

// seenEntry is an entry point of an image.
type seenEntry struct {
	digest string
	entry  image.EntryID
}

type rootKey struct {
	digest string
	native bool
}

// root is a mount that the node holds.
type root struct {
	key    rootKey
	img    *image.Image
	blocks *image.Blocks
	mount  *lazyfs.Mount
	unuse  func() // ends what the mount keeps at the origin; nil = nothing
	pins   string // owner of its pins in the slab; "" = a native mount, whose pins last as long as the kernel has it
	users  int
	since  time.Time // when users became 0
}

func newMounts(opt Options) *mounts {
	m := &mounts{
		images: opt.Images, fs: opt.FS, slab: opt.Slab, profiles: opt.Profiles, fill: opt.Fill, idle: opt.IdleMount, log: opt.Log,
		wake: make(chan struct{}, 1), roots: map[rootKey]*root{}, placing: map[string]chan struct{}{}, hopeless: map[string]bool{},
		seen: map[seenEntry]bool{}, ended: map[Filling]int64{},
	}
	if m.idle == 0 {
		m.idle = defaultIdleMount
	}
	m.ctx, m.stop = context.WithCancel(context.Background())
	m.free() // before anything is started, so that what the dead had pinned is in nobody's way
	m.work.Go(m.janitor)
	m.work.Go(m.completer)
	return m
}

// close ends what runs behind and gives all mounts back.
func (m *mounts) close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.stop()
	m.work.Wait()
	defer m.letGo()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.roots {
		m.drop(r)
	}
}

// get mounts an image for an entry point; nil is one that nobody has to learn about.
func (m *mounts) get(ctx context.Context, workspace, ref string, e *entry) (_ *Rootfs, err error) {
	end := trace.Begin(ctx, "mount image")
	var start *image.Start
	defer func() {
		if err != nil {
			start.Fail()
		}
	}()
	// What the start reads is on its way while the image itself is being looked for, if it is told by its digest.
	if d, err := store.ParseDigest(ref); err == nil {
		start = m.begin(ctx, workspace, d, e)
	}
	found := trace.Begin(ctx, "find image")
	img, err := m.images.Get(ctx, image.Ref{Workspace: workspace, Name: ref})
	if err != nil {
		return nil, err
	}
	found("")
	if start == nil {
		start = m.begin(ctx, workspace, img.Digest, e)
	}
	id := img.Digest.String()
	waiting, cancel := context.WithTimeout(ctx, nativeWait)
	defer cancel()
	if e == nil || m.known(id, e) || start.Known(waiting) {
		r := m.use(rootKey{id, true}, e, nil)
		if r == nil && m.slab != nil {
			select {
			case <-m.place(img):
			case <-waiting.Done():
			}
			r = m.use(rootKey{id, true}, e, nil)
		}
		if r != nil {
			start.Fail() // all is here, and nobody sees what is read
			end("native")
			return r, nil
		}
	}
	r := m.use(rootKey{id, false}, e, start)
	if r == nil {
		made, err := m.mountLazy(ctx, img)
		if err != nil {
			return nil, err
		}
		r = m.add(made, e, start)
	}
	start.Attach(img, r.root.blocks)
	end("lazy")
	return r, nil
}

func (m *mounts) begin(ctx context.Context, workspace string, digest store.Digest, e *entry) *image.Start {
	if e == nil {
		return nil
	}
	return m.profiles.Begin(image.StartSpec{Workspace: workspace, Image: digest, Entry: e.Entry, Guess: e.guess, Trace: trace.From(ctx)})
}

// known reports whether the entry point has been started on the image before, by this process.
func (m *mounts) known(digest string, e *entry) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen[seenEntry{digest, e.ID}]
}

// use takes a mount that is there.
func (m *mounts) use(key rootKey, e *entry, start *image.Start) *Rootfs {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.useLocked(key, e, start)
}

// useLocked is use. Precondition: m.mu is held.
func (m *mounts) useLocked(key rootKey, e *entry, start *image.Start) *Rootfs {
	r := m.roots[key]
	if r == nil {
		return nil
	}
	r.users++
	return &Rootfs{Path: r.mount.Path, root: r, mounts: m, entry: e, start: start}
}

// add makes a mount one of the node's, unless there is one of the kind already, and
// uses it.
func (m *mounts) add(r *root, e *entry, start *image.Start) *Rootfs {
	defer m.letGo()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.roots[r.key] == nil {
		m.roots[r.key] = r
	} else {
		m.gone = append(m.gone, r)
	}
	return m.useLocked(r.key, e, start)
}

// drop ends the node's hold on a mount. Precondition: m.mu is held, and letGo is
// called after that.
func (m *mounts) drop(r *root) {
	delete(m.roots, r.key)
	m.gone = append(m.gone, r)
}

// letGo lets go of what was dropped, which the slab may have to wait for its disk for.
func (m *mounts) letGo() {
	m.mu.Lock()
	gone := m.gone
	m.gone = nil
	m.mu.Unlock()
	for _, r := range gone {
		r.mount.Release()
		if r.unuse != nil {
			r.unuse()
		}
		if r.pins != "" {
			m.slab.Unpin(r.pins)
		}
	}
}

// release ends a use.
func (m *mounts) release(r *root) {
	defer m.letGo()
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.users--; r.users > 0 {
		return
	}
	r.since = time.Now()
	if !r.key.native && m.roots[r.key] == r && m.roots[rootKey{r.key.digest, true}] != nil {
		m.drop(r)
	}
}

// mountLazy mounts an image lazily. All that the cache has of it, or gets, stays
// there as long as the mount: what is pinned for nothing is what its user's next
// read would have to fetch again, and an eviction cannot know that from the reads
// it sees, which stop with the page cache.
func (m *mounts) mountLazy(ctx context.Context, img *image.Image) (*root, error) {
	var meta string
	var blocks *image.Blocks
	end := trace.Begin(ctx, "read metadata")
	both, fetch := errgroup.WithContext(ctx) // from far away, two round trips at once
	both.Go(func() (err error) { meta, err = img.MetaPath(fetch); return err })
	both.Go(func() (err error) { blocks, err = img.Blocks(fetch); return err })
	if err := both.Wait(); err != nil {
		return nil, err
	}
	end("")
	r := &root{key: rootKey{img.Digest.String(), false}, img: img, blocks: blocks}
	var err error
	if r.mount, err = m.fs.Mount(ctx, lazyfs.Image{ID: r.key.digest, Meta: meta, Blocks: blocks}); err != nil {
		return nil, err
	}
	blocks.Mounted(r.mount.Fresh)
	if m.slab != nil {
		m.mu.Lock()
		m.serial++
		r.pins = fmt.Sprintf("lazy/%d", m.serial) // its own: an earlier mount of the image may be about to unpin
		m.mu.Unlock()
		m.slab.Pin(r.pins, blocks.Chunks())
	}
	r.unuse = img.Use()
	return r, nil
}

// place has an image mounted natively if it is complete; the result is closed when
// it is, or when it cannot be. Concurrent calls are one.
func (m *mounts) place(img *image.Image) <-chan struct{} {
	id := img.Digest.String()
	m.mu.Lock()
	defer m.mu.Unlock()
	if done := m.placing[id]; done != nil {
		return done
	}
	done := make(chan struct{})
	if m.closed || m.slab == nil || m.hopeless[id] || m.roots[rootKey{id, true}] != nil {
		close(done)
		return done
	}
	m.placing[id] = done
	m.work.Go(func() {
		err := m.mountNative(m.ctx, img)
		var missing *slab.MissingError
		m.mu.Lock()
		if fault.Is(err, fault.Corrupt) {
			m.hopeless[id] = true // it works lazily, and will not change
		}
		delete(m.placing, id)
		m.mu.Unlock()
		switch {
		case err == nil:
			m.log.Info("an image is complete and mounted natively", "image", img.Digest.Short())
		case errors.As(err, &missing), m.ctx.Err() != nil:
			m.log.Debug("an image is not complete", "image", img.Digest.Short(), "error", err)
		default:
			m.log.Warn("an image cannot be mounted natively", "image", img.Digest.Short(), "error", err)
		}
		close(done)
	})
	return done
}

func (m *mounts) mountNative(ctx context.Context, img *image.Image) error {
	n, err := img.Native(ctx, m.slab)
	if err != nil {
		return err
	}
	defer n.Release()
	blocks, err := img.Blocks(ctx)
	if err != nil {
		return err
	}
	mount, err := m.fs.Mount(ctx, lazyfs.Image{ID: n.ID, Meta: n.Meta, Device: n.Device})
	if err != nil {
		return err
	}
	id := img.Digest.String()
	m.add(&root{key: rootKey{id, true}, img: img, blocks: blocks, mount: mount}, nil, nil).Release()
	defer m.letGo()
	m.mu.Lock()
	defer m.mu.Unlock()
	if lazy := m.roots[rootKey{id, false}]; lazy != nil && lazy.users == 0 {
		m.drop(lazy)
	}
	return nil
}

// started says that a start of an entry point on an image is over.
func (m *mounts) started(img *image.Image, e *entry) {
	if e != nil {
		m.mu.Lock()
		m.seen[seenEntry{img.Digest.String(), e.ID}] = true
		m.mu.Unlock()
	}
}

// used says that what was started on an image is in use: the image is completed now.
func (m *mounts) used(img *image.Image) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := img.Digest.String()
	if m.closed || m.slab == nil || m.roots[rootKey{id, true}] != nil || m.filling == id {
		return
	}
	for _, other := range m.todo {
		if other.Digest == img.Digest {
			return
		}
	}
	m.todo = append(m.todo, img)
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// completer completes one image after the other.
func (m *mounts) completer() {
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-m.wake:
		}
		for img, ctx := m.next(); img != nil; img, ctx = m.next() {
			m.complete(ctx, img)
			if m.completed != nil {
				m.completed(img.Digest.String())
			}
		}
	}
}

// next takes the image that has waited longest; nil: none does.
func (m *mounts) next() (*image.Image, context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.unfill != nil {
		m.unfill()
		m.filling, m.unfill = "", nil
	}
	if len(m.todo) == 0 || m.closed {
		return nil, nil
	}
	img := m.todo[0]
	m.todo = m.todo[1:]
	ctx, cancel := context.WithCancel(m.ctx)
	m.filling, m.unfill = img.Digest.String(), cancel
	return img, ctx
}

func (m *mounts) complete(ctx context.Context, img *image.Image) {
	if m.fill {
		began := time.Now()
		complete, err := img.Fill(ctx, m.slab)
		m.filled(ctx, complete, err)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			m.log.Info("the rest of an image could not be fetched; the next start tries again", "image", img.Digest.Short(), "error", err)
			return
		case !complete:
			m.log.Info("an image stays incomplete: the cache has no room for the rest of it", "image", img.Digest.Short())
			return
		}
		m.log.Debug("an image was completed", "image", img.Digest.Short(), "ms", time.Since(began).Milliseconds())
	}
	select {
	case <-m.place(img):
	case <-ctx.Done():
	}
}

// janitor gives up what nobody has used for long.
func (m *mounts) janitor() {
	tick := time.NewTicker(max(m.idle/10, 10*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-m.ctx.Done():
			return
		case now := <-tick.C:
			m.mu.Lock()
			for _, r := range m.roots {
				if r.users == 0 && now.Sub(r.since) >= m.idle {
					m.drop(r)
				}
			}
			m.mu.Unlock()
			m.letGo()
			m.free()
		}
	}
}

// free gives up the pins of native mounts that are gone.
func (m *mounts) free() {
	if m.slab == nil {
		return
	}
	if n := m.images.FreeNative(m.slab); n > 0 {
		m.log.Debug("images are not mounted natively any more", "images", n)
	}
}

// inUse reports whether something runs on an image.
func (m *mounts) inUse(digest string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, native := range []bool{true, false} {
		if r := m.roots[rootKey{digest, native}]; r != nil && r.users > 0 {
			return true
		}
	}
	return false
}

// forget lets go of an image that is about to be removed, but not of mounts that
// somebody uses.
func (m *mounts) forget(digest string) {
	defer m.letGo()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.filling == digest {
		m.unfill()
	}
	m.todo = deleteImage(m.todo, digest)
	for _, native := range []bool{true, false} {
		if r := m.roots[rootKey{digest, native}]; r != nil && r.users == 0 {
			m.drop(r)
		}
	}
}

func deleteImage(l []*image.Image, digest string) (rest []*image.Image) {
	for _, img := range l {
		if img.Digest.String() != digest {
			rest = append(rest, img)
		}
	}
	return rest
}

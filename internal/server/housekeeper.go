package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/api/blobs"
	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/function"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/image/memo"
	"brisk.dev/brisk/internal/lazyfs"
	"brisk.dev/brisk/internal/scheduler"
	"brisk.dev/brisk/internal/server/metrics"
	"brisk.dev/brisk/internal/snapshot"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/slab"
)

// How long what may be needed again stays. All of it can be made again: a program
// registers its functions and uploads its code by itself, a build makes its images.
const (
	functionAge = 30 * 24 * time.Hour // a function that nobody registers or calls
	imageAge    = 7 * 24 * time.Hour  // an image without a name that nothing is built or run on
	uploadAge   = 24 * time.Hour      // an upload, or unpacked code, that no function names: a client may be about to
	sdkAge      = 7 * 24 * time.Hour  // the SDK of another version of Brisk, which a program may still run on

	// Images without a name take at most a tenth of the disk, as the cache does, and those of
	// the last hours stay even then: a build may be under way.
	youngImage = 6 * time.Hour
)

// When the server collects by itself: soon after its start, when whoever started it
// has what he wanted, and then every hour; not all machines at once.
const (
	collectFirst = 2 * time.Minute
	collectEvery = time.Hour
	// And after an image was removed: what of it is in packs that other images need goes then.
	collectRemoved = 10 * time.Second
)

// housekeeper deletes what nobody needs, of all parts. It knows what each part needs of the others:
// functions need images, code and uploads; snapshots need functions; memos need images; the cache
// need not have what no image has. So it goes from functions down to bytes.
type housekeeper struct {
	images    *image.Images
	calls     *scheduler.Scheduler
	snapshots *snapshot.Snapshots
	code      *function.Code
	uploads   *blobs.Store
	memos     []*memo.Memo
	cache     *slab.Slab
	scrub     *scrubber
	files     *lazyfs.FS       // nil: nothing is mounted
	sdks      string           // directory of SDKs
	sdk       string           // the one in use
	limit     int64            // of images without a name, in bytes
	now       func() time.Time // of which ages are counted; nil: time.Now
	log       *slog.Logger

	tally struct { // of collections that were no dry runs
		sync.Mutex
		metrics.Garbage
	}

	turn    chan struct{} // one collection at a time
	removed chan struct{} // an image was removed; has room for one
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
}

// begin starts collecting in the background.
func (h *housekeeper) begin() {
	h.turn, h.removed = make(chan struct{}, 1), make(chan struct{}, 1)
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.wg.Go(func() {
		for wait := collectFirst; ; wait = collectEvery*3/4 + rand.N(collectEvery/2) {
			select {
			case <-time.After(wait):
			case <-h.removed:
				select { // others may follow
				case <-time.After(collectRemoved):
				case <-h.ctx.Done():
					return
				}
			case <-h.ctx.Done():
				return
			}
			if _, err := h.collect(h.ctx, api.CollectRequest{}, collectEvery*2/3, func(string, int64, int64) {}); err != nil && h.ctx.Err() == nil {
				h.log.Warn("garbage cannot be collected; the next attempt follows", "err", err)
			}
		}
	})
}

func (h *housekeeper) close() {
	h.cancel()
	h.wg.Wait()
}

// Collect implements api.Housekeeper.
func (h *housekeeper) Collect(ctx context.Context, q api.CollectRequest, progress func(stage string, done, total int64)) (api.Collected, error) {
	return h.collect(ctx, q, 0, progress)
}

// collect leaves the store alone if some machine has collected there within recent.
func (h *housekeeper) collect(ctx context.Context, q api.CollectRequest, recent time.Duration, progress func(stage string, done, total int64)) (api.Collected, error) {
	select {
	case h.turn <- struct{}{}:
		defer func() { <-h.turn }()
	case <-ctx.Done():
		return api.Collected{}, fault.Wrap(ctx.Err(), "wait for", "a collection that is under way")
	}
	began := time.Now()
	c := &collecting{h: h, q: q, recent: recent, now: began, progress: progress}
	if h.now != nil {
		c.now = h.now()
	}
	c.out = api.Collected{DryRun: q.DryRun, Freed: []api.Garbage{}, Notes: []string{}}
	for _, part := range []struct {
		stage string
		do    func(ctx context.Context) error
	}{
		{"functions", c.functions}, {"uploads", c.files}, {"images", c.images}, {"packs", c.packs}, {"store", c.store}, {"cache", c.cached},
	} {
		progress(part.stage, 0, 0)
		err := part.do(ctx)
		if ctx.Err() != nil {
			return c.out, fault.Wrap(ctx.Err(), "collect", part.stage)
		}
		if err != nil { // the others go on: they keep what this one might need
			h.log.Warn("some garbage cannot be collected", "part", part.stage, "err", err)
			c.out.Notes = append(c.out.Notes, fmt.Sprintf("%s: %v", part.stage, err))
		}
	}
	c.out.MS = float64(time.Since(began).Microseconds()) / 1000
	if !q.DryRun {
		h.count(c.out)
	}
	if c.out.Bytes > 0 && !q.DryRun {
		h.log.Info("collected garbage", "bytes", c.out.Bytes, "ms", c.out.MS)
	}
	return c.out, nil
}

// count remembers what a collection has done, for the metrics.
func (h *housekeeper) count(c api.Collected) {
	h.tally.Lock()
	defer h.tally.Unlock()
	t := &h.tally.Garbage
	if t.Freed == nil {
		t.Freed = map[string]metrics.Freed{}
	}
	t.Collections++
	t.Seconds += c.MS / 1000
	t.Ended = time.Now()
	if len(c.Notes) > 0 {
		t.Incomplete++
	}
	t.WaitingBytes, t.HeldBytes = c.Waiting.Bytes, c.Held.Bytes
	for _, g := range c.Freed {
		f := t.Freed[g.Kind]
		t.Freed[g.Kind] = metrics.Freed{Things: f.Things + g.Count, Bytes: f.Bytes + g.Bytes}
	}
}

// counted gives what the collections since the start have done.
func (h *housekeeper) counted() metrics.Garbage {
	h.tally.Lock()
	defer h.tally.Unlock()
	g := h.tally.Garbage
	g.Freed = maps.Clone(g.Freed)
	return g
}

// Check implements api.Housekeeper.
func (h *housekeeper) Check(ctx context.Context, q api.CheckRequest, progress func(stage string, done, total int64)) (api.StoreCheck, error) {
	began := time.Now()
	out := api.StoreCheck{Full: q.Full, Damaged: []api.DamagedImage{}, Ledger: []string{}, Notes: []string{}}
	r, err := h.images.Check(ctx, image.CheckOptions{
		Full: q.Full, Repair: q.Repair, Progress: func(done, total int64) { progress("store", done, total) },
	})
	if err != nil {
		return out, err
	}
	out.Images, out.Packs, out.Bytes = int64(r.Images), int64(r.Packs), r.Bytes
	out.Ledger, out.Notes = append(out.Ledger, r.Ledger...), append(out.Notes, r.Notes...)
	for _, d := range r.Damaged {
		out.Damaged = append(out.Damaged, api.DamagedImage{Workspace: d.Workspace, Names: append([]string{}, d.Names...), Digest: d.Digest, Problem: d.Problem})
	}
	if h.scrub != nil {
		if out.Cache, err = h.scrub.check(ctx, func(done, total int64) { progress("cache", done, total) }); err != nil {
			return out, err
		}
	}
	out.MS = float64(time.Since(began).Microseconds()) / 1000
	return out, nil
}

// collecting is one collection.
type collecting struct {
	h        *housekeeper
	q        api.CollectRequest
	recent   time.Duration
	now      time.Time
	progress func(stage string, done, total int64)
	out      api.Collected

	known bool // which functions there are
	kept  []scheduler.Kept
}

// free counts what went.
func (c *collecting) free(kind string, count, bytes int64) {
	if count == 0 {
		return
	}
	c.out.Freed = append(c.out.Freed, api.Garbage{Kind: kind, Count: count, Bytes: bytes})
	c.out.Bytes += bytes
}

// functions forgets functions that cannot run or are not used, and their snapshots.
func (c *collecting) functions(ctx context.Context) error {
	exists, err := c.h.images.Exists(ctx)
	if err != nil {
		return err
	}
	kept, removed, err := c.h.calls.Prune(c.now.Add(-functionAge), func(f *function.Function) bool { return exists(f.Image) }, c.q.DryRun)
	c.free("functions", int64(removed), 0)
	if err != nil {
		return err
	}
	c.known, c.kept = true, kept
	needed := map[store.Digest]bool{}
	for _, k := range kept {
		needed[k.Digest()] = true
	}
	n, bytes := c.h.snapshots.Sweep(func(k snapshot.Key) bool { return needed[k.Function] }, c.q.DryRun)
	c.free("snapshots", int64(n), bytes)
	return nil
}

// files removes uploads, code and SDKs.
func (c *collecting) files(context.Context) error {
	if !c.known {
		return errors.New("nothing is deleted while it is not known which functions there are")
	}
	named := map[[2]string]bool{}
	for _, k := range c.kept {
		named[[2]string{k.Workspace, k.Code}], named[[2]string{k.Workspace, k.Pickle}] = true, true
	}
	keep := func(workspace, id string) bool { return named[[2]string{workspace, id}] }
	before := c.now.Add(-uploadAge)
	n, bytes, err := c.h.code.Sweep(before, keep, c.q.DryRun)
	c.free("code", int64(n), bytes)
	if err != nil {
		return err
	}
	n, bytes, err = c.h.uploads.Sweep(before, keep, c.q.DryRun)
	c.free("uploads", int64(n), bytes)
	if err != nil {
		return err
	}
	return c.oldSDKs()
}

// oldSDKs removes those that other versions of Brisk have unpacked.
func (c *collecting) oldSDKs() error {
	entries, err := os.ReadDir(c.h.sdks)
	if err != nil {
		return err
	}
	var count, size int64
	for _, e := range entries {
		dir := filepath.Join(c.h.sdks, e.Name())
		st, err := e.Info()
		if err != nil || dir == c.h.sdk || strings.HasPrefix(e.Name(), ".") || !st.ModTime().Before(c.now.Add(-sdkAge)) {
			continue
		}
		count, size = count+1, size+sizeOf(dir)
		if !c.q.DryRun {
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
		}
	}
	c.free("SDKs", count, size)
	return nil
}

// sizeOf is the size of a directory's files, as far as they can be seen.
func sizeOf(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if st, err := e.Info(); err == nil {
				n += st.Size()
			}
		}
		return nil
	})
	return n
}

// images removes images without a name, and memory of images that are gone.
func (c *collecting) images(ctx context.Context) error {
	if !c.known {
		return errors.New("none is deleted while it is not known which functions there are")
	}
	runOn := map[store.Digest]bool{}
	for _, k := range c.kept {
		if !k.Retired {
			runOn[k.Image] = true
		}
	}
	p, err := c.h.images.Prune(ctx, image.PruneOptions{
		Before: c.now.Add(-imageAge), Limit: c.h.limit, Young: c.now.Add(-youngImage),
		Keep: func(_ string, d store.Digest) bool { return runOn[d] }, Dry: c.q.DryRun,
	})
	bytes := int64(0) // else they are among those of the store
	if c.q.DryRun {
		bytes = p.Bytes
	}
	c.free("images without a name", int64(len(p.Images)), bytes)
	if err != nil {
		return err
	}
	exists, err := c.h.images.Exists(ctx)
	if err != nil {
		return err
	}
	forgotten := 0
	for _, m := range c.h.memos {
		n, err := m.Sweep(exists, c.q.DryRun)
		forgotten += n
		if err != nil {
			return err
		}
	}
	c.free("results of builds and imports", int64(forgotten), 0)
	return nil
}

// packs stores anew what is needed of packs that nobody needs much of, so that they go.
func (c *collecting) packs(ctx context.Context) error {
	r, err := c.h.images.Repack(ctx, c.q.DryRun)
	bytes := int64(0) // else they are among those of the store
	if c.q.DryRun {
		bytes = r.Bytes
	}
	c.free("packs needed in part", int64(r.Packs), bytes)
	return err
}

// store removes what no image names.
func (c *collecting) store(ctx context.Context) error {
	r, err := c.h.images.Collect(ctx, image.CollectOptions{
		Grace: time.Duration(c.q.Grace * float64(time.Second)), Dry: c.q.DryRun, Recent: c.recent,
		Progress: func(done, total int) { c.progress("store", int64(done), int64(total)) },
	})
	c.free("packs and metadata", int64(r.Packs+r.Blobs), r.Bytes)
	c.free("local metadata", int64(r.Files), r.FileBytes)
	c.free("profiles", int64(r.Profiles), 0)
	c.out.Waiting = api.Garbage{Kind: "packs and metadata", Count: int64(r.Waiting), Bytes: r.WaitingBytes}
	c.out.Held = api.Garbage{Kind: "packs and metadata", Count: int64(r.Held), Bytes: r.HeldBytes}
	c.out.Notes = append(c.out.Notes, r.Notes...)
	return err
}

// cached removes from the cache what no image has.
func (c *collecting) cached(ctx context.Context) error {
	chunks, bytes, err := c.h.discard(ctx, c.q.DryRun)
	c.free("cached chunks", chunks, bytes)
	return err
}

// discard removes chunks from the cache that no image on this machine has.
func (h *housekeeper) discard(ctx context.Context, dry bool) (chunks, bytes int64, err error) {
	if !dry {
		// What is natively mounted is pinned; mounts that nobody holds are kept for a while.
		if h.files != nil {
			h.files.Sweep()
		}
		h.images.FreeNative(h.cache)
	}
	wanted, err := h.images.Wanted()
	if err != nil {
		return 0, 0, err
	}
	return h.cache.Discard(ctx, wanted, dry)
}

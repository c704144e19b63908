package scheduler

import (
	"context"
	"errors"
	"sync"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/function"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/node"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/trace"
)

// createdTTL is how long created sandboxes are kept for a function that nobody
// calls: each holds some tens of MB and saves 100 ms.
const createdTTL = 10 * time.Minute

// refillDelay keeps the making of the next sandbox out of the way of the call
// that has just taken one: it costs some 100 ms of CPU.
const refillDelay = 300 * time.Millisecond

// pool is the instances of one function.
type pool struct {
	s      *Scheduler
	digest store.Digest
	fn     *function.Function

	touched time.Time // when its use was last noted on its file; guarded by Scheduler.mu

	mu struct {
		sync.Mutex
		closed   bool
		retired  bool
		idle     []*live // the last one in is the first out: it is the warmest
		busy     map[*live]struct{}
		starting int
		waiters  []*waiter
		created  []*prepared
		creating bool
	}
}

// live is an instance that takes calls. Its fields are guarded by pool.mu.
type live struct {
	Instance
	start  *start
	since  time.Time
	calls  int64
	expiry *time.Timer // while idle
}

// prepared is a created sandbox.
type prepared struct {
	Instance
	since  time.Time
	expiry *time.Timer
}

// start is how an instance came to life, told to the call that gets it first.
type start struct {
	kind   string // as CallRecord.Start
	trace  *trace.Trace
	output []piece          // what the module printed while it loaded
	reads  image.BlockStats // of the image, before it
}

type piece struct {
	stream string
	data   []byte
}

// waiter is a call that waits for an instance.
type waiter struct {
	given chan handover // has room for one
}

type handover struct {
	inst *live
	err  error
}

func newPool(s *Scheduler, d store.Digest, f *function.Function) *pool {
	p := &pool{s: s, digest: d, fn: f}
	p.mu.busy = map[*live]struct{}{}
	return p
}

// acquire gives an instance that is the caller's until release or discard; fresh
// tells that it has had no call before.
func (p *pool) acquire(ctx context.Context) (_ *live, fresh bool, err error) {
	p.mu.Lock()
	for len(p.mu.idle) > 0 {
		l := p.mu.idle[len(p.mu.idle)-1]
		p.mu.idle = p.mu.idle[:len(p.mu.idle)-1]
		l.expiry.Stop()
		if l.Alive() {
			fresh := p.takeLocked(l)
			p.balanceLocked()
			p.mu.Unlock()
			return l, fresh, nil
		}
		p.destroyLocked(l)
	}
	w := &waiter{given: make(chan handover, 1)}
	p.mu.waiters = append(p.mu.waiters, w)
	p.balanceLocked()
	p.mu.Unlock()

	select {
	case h := <-w.given:
		return p.received(h)
	case <-ctx.Done():
		if p.forget(w) {
			return nil, false, context.Cause(ctx)
		}
		// Something was handed over at the same moment: pass it on.
		if h := <-w.given; h.inst != nil {
			p.release(h.inst)
		}
		return nil, false, context.Cause(ctx)
	case <-p.s.ctx.Done():
		return nil, false, fault.New(fault.Unavailable, "the server is shutting down")
	}
}

func (p *pool) received(h handover) (*live, bool, error) {
	if h.err != nil {
		return nil, false, h.err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return h.inst, p.takeLocked(h.inst), nil
}

// takeLocked marks l as busy with one more call.
func (p *pool) takeLocked(l *live) (fresh bool) {
	p.mu.busy[l] = struct{}{}
	l.calls++
	return l.calls == 1
}

func (p *pool) forget(w *waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, x := range p.mu.waiters {
		if x == w {
			p.mu.waiters = append(p.mu.waiters[:i], p.mu.waiters[i+1:]...)
			return true
		}
	}
	return false
}

// release gives an instance back after a call that left it whole.
func (p *pool) release(l *live) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.busy, l)
	p.handLocked(l)
	p.balanceLocked()
}

// discard destroys an instance whose call broke it.
func (p *pool) discard(l *live) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.busy, l)
	p.destroyLocked(l)
	p.balanceLocked()
}

// handLocked gives l to the first waiter, or makes it idle.
func (p *pool) handLocked(l *live) {
	switch {
	case p.mu.closed:
		p.destroyLocked(l)
	case len(p.mu.waiters) > 0:
		w := p.mu.waiters[0]
		p.mu.waiters = p.mu.waiters[1:]
		p.mu.busy[l] = struct{}{}
		w.given <- handover{inst: l}
	case p.mu.retired:
		p.destroyLocked(l)
	default:
		l.since = time.Now()
		p.mu.idle = append(p.mu.idle, l)
		l.expiry = time.AfterFunc(function.Seconds(p.fn.Spec.ScaledownWindow), func() { p.expire(l) })
	}
}

// expire lets an instance go that has been idle for the scaledown window, unless
// min_containers keeps it.
func (p *pool) expire(l *live) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, x := range p.mu.idle {
		if x != l {
			continue
		}
		if len(p.mu.idle)+len(p.mu.busy) <= p.fn.Spec.MinContainers && !p.mu.retired {
			l.expiry.Reset(function.Seconds(p.fn.Spec.ScaledownWindow))
			return
		}
		p.mu.idle = append(p.mu.idle[:i], p.mu.idle[i+1:]...)
		p.destroyLocked(l)
		return
	}
}

// destroyLocked destroys on another goroutine: it takes some 50 ms.
func (p *pool) destroyLocked(i Instance) {
	if !p.s.background(i.Destroy) {
		i.Destroy() // closing
	}
}

// balanceLocked starts as many instances as the waiters and the buffer want.
func (p *pool) balanceLocked() {
	if p.mu.closed {
		return
	}
	want := len(p.mu.waiters)
	if !p.mu.retired {
		if want > 0 || len(p.mu.busy) > 0 {
			want += p.fn.Spec.BufferContainers - len(p.mu.idle)
		}
		want = max(want, p.fn.Spec.MinContainers-len(p.mu.idle)-len(p.mu.busy))
	}
	for p.mu.starting < want && len(p.mu.idle)+len(p.mu.busy)+p.mu.starting < p.fn.Spec.MaxContainers {
		p.mu.starting++
		if !p.s.background(p.start) {
			p.mu.starting--
			return
		}
	}
}

// start brings one instance to life and hands it over.
func (p *pool) start() {
	st := &start{trace: trace.New()}
	inst, err := p.bring(trace.With(p.s.ctx, st.trace), st)
	if err == nil {
		p.s.tallies.started(st)
	} else {
		p.s.tallies.add(&p.s.tallies.unborn)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.starting--
	if err == nil {
		p.handLocked(&live{Instance: inst, start: st, since: time.Now()})
		p.afterStartLocked(st)
		return
	}
	if p.s.ctx.Err() == nil {
		p.s.opt.Log.Warn("an instance did not start", "function", p.fn.Name, "error", err)
	}
	if len(p.mu.waiters) == 0 {
		return // a buffer instance: no call is the worse for it, and the next one tries again
	}
	w := p.mu.waiters[0]
	p.mu.waiters = p.mu.waiters[1:]
	w.given <- handover{err: err}
	p.balanceLocked()
}

// bring restores a snapshot, or starts clean when that cannot be.
func (p *pool) bring(ctx context.Context, st *start) (_ Instance, err error) {
	if inst := p.bringCreated(ctx, st); inst != nil {
		return inst, nil
	}
	inst, err := p.s.opt.Node.Prepare(ctx, p.fn)
	if err != nil {
		return nil, err
	}
	st.kind = "cold"
	st.reads, _ = inst.Reads()
	if p.fn.Spec.Snapshot {
		snap, reason := p.s.opt.Snapshots.Find(ctx, inst.Key())
		if snap == nil {
			st.trace.Add("snapshot", time.Now(), 0, reason)
		} else {
			err := inst.Restore(ctx, snap)
			if err == nil {
				st.kind = "restored-fresh"
				return inst, nil
			}
			inst.Destroy() // with all that the failed restore has left in it
			if ctx.Err() != nil {
				return nil, fault.New(fault.Unavailable, "the server is shutting down")
			}
			p.s.opt.Snapshots.Failed(snap, err)
			p.s.opt.Log.Warn("a restore failed; starting clean instead", "function", p.fn.Name, "error", err)
			st.trace.Add("snapshot", time.Now(), 0, "restoring failed, starting clean: "+err.Error())
			st.kind = "fallback"
			if inst, err = p.s.opt.Node.Prepare(ctx, p.fn); err != nil {
				return nil, err
			}
		}
	}
	if err := inst.Start(ctx, st.keep); err != nil {
		inst.Destroy()
		return nil, err
	}
	return inst, nil
}

// bringCreated restores into a sandbox that was created beforehand. It gives nil
// if there is none or it fails, which is not the snapshot's fault: a sandbox may
// have died while it waited.
func (p *pool) bringCreated(ctx context.Context, st *start) Instance {
	inst := p.takeCreated()
	if inst == nil {
		return nil
	}
	st.kind = "restored"
	st.reads, _ = inst.Reads()
	if snap, _ := p.s.opt.Snapshots.Find(ctx, inst.Key()); snap != nil {
		err := inst.Restore(ctx, snap)
		if err == nil {
			return inst
		}
		if ctx.Err() == nil {
			p.s.opt.Log.Warn("a created sandbox could not be used", "function", p.fn.Name, "error", err)
			st.trace.Add("created sandbox", time.Now(), 0, "could not be used: "+err.Error())
		}
	}
	inst.Destroy()
	return nil
}

// maxStartOutput bounds what is kept of a module's output for its first call.
const maxStartOutput = 1 << 20

// keep is the sink of a starting instance.
func (st *start) keep(stream string, p []byte) {
	var n int
	for _, o := range st.output {
		n += len(o.data)
	}
	if n+len(p) <= maxStartOutput {
		st.output = append(st.output, piece{stream, append([]byte(nil), p...)})
	}
}

// afterStartLocked sees to what the next cold start will want.
func (p *pool) afterStartLocked(st *start) {
	if !p.fn.Spec.Snapshot || p.mu.retired {
		return
	}
	switch st.kind {
	case "cold", "fallback":
		if p.s.opt.Snapshots.Wanted(p.digest) {
			p.s.background(p.makeSnapshot)
		}
	default:
		p.refillLaterLocked()
	}
}

// makeSnapshot starts an instance that will see no call and makes it the snapshot.
func (p *pool) makeSnapshot() {
	select {
	case p.s.making <- struct{}{}:
		defer func() { <-p.s.making }()
	case <-p.s.ctx.Done():
		return
	}
	if !p.s.opt.Snapshots.Wanted(p.digest) {
		return
	}
	ctx := p.s.ctx
	inst, err := p.s.opt.Node.Prepare(ctx, p.fn)
	if err != nil {
		p.s.opt.Log.Warn("no sandbox for making a snapshot", "function", p.fn.Name, "error", err)
		return
	}
	defer inst.Destroy()
	began := time.Now()
	snap, err := p.s.opt.Snapshots.Make(ctx, inst.Key(), p.fn.App+"."+p.fn.Name, func(dir string) error {
		if err := inst.Start(ctx, func(string, []byte) {}); err != nil {
			return err
		}
		return inst.Checkpoint(ctx, dir)
	})
	switch {
	case err == nil:
		p.s.tallies.add(&p.s.tallies.snapped)
		p.s.opt.Log.Info("made a snapshot", "function", p.fn.Name, "bytes", snap.Manifest.Bytes(), "ms", time.Since(began).Milliseconds())
		p.mu.Lock()
		p.refillLaterLocked()
		p.mu.Unlock()
	case ctx.Err() == nil:
		p.s.tallies.add(&p.s.tallies.unmade)
		p.s.opt.Log.Warn("a snapshot could not be made", "function", p.fn.Name, "error", err)
	}
}

// takeCreated takes a created sandbox, or nil.
func (p *pool) takeCreated() Instance {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.mu.created) == 0 {
		return nil
	}
	c := p.mu.created[len(p.mu.created)-1]
	p.mu.created = p.mu.created[:len(p.mu.created)-1]
	c.expiry.Stop()
	return c.Instance
}

// refillLaterLocked sees to it that there will be created sandboxes again.
func (p *pool) refillLaterLocked() {
	if p.mu.creating || p.mu.closed || p.mu.retired || len(p.mu.created) >= p.s.opt.Created {
		return
	}
	p.mu.creating = true
	if !p.s.background(p.refill) {
		p.mu.creating = false
	}
}

func (p *pool) refill() {
	wait := time.NewTimer(refillDelay)
	defer wait.Stop()
	for {
		select {
		case <-wait.C:
		case <-p.s.ctx.Done():
		}
		inst, err := p.create()
		p.mu.Lock()
		if inst != nil && (p.mu.closed || p.mu.retired) {
			p.destroyLocked(inst)
			inst = nil
		}
		if inst != nil {
			c := &prepared{Instance: inst, since: time.Now()}
			c.expiry = time.AfterFunc(createdTTL, func() { p.dropCreated(c) })
			p.mu.created = append(p.mu.created, c)
		}
		if err != nil || inst == nil || len(p.mu.created) >= p.s.opt.Created {
			p.mu.creating = false
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		wait.Reset(0)
	}
}

func (p *pool) create() (Instance, error) {
	if err := p.s.ctx.Err(); err != nil {
		return nil, err
	}
	inst, err := p.s.opt.Node.Prepare(p.s.ctx, p.fn)
	if err != nil {
		p.s.opt.Log.Warn("no sandbox could be created beforehand", "function", p.fn.Name, "error", err)
		return nil, err
	}
	return inst, nil
}

func (p *pool) dropCreated(c *prepared) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, x := range p.mu.created {
		if x == c {
			p.mu.created = append(p.mu.created[:i], p.mu.created[i+1:]...)
			p.destroyLocked(c)
			return
		}
	}
}

// setRetired stops keeping anything for a definition that has been replaced, or
// starts again when it is back.
func (p *pool) setRetired(retired bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.retired = retired
	if retired {
		p.emptyLocked()
	}
}

func (p *pool) emptyLocked() {
	for _, l := range p.mu.idle {
		l.expiry.Stop()
		p.destroyLocked(l)
	}
	for _, c := range p.mu.created {
		c.expiry.Stop()
		p.destroyLocked(c)
	}
	p.mu.idle, p.mu.created = nil, nil
}

// close destroys everything, busy instances included.
func (p *pool) close() {
	p.mu.Lock()
	p.mu.closed = true
	all := make([]Instance, 0, len(p.mu.idle)+len(p.mu.created)+len(p.mu.busy))
	for _, l := range p.mu.idle {
		l.expiry.Stop()
		all = append(all, l)
	}
	for _, c := range p.mu.created {
		c.expiry.Stop()
		all = append(all, c)
	}
	for l := range p.mu.busy {
		all = append(all, l)
	}
	p.mu.idle, p.mu.created = nil, nil
	p.mu.Unlock()
	var wg sync.WaitGroup
	for _, i := range all {
		wg.Go(i.Destroy)
	}
	wg.Wait()
}

func (p *pool) records() []InstanceRecord {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []InstanceRecord
	add := func(i Instance, state string, l *live, since time.Time) {
		r := InstanceRecord{
			ID: i.Name(), Workspace: p.fn.Workspace, Node: p.s.opt.Node.ID(), App: p.fn.App, Function: p.fn.Name,
			Image: p.fn.Image.Short(), State: state, Since: since.UTC(), MemoryMax: p.fn.Spec.Memory << 20,
		}
		if l != nil {
			r.Start, r.Calls = l.start.kind, l.calls
		}
		out = append(out, r)
	}
	for l := range p.mu.busy {
		add(l, "busy", l, l.since)
	}
	for _, l := range p.mu.idle {
		add(l, "idle", l, l.since)
	}
	for _, c := range p.mu.created {
		add(c, "created", nil, c.since)
	}
	return out
}

// loadError finds the user's own mistake in a start that failed.
func loadError(err error) *node.LoadError {
	if le, ok := errors.AsType[*node.LoadError](err); ok {
		return le
	}
	return nil
}

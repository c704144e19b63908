package remote

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// Neighbours become one request if no more than mergeGap bytes between them are
// wanted by nobody, and all is no more than mergeMost: so much takes as long as the
// round trip at 25 ms and 160 MB/s.
const (
	mergeGap  = 4 << 10
	mergeMost = 4 << 20
	mergeWait = 2 * time.Millisecond // is never longer
)

// gather are the reads that wait for neighbours, by object.
type gather struct {
	mu      sync.Mutex
	objects map[string]*object
}

type object struct {
	running int     // requests
	waiting []*want // for the next
	set     bool    // somebody will start them
}

// want is what one reader wants of an object.
type want struct {
	off  int64
	n    int
	in   *request      // valid when done is closed, unless err
	err  error         //
	done chan struct{} //
	gone bool          // the reader has left; guarded by gather.mu
	ctx  context.Context
}

// request is one range that is read for some wants.
type request struct {
	off    int64
	data   []byte
	wants  []*want
	cancel context.CancelFunc
}

// ReadAt implements store.Origin.
func (o *Origin) ReadAt(ctx context.Context, key string, p []byte, off int64) error {
	ctx, leave, err := o.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if err := ctx.Err(); err != nil {
		return fault.Wrap(err, "read", key)
	}
	w := o.submit(ctx, key, off, len(p))
	if w == nil {
		defer o.finish(key)
		data, err := o.fetch(ctx, key, off, p)
		if err != nil {
			return err
		}
		if len(p) > 0 && &data[0] != &p[0] { // the second read was faster
			copy(p, data)
		}
		o.counts.bytes.Add(int64(len(p)))
		return nil
	}
	select {
	case <-w.done:
		if w.err != nil {
			return w.err
		}
		copy(p, w.in.data[off-w.in.off:])
		o.counts.bytes.Add(int64(len(p)))
		return nil
	case <-ctx.Done():
		o.leave(w)
		return fault.Wrap(ctx.Err(), "read", key)
	}
}

// submit lets a read wait for neighbours; or gives nil, and the caller reads by
// itself and then calls finish, because there is nobody to wait for.
func (o *Origin) submit(ctx context.Context, key string, off int64, n int) *want {
	g := &o.gather
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.objects == nil {
		g.objects = map[string]*object{}
	}
	obj := g.objects[key]
	if obj == nil {
		obj = &object{}
		g.objects[key] = obj
	}
	wait := min(o.tail.usual()/8, mergeWait)
	if obj.running == 0 || wait == 0 {
		obj.running++
		return nil
	}
	w := &want{off: off, n: n, done: make(chan struct{}), ctx: ctx}
	obj.waiting = append(obj.waiting, w)
	if !obj.set {
		obj.set = true
		o.wg.Add(1)
		time.AfterFunc(wait, func() {
			defer o.wg.Done()
			g.mu.Lock()
			defer g.mu.Unlock()
			waiting := obj.waiting
			obj.set, obj.waiting = false, nil
			for _, group := range neighbours(waiting) {
				o.start(key, obj, group)
			}
			o.forget(key, obj)
		})
	}
	return w
}

// finish says that a request has ended.
func (o *Origin) finish(key string) {
	o.gather.mu.Lock()
	defer o.gather.mu.Unlock()
	obj := o.gather.objects[key]
	obj.running--
	o.forget(key, obj)
}

// neighbours sorts reads into those that become one request.
func neighbours(wants []*want) (groups [][]*want) {
	slices.SortFunc(wants, func(a, b *want) int { return cmp.Compare(a.off, b.off) })
	var from, to int64
	for i, w := range wants {
		end := w.off + int64(w.n)
		if i == 0 || w.off > to+mergeGap || max(end, to)-from > mergeMost {
			groups = append(groups, nil)
			from, to = w.off, end
		}
		last := len(groups) - 1
		groups[last] = append(groups[last], w)
		to = max(to, end)
	}
	return groups
}

// start reads what some want in one request. Precondition: gather.mu is held.
func (o *Origin) start(key string, obj *object, wants []*want) {
	wants = slices.DeleteFunc(wants, func(w *want) bool { return w.gone })
	if len(wants) == 0 {
		return
	}
	r := &request{off: wants[0].off, wants: wants}
	end := r.off
	for _, w := range wants {
		w.in = r
		end = max(end, w.off+int64(w.n))
	}
	// It ends when the last who wants it has gone, not the first.
	ctx, cancel := context.WithCancel(context.WithoutCancel(wants[0].ctx))
	stop := context.AfterFunc(o.ctx, cancel)
	r.cancel = cancel
	obj.running++
	o.counts.merged.Add(int64(len(wants) - 1))
	o.wg.Go(func() {
		defer stop()
		defer cancel()
		data, err := o.fetch(ctx, key, r.off, make([]byte, end-r.off))
		if err != nil && len(wants) > 1 && !fault.Is(err, fault.Unavailable) && ctx.Err() == nil {
			o.apart(ctx, key, wants) // whose is it?
		} else {
			r.data = data
			for _, w := range wants {
				w.err = err
				close(w.done)
			}
		}
		o.finish(key)
	})
}

// forget drops an object of which nothing is wanted. Precondition: gather.mu is held.
func (o *Origin) forget(key string, obj *object) {
	if obj.running == 0 && !obj.set {
		delete(o.gather.objects, key)
	}
}

// apart reads what each wants by itself.
func (o *Origin) apart(ctx context.Context, key string, wants []*want) {
	var wg sync.WaitGroup
	for _, w := range wants {
		wg.Go(func() {
			data, err := o.fetch(ctx, key, w.off, make([]byte, w.n))
			w.in, w.err = &request{off: w.off, data: data}, err
			close(w.done)
		})
	}
	wg.Wait()
}

// leave is called by a reader that waits no longer.
func (o *Origin) leave(w *want) {
	o.gather.mu.Lock()
	defer o.gather.mu.Unlock()
	w.gone = true
	if w.in == nil {
		return // start will leave it out
	}
	for _, other := range w.in.wants {
		if !other.gone {
			return
		}
	}
	if w.in.cancel != nil {
		w.in.cancel()
	}
}

// fetch reads one range, into buf or into memory of its own.
func (o *Origin) fetch(ctx context.Context, key string, off int64, buf []byte) (data []byte, err error) {
	read := func(ctx context.Context, second bool) ([]byte, error) {
		b := buf
		if second {
			b = make([]byte, len(buf))
		}
		return b, o.origin.ReadAt(ctx, key, b, off)
	}
	err = o.try(ctx, key, again, func(ctx context.Context) error {
		if len(buf) <= hedgeSize {
			data, err = hedged(ctx, o, read)
		} else {
			data, err = read(ctx, false)
		}
		return err
	})
	return data, err
}

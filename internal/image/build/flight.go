package build

import (
	"context"
	"sync"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// flights makes one run of equal work that is wanted at the same time. A run
// belongs to nobody in particular: it goes on while anybody waits for it, and is
// cancelled when the last one has gone.
type flights struct {
	ctx    context.Context // of the runs
	cancel context.CancelFunc
	wg     sync.WaitGroup // the runs

	mu     sync.Mutex
	runs   map[store.Digest]*flight
	closed bool
}

func newFlights() *flights {
	f := &flights{runs: map[store.Digest]*flight{}}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

type flight struct {
	cancel  context.CancelFunc
	waiting int // guarded by flights.mu
	output  *output
	done    chan struct{}

	image store.Digest // valid when done
	err   error
}

// work makes an image and says on the way what it does.
type work func(ctx context.Context, out *output) (store.Digest, error)

// do runs work under a key, or joins the run that there is, and hands on what
// it prints, from its beginning, in the calling goroutine.
func (f *flights) do(ctx context.Context, key store.Digest, run work, emit func([]byte)) (store.Digest, error) {
	r, err := f.join(key, run)
	if err != nil {
		return store.Digest{}, err
	}
	defer f.leave(key, r)
	for offset := int64(0); ; {
		p, next, more := r.output.from(offset)
		offset = next
		switch {
		case len(p) > 0:
			emit(p)
			continue
		case more == nil:
			<-r.done // at once: the output ends just before
			return r.image, r.err
		}
		select {
		case <-more:
		case <-ctx.Done():
			return store.Digest{}, ctx.Err()
		}
	}
}

func (f *flights) join(key store.Digest, run work) (*flight, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, fault.New(fault.Cancelled, "the server is stopping")
	}
	if r := f.runs[key]; r != nil {
		r.waiting++
		return r, nil
	}
	ctx, cancel := context.WithCancel(f.ctx)
	r := &flight{cancel: cancel, waiting: 1, output: newOutput(), done: make(chan struct{})}
	f.runs[key] = r
	f.wg.Go(func() {
		defer cancel()
		r.image, r.err = run(ctx, r.output)
		f.mu.Lock()
		f.forget(key, r)
		f.mu.Unlock()
		close(r.done)
		r.output.end()
	})
	return r, nil
}

// leave cancels a run that nobody waits for. Whoever wants the same now starts anew.
func (f *flights) leave(key store.Digest, r *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.waiting--; r.waiting == 0 {
		f.forget(key, r)
		r.cancel()
	}
}

// forget makes room for another run. Precondition: f.mu is held.
func (f *flights) forget(key store.Digest, r *flight) {
	if f.runs[key] == r {
		delete(f.runs, key)
	}
}

// close cancels the runs and waits for them.
func (f *flights) close() {
	f.mu.Lock()
	f.closed = true
	f.cancel()
	f.mu.Unlock()
	f.wg.Wait()
}

package remote

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// Options say how much is borne, and for how long.
type Options struct {
	Parallel int           // requests in progress; 0 is 64: at 25 ms and 64 KiB a request that is 160 MB/s
	Attempt  time.Duration // for an attempt, or without progress; 0 is 10 s
	Overall  time.Duration // for all attempts at something small; 0 is 25 s, less than a store waits for a chunk, so that the error is the origin's own
	Attempts int           // at most; 0 is 8: three and a half seconds of delays on average, a restart of a server
	Log      *slog.Logger  // nil: slog.Default()
	Rand     func() float64
}

// Origin is another origin, with patience. Close it.
type Origin struct {
	origin  store.Origin
	opts    Options
	slots   chan struct{} // requests in progress
	breaker breaker
	tail    tail
	gather  gather
	counts  counters

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // reads in progress
}

var _ store.Origin = (*Origin)(nil)

// New gives an origin that asks another, which stays its owner's to close.
func New(o store.Origin, opts Options) *Origin {
	if opts.Parallel <= 0 {
		opts.Parallel = 64
	}
	if opts.Attempt <= 0 {
		opts.Attempt = 10 * time.Second
	}
	if opts.Overall <= 0 {
		opts.Overall = 25 * time.Second
	}
	if opts.Attempts <= 0 {
		opts.Attempts = 8
	}
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	if opts.Rand == nil {
		opts.Rand = rand.Float64
	}
	r := &Origin{origin: o, opts: opts, slots: make(chan struct{}, opts.Parallel)}
	r.breaker.log, r.breaker.rand = opts.Log, opts.Rand
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// Close ends the reads in progress and waits for them.
func (o *Origin) Close() error {
	o.gather.mu.Lock() // no read begins after this
	o.cancel()
	o.gather.mu.Unlock()
	o.wg.Wait()
	return nil
}

// enter begins a read that Close ends and waits for.
func (o *Origin) enter(ctx context.Context) (_ context.Context, leave func(), err error) {
	o.gather.mu.Lock()
	defer o.gather.mu.Unlock()
	if o.ctx.Err() != nil {
		return nil, nil, errClosed()
	}
	o.wg.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(o.ctx, cancel)
	return ctx, func() { stop(); cancel(); o.wg.Done() }, nil
}

func errClosed() error { return fault.New(fault.Cancelled, "the origin is closed") }

// Size implements store.Origin.
func (o *Origin) Size(ctx context.Context, key string) (size int64, err error) {
	err = o.try(ctx, key, again, func(ctx context.Context) error {
		size, err = o.origin.Size(ctx, key)
		return err
	})
	return size, err
}

// Get implements store.Origin.
func (o *Origin) Get(ctx context.Context, key string, max int64) (data []byte, v store.Version, err error) {
	type object struct {
		data    []byte
		version store.Version
	}
	var got object
	ctx, leave, err := o.enter(ctx)
	if err != nil {
		return nil, "", err
	}
	defer leave()
	err = o.try(ctx, key, again, func(ctx context.Context) error {
		got, err = hedged(ctx, o, func(ctx context.Context, _ bool) (object, error) {
			data, v, err := o.origin.Get(ctx, key, max)
			return object{data, v}, err
		})
		return err
	})
	o.counts.bytes.Add(int64(len(got.data)))
	return got.data, got.version, err
}

// Swap implements store.Origin.
func (o *Origin) Swap(ctx context.Context, key string, old store.Version, data []byte) (v store.Version, err error) {
	err = o.try(ctx, key, onlyIfRefused, func(ctx context.Context) error {
		v, err = o.origin.Swap(ctx, key, old, data)
		return err
	})
	return v, err
}

// Delete implements store.Origin.
func (o *Origin) Delete(ctx context.Context, key string) error {
	return o.try(ctx, key, again, func(ctx context.Context) error { return o.origin.Delete(ctx, key) })
}

package storetest

import (
	"context"
	"io"
	"sync"

	"brisk.dev/brisk/internal/store"
)

// Op is one operation on an origin, about to be done.
type Op struct {
	Name string // "put", "read", "size", "list" or "delete"
	Key  string // or prefix
}

// Faults is an origin that does what another does, after asking. It hides
// further abilities of the other (taking over files), so that a store over it
// works as over a remote origin.
type Faults struct {
	Origin store.Origin

	mu     sync.Mutex
	before func(ctx context.Context, op Op) error
	ops    []Op
}

var _ store.Origin = (*Faults)(nil)

// Before sets what is called before each operation, concurrently; an error is the
// operation's, which is then not done. nil removes it.
func (f *Faults) Before(fn func(ctx context.Context, op Op) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = fn
}

// Ops is what has been asked for so far.
func (f *Faults) Ops() []Op {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]Op(nil), f.ops...)
}

// Count is how many operations of a name there were.
func (f *Faults) Count(name string) (n int) {
	for _, op := range f.Ops() {
		if op.Name == name {
			n++
		}
	}
	return n
}

func (f *Faults) ask(ctx context.Context, name, key string) error {
	f.mu.Lock()
	f.ops = append(f.ops, Op{name, key})
	before := f.before
	f.mu.Unlock()
	if before == nil {
		return nil
	}
	return before(ctx, Op{name, key})
}

// Put implements store.Origin.
func (f *Faults) Put(ctx context.Context, key string, r io.Reader) error {
	if err := f.ask(ctx, "put", key); err != nil {
		return err
	}
	return f.Origin.Put(ctx, key, r)
}

// ReadAt implements store.Origin.
func (f *Faults) ReadAt(ctx context.Context, key string, p []byte, off int64) error {
	if err := f.ask(ctx, "read", key); err != nil {
		return err
	}
	return f.Origin.ReadAt(ctx, key, p, off)
}

// Size implements store.Origin.
func (f *Faults) Size(ctx context.Context, key string) (int64, error) {
	if err := f.ask(ctx, "size", key); err != nil {
		return 0, err
	}
	return f.Origin.Size(ctx, key)
}

// List implements store.Origin.
func (f *Faults) List(ctx context.Context, prefix string, fn func(key string, size int64) error) error {
	if err := f.ask(ctx, "list", prefix); err != nil {
		return err
	}
	return f.Origin.List(ctx, prefix, fn)
}

// Delete implements store.Origin.
func (f *Faults) Delete(ctx context.Context, key string) error {
	if err := f.ask(ctx, "delete", key); err != nil {
		return err
	}
	return f.Origin.Delete(ctx, key)
}

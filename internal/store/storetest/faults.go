package storetest

import (
	"bytes"
	"context"
	"io"
	"sync"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// Op is one operation on an origin, about to be done.
type Op struct {
	Name string // "put", "swap", "read", "open", "get", "size", "list" or "delete"
	Key  string // or prefix
}

// Faults is an origin that does what another does, after asking. It hides
// further abilities of the other (taking over files), so that a store over it
// works as over a remote origin.
type Faults struct {
	Origin store.Origin

	mu     sync.Mutex
	before func(ctx context.Context, op Op) error
	after  func(op Op, data *[]byte) error
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

// After sets what is called with each answer of ReadAt, Get and Open (whose stream it gets as a
// whole), concurrently: it may change or shorten the data. An error comes in place of the answer; that
// of a stream comes after the data. nil removes it.
func (f *Faults) After(fn func(op Op, data *[]byte) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.after = fn
}

func (f *Faults) answer() func(op Op, data *[]byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.after
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
	err := f.Origin.ReadAt(ctx, key, p, off)
	if after := f.answer(); err == nil && after != nil {
		b := bytes.Clone(p)
		err = after(Op{"read", key}, &b)
		if clear(p[copy(p, b):]); err == nil && len(b) < len(p) {
			err = &fault.Error{Class: fault.Corrupt, Op: "read", Object: key, Err: io.ErrUnexpectedEOF}
		}
	}
	return err
}

// Swap implements store.Origin.
func (f *Faults) Swap(ctx context.Context, key string, old store.Version, data []byte) (store.Version, error) {
	if err := f.ask(ctx, "swap", key); err != nil {
		return "", err
	}
	return f.Origin.Swap(ctx, key, old, data)
}

// Open implements store.Origin.
func (f *Faults) Open(ctx context.Context, key string, off int64) (io.ReadCloser, error) {
	if err := f.ask(ctx, "open", key); err != nil {
		return nil, err
	}
	r, err := f.Origin.Open(ctx, key, off)
	if after := f.answer(); err == nil && after != nil {
		b, err := io.ReadAll(r)
		r.Close()
		if err == nil {
			err = after(Op{"open", key}, &b)
		}
		return io.NopCloser(io.MultiReader(bytes.NewReader(b), failing{err})), nil
	}
	return r, err
}

// failing is the end of a stream.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	return 0, io.EOF
}

// Get implements store.Origin.
func (f *Faults) Get(ctx context.Context, key string, max int64) ([]byte, store.Version, error) {
	if err := f.ask(ctx, "get", key); err != nil {
		return nil, "", err
	}
	b, v, err := f.Origin.Get(ctx, key, max)
	if after := f.answer(); err == nil && after != nil {
		err = after(Op{"get", key}, &b)
	}
	return b, v, err
}

// Size implements store.Origin.
func (f *Faults) Size(ctx context.Context, key string) (int64, error) {
	if err := f.ask(ctx, "size", key); err != nil {
		return 0, err
	}
	return f.Origin.Size(ctx, key)
}

// List implements store.Origin.
func (f *Faults) List(ctx context.Context, prefix string, fn func(store.Object) error) error {
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

// Forget makes Ops and Count begin anew.
func (f *Faults) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ops = nil
}

package storetest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// MemOrigin is an origin in memory. It outlives stores, so a test can open
// another store over the same one.
type MemOrigin struct {
	Clock func() time.Time // of the origin, for Object.Modified; nil = time.Now

	mu      sync.Mutex
	swaps   int
	objects map[string]memObject
}

type memObject struct {
	data     []byte // never changed
	version  store.Version
	modified time.Time
}

// NewMemOrigin makes an empty one.
func NewMemOrigin() *MemOrigin { return &MemOrigin{objects: map[string]memObject{}} }

var _ store.Origin = (*MemOrigin)(nil)

// keep stores an object. Precondition: o.mu is held.
func (o *MemOrigin) keep(key string, data []byte) store.Version {
	clock := o.Clock
	if clock == nil {
		clock = time.Now
	}
	o.swaps++
	v := store.Version(strconv.Itoa(o.swaps))
	o.objects[key] = memObject{data, v, clock()}
	return v
}

// Put implements store.Origin.
func (o *MemOrigin) Put(ctx context.Context, key string, r io.Reader) error {
	if err := store.CheckKey(key); err != nil {
		return err
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return fault.Wrap(err, "put", key)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.objects[key]; !ok {
		o.keep(key, b)
	}
	return nil
}

// Swap implements store.Origin.
func (o *MemOrigin) Swap(ctx context.Context, key string, old store.Version, data []byte) (store.Version, error) {
	if err := store.CheckKey(key); err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := o.objects[key].version; now != old {
		return "", fault.New(fault.Exists, "object %q has version %q, not %q", key, now, old)
	}
	return o.keep(key, bytes.Clone(data)), nil
}

func (o *MemOrigin) get(ctx context.Context, key string) (memObject, error) {
	if err := store.CheckKey(key); err != nil {
		return memObject{}, err
	}
	if err := ctx.Err(); err != nil {
		return memObject{}, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	object, ok := o.objects[key]
	if !ok {
		return object, fault.New(fault.NotFound, "no object %q", key)
	}
	return object, nil
}

func short(key string) error {
	return &fault.Error{Class: fault.Corrupt, Op: "read", Object: key, Err: fmt.Errorf("short: %w", io.ErrUnexpectedEOF)}
}

// ReadAt implements store.Origin.
func (o *MemOrigin) ReadAt(ctx context.Context, key string, p []byte, off int64) error {
	object, err := o.get(ctx, key)
	if err != nil {
		return err
	}
	if n, _ := bytes.NewReader(object.data).ReadAt(p, off); n < len(p) {
		return short(key)
	}
	return nil
}

// Open implements store.Origin.
func (o *MemOrigin) Open(ctx context.Context, key string, off int64) (io.ReadCloser, error) {
	object, err := o.get(ctx, key)
	if err != nil {
		return nil, err
	}
	if off < 0 || off > 0 && off >= int64(len(object.data)) {
		return nil, short(key)
	}
	r := bytes.NewReader(object.data[off:])
	return io.NopCloser(readerFunc(func(p []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		return r.Read(p)
	})), nil
}

// Get implements store.Origin.
func (o *MemOrigin) Get(ctx context.Context, key string, max int64) ([]byte, store.Version, error) {
	object, err := o.get(ctx, key)
	if err != nil {
		return nil, "", err
	}
	if int64(len(object.data)) > max {
		return nil, "", fault.New(fault.Corrupt, "object %q has %d bytes, more than %d", key, len(object.data), max)
	}
	return bytes.Clone(object.data), object.version, nil
}

// Size implements store.Origin.
func (o *MemOrigin) Size(ctx context.Context, key string) (int64, error) {
	object, err := o.get(ctx, key)
	return int64(len(object.data)), err
}

// List implements store.Origin.
func (o *MemOrigin) List(ctx context.Context, prefix string, fn func(store.Object) error) error {
	o.mu.Lock()
	var objects []store.Object
	for key, object := range o.objects {
		if strings.HasPrefix(key, prefix) {
			objects = append(objects, store.Object{Key: key, Size: int64(len(object.data)), Modified: object.modified})
		}
	}
	o.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, object := range objects {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := fn(object); err != nil {
			return err
		}
	}
	return nil
}

// Delete implements store.Origin.
func (o *MemOrigin) Delete(ctx context.Context, key string) error {
	if err := store.CheckKey(key); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.objects, key)
	return nil
}

// Change replaces an object's content by what fn makes of it, and no more: damage for tests.
func (o *MemOrigin) Change(key string, fn func([]byte) []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	object, ok := o.objects[key]
	data := fn(bytes.Clone(object.data))
	if !ok {
		o.keep(key, data)
		return
	}
	object.data = data
	o.objects[key] = object
}

// MemCache is a cache in memory, without a limit.
type MemCache struct {
	mu     sync.Mutex
	chunks map[store.Digest][]byte
	stats  store.CacheStats
}

// NewMemCache makes an empty one.
func NewMemCache() *MemCache { return &MemCache{chunks: map[store.Digest][]byte{}} }

var _ store.Cache = (*MemCache)(nil)

// Read implements store.Cache.
func (m *MemCache) Read(c store.Chunk, dst []byte) (bool, error) {
	if len(dst) != int(c.Size) {
		return false, fault.New(fault.Invalid, "read chunk %s into %d bytes", c, len(dst))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.chunks[c.Digest]
	if !ok || len(b) != len(dst) {
		m.stats.Misses++
		return false, nil
	}
	m.stats.Hits++
	copy(dst, b)
	return true, nil
}

// ReadRun implements store.Cache.
func (m *MemCache) ReadRun(chunks []store.Chunk, dst []byte, off int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	var run []byte
	for _, c := range chunks {
		b, ok := m.chunks[c.Digest]
		if !ok || len(b) != int(c.Size) {
			return false
		}
		run = append(run, b...)
		run = append(run, make([]byte, -len(b)&(store.BlockSize-1))...)
	}
	if off < 0 || off > int64(len(run)-len(dst)) {
		return false
	}
	m.stats.Hits += int64(len(chunks))
	copy(dst, run[off:])
	return true
}

// Write implements store.Cache.
func (m *MemCache) Write(c store.Chunk, data []byte) error {
	if c.Size == 0 || c.Size > store.ChunkSize || len(data) != int(c.Size) || c.Digest.IsZero() {
		return fault.New(fault.Invalid, "write chunk %s of %d bytes", c, len(data))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.chunks[c.Digest]; !ok {
		m.chunks[c.Digest] = bytes.Clone(data)
		m.stats.Writes++
		m.stats.Chunks++
		m.stats.Bytes += int64(len(data))
	}
	return nil
}

// Has implements store.Cache.
func (m *MemCache) Has(d store.Digest) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.chunks[d]
	return ok
}

// Pin implements store.Cache; nothing is ever evicted.
func (m *MemCache) Pin(string, []store.Chunk) {}

// Unpin implements store.Cache.
func (m *MemCache) Unpin(string) {}

// Stats implements store.Cache.
func (m *MemCache) Stats() store.CacheStats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stats
}

// Close implements store.Cache.
func (m *MemCache) Close() error { return nil }

// Clear forgets everything, as if the machine were new.
func (m *MemCache) Clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.chunks)
	m.stats.Chunks, m.stats.Bytes = 0, 0
}

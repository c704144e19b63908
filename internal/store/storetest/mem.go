package storetest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// MemOrigin is an origin in memory. It outlives stores, so a test can open
// another store over the same one.
type MemOrigin struct {
	mu      sync.Mutex
	objects map[string][]byte
}

// NewMemOrigin makes an empty one.
func NewMemOrigin() *MemOrigin { return &MemOrigin{objects: map[string][]byte{}} }

var _ store.Origin = (*MemOrigin)(nil)

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
		o.objects[key] = b
	}
	return nil
}

func (o *MemOrigin) get(ctx context.Context, key string) ([]byte, error) {
	if err := store.CheckKey(key); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	b, ok := o.objects[key]
	if !ok {
		return nil, fault.New(fault.NotFound, "no object %q", key)
	}
	return b, nil
}

// ReadAt implements store.Origin.
func (o *MemOrigin) ReadAt(ctx context.Context, key string, p []byte, off int64) error {
	b, err := o.get(ctx, key)
	if err != nil {
		return err
	}
	if n, _ := bytes.NewReader(b).ReadAt(p, off); n < len(p) {
		return &fault.Error{Class: fault.Corrupt, Op: "read", Object: key, Err: fmt.Errorf("short: %w", io.ErrUnexpectedEOF)}
	}
	return nil
}

// Size implements store.Origin.
func (o *MemOrigin) Size(ctx context.Context, key string) (int64, error) {
	b, err := o.get(ctx, key)
	return int64(len(b)), err
}

// List implements store.Origin.
func (o *MemOrigin) List(ctx context.Context, prefix string, fn func(key string, size int64) error) error {
	o.mu.Lock()
	sizes := map[string]int64{}
	for key, b := range o.objects {
		if strings.HasPrefix(key, prefix) {
			sizes[key] = int64(len(b))
		}
	}
	o.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	for key, size := range sizes {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := fn(key, size); err != nil {
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

// Change replaces an object's content by what fn makes of it: damage for tests.
func (o *MemOrigin) Change(key string, fn func([]byte) []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.objects[key] = fn(bytes.Clone(o.objects[key]))
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

package lazyfs

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/image/erofs"
	"brisk.dev/brisk/internal/store"
)

// fakeBlocks is data in memory with faults.
type fakeBlocks struct {
	data  []byte
	reads atomic.Int64

	mu    sync.Mutex
	fault func(ctx context.Context, off, n int64) error // nil: none
}

func (b *fakeBlocks) Size() int64 { return int64(len(b.data)) }

func (b *fakeBlocks) ReadAt(ctx context.Context, p []byte, off int64) error {
	b.reads.Add(1)
	b.mu.Lock()
	fault := b.fault
	b.mu.Unlock()
	if fault != nil {
		if err := fault(ctx, off, int64(len(p))); err != nil {
			return err
		}
	}
	if copy(p, b.data[off:]) != len(p) {
		return errors.New("read behind the end")
	}
	return nil
}

func (b *fakeBlocks) set(fault func(ctx context.Context, off, n int64) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fault = fault
}

// hang makes reads wait until release is called or they are cancelled, and says
// when the first waits.
func (b *fakeBlocks) hang() (begun <-chan struct{}, release func()) {
	first, gate := make(chan struct{}), make(chan struct{})
	var once sync.Once
	b.set(func(ctx context.Context, off, n int64) error {
		once.Do(func() { close(first) })
		select {
		case <-gate:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return first, sync.OnceFunc(func() { close(gate) })
}

// testImage is an image of regular files, and what they contain.
type testImage struct {
	Image
	fake  *fakeBlocks
	files map[string][]byte
	at    map[string]int64 // where each file's data begins on the device
}

// makeImage lays files out one after the other. Each begins at a block of its own.
func makeImage(t testing.TB, files map[string][]byte) *testImage {
	t.Helper()
	img := &testImage{fake: &fakeBlocks{}, files: files, at: map[string]int64{}}
	root := &erofs.Inode{Mode: unix.S_IFDIR | 0o755}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		data := files[name]
		n := &erofs.Inode{Mode: unix.S_IFREG | 0o644, Size: int64(len(data))}
		img.at[name] = int64(len(img.fake.data))
		for off := 0; off < len(data); off += erofs.ChunkSize {
			n.Addrs = append(n.Addrs, uint32((len(img.fake.data)+off)/erofs.BlockSize))
		}
		img.fake.data = append(img.fake.data, data...)
		for len(img.fake.data)%erofs.BlockSize != 0 {
			img.fake.data = append(img.fake.data, 0xee) // behind the end of a file
		}
		root.Entries = append(root.Entries, erofs.Entry{Name: name, Inode: n})
	}
	erofs.Sort(root.Entries)
	meta, err := erofs.Encode(root, uint32(len(img.fake.data)/erofs.BlockSize))
	require.NoError(t, err)
	img.ID = store.Sum(append(bytes.Clone(meta.Bytes), img.fake.data...)).String()
	img.Meta = filepath.Join(t.TempDir(), "meta")
	require.NoError(t, os.WriteFile(img.Meta, meta.Bytes, 0o600))
	img.Blocks = img.fake
	return img
}

// noise is data without any zero block, and different for each seed.
func noise(seed uint64, n int) []byte {
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 1})
	b := make([]byte, n)
	r.Read(b)
	return b
}

func oneFile(t testing.TB, n int) *testImage {
	return makeImage(t, map[string][]byte{"file": noise(7, n)})
}

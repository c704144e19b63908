package lazyfs

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// BenchmarkMount is from Mount to the first directory listing, 30,000 files.
func BenchmarkMount(b *testing.B) {
	needRoot(b)
	files := map[string][]byte{}
	for i := range 30_000 {
		files[fmt.Sprintf("file-%05d", i)] = []byte("x")
	}
	img := makeImage(b, files)
	f := open(b, Options{Dir: b.TempDir()})
	for b.Loop() {
		m, err := f.Mount(context.Background(), img.Image)
		require.NoError(b, err)
		d, err := os.Open(m.Path)
		require.NoError(b, err)
		names, err := d.Readdirnames(100)
		require.NoError(b, err)
		require.Len(b, names, 100)
		d.Close()
		m.Release()
		b.StopTimer()
		require.Equal(b, 1, f.Sweep())
		b.StartTimer()
	}
}

// BenchmarkSequential reads a file from beginning to end with cold page caches,
// for chunks that are at hand and for ones that take 3 ms, and counts the requests.
func BenchmarkSequential(b *testing.B) {
	needRoot(b)
	img := oneFile(b, 64<<20)
	for _, delay := range []time.Duration{0, 3 * time.Millisecond} {
		for _, compat := range []bool{false, true} {
			for _, ahead := range []int{128, 256, 512, 1024, 2048, 4096} {
				b.Run(fmt.Sprintf("delay=%s/compat=%v/ahead=%dK", delay, compat, ahead), func(b *testing.B) {
					if delay > 0 {
						img.fake.set(func(_ context.Context, off, n int64) error { time.Sleep(delay); return nil })
					} else {
						img.fake.set(nil)
					}
					f := open(b, Options{Dir: b.TempDir(), ReadAhead: ahead << 10, Compat: compat})
					m, err := f.Mount(context.Background(), img.Image)
					require.NoError(b, err)
					file, err := os.Open(filepath.Join(m.Path, "file"))
					require.NoError(b, err)
					defer file.Close()
					buf := make([]byte, 256<<10)
					b.SetBytes(64 << 20)
					for b.Loop() {
						require.NoError(b, unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED))
						_, err := file.Seek(0, io.SeekStart)
						require.NoError(b, err)
						for n := 0; err == nil; n, err = file.Read(buf) {
							_ = n
						}
					}
					b.ReportMetric(float64(f.Stats(img.ID).Requests)/float64(b.N), "reads/op")
				})
			}
		}
	}
}

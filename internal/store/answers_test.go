package store_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	remotely "brisk.dev/brisk/internal/store/remote"
	"brisk.dev/brisk/internal/store/seal"
	"brisk.dev/brisk/internal/store/slab"
	"brisk.dev/brisk/internal/store/storetest"
)

// distortions are what may come instead of what was asked for. before is the answer
// to another question.
var distortions = map[string]func(data, before []byte) []byte{
	"truncated": func(data, _ []byte) []byte { return data[:len(data)*2/3] },
	"empty":     func([]byte, []byte) []byte { return nil },
	"another range, or an older object": func(data, before []byte) []byte {
		return append(bytes.Clone(before), data...)[:len(data)]
	},
	"twice": func(data, _ []byte) []byte {
		return append(bytes.Clone(data[:len(data)/2]), data[:len(data)-len(data)/2]...)
	},
	"its end first":  func(data, _ []byte) []byte { return append(bytes.Clone(data[len(data)/2:]), data[:len(data)/2]...) },
	"a bit":          func(data, _ []byte) []byte { b := bytes.Clone(data); b[len(b)/2] ^= 4; return b },
	"zeros":          func(data, _ []byte) []byte { return make([]byte, len(data)) },
	"something else": func(data, _ []byte) []byte { return storetest.Data(99, len(data)) },
}

// stock is a store with chunks, a blob and a record, and its origin.
type stock struct {
	mem    *storetest.MemOrigin
	faults *storetest.Faults
	opts   store.Options
	pieces [][]byte
	chunks []store.Chunk
	packs  []store.Digest
	blob   store.Digest
}

const manifest = `{"a":"manifest of some length, so that half of it is something"}`

func newStock(t *testing.T, sealed bool) *stock {
	t.Helper()
	w := &stock{mem: storetest.NewMemOrigin()}
	w.faults = &storetest.Faults{Origin: w.mem}
	w.opts = store.Options{Origin: w.faults, Sealed: sealed, Log: storetest.Log(t)}
	if sealed {
		ring, err := seal.OpenKeyring(t.TempDir())
		require.NoError(t, err)
		w.opts.Keys, err = ring.Keys("w")
		require.NoError(t, err)
	}
	for i := range 4 {
		w.pieces = append(w.pieces, storetest.Data(uint64(i), 20_000+1000*i))
	}
	s := w.open(t, t.TempDir(), nil)
	var written store.Written
	w.chunks, written = storetest.Commit(t, s, w.pieces...)
	w.packs = written.Packs
	var err error
	w.blob, err = s.PutBlob(t.Context(), storetest.Data(50, 5000))
	require.NoError(t, err)
	_, err = s.PutRecord(t.Context(), "manifests", "web", []byte(manifest), nil)
	require.NoError(t, err)
	s.Close()
	w.faults.Forget()
	return w
}

// open opens the store in a directory, with a cache.
func (w *stock) open(t *testing.T, dir string, cache store.Cache) *store.Store {
	t.Helper()
	o := w.opts
	o.Dir, o.Cache = dir, cache
	s, err := store.Open(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// whole reads everything, and says what failed.
func (w *stock) whole(ctx context.Context, s *store.Store) (errs []error) {
	for i, c := range w.chunks {
		b, err := read(ctx, s, c)
		if err == nil && !bytes.Equal(b, w.pieces[i]) {
			err = fmt.Errorf("WRONG BYTES")
		}
		errs = append(errs, err)
	}
	b, err := s.GetBlob(ctx, w.blob, 5000)
	if err == nil && !bytes.Equal(b, storetest.Data(50, 5000)) {
		err = fmt.Errorf("WRONG BYTES")
	}
	errs = append(errs, err)
	r, _, err := s.GetRecord(ctx, "manifests", "web")
	if err == nil && string(r) != manifest {
		err = fmt.Errorf("WRONG BYTES")
	}
	return append(errs, err)
}

func each(t *testing.T, test func(t *testing.T, sealed bool)) {
	for _, sealed := range []bool{false, true} {
		t.Run(map[bool]string{false: "plain", true: "sealed"}[sealed], func(t *testing.T) { test(t, sealed) })
	}
}

// One answer in three is wrong: everything reads right, nothing counts as damaged,
// and what the cache has is right.
func TestBrokenAnswers(t *testing.T) {
	each(t, func(t *testing.T, sealed bool) {
		w := newStock(t, sealed)
		for name, distort := range distortions {
			t.Run(name, func(t *testing.T) {
				var n atomic.Int64
				var before atomic.Pointer[[]byte]
				before.Store(&[]byte{})
				w.faults.After(func(op storetest.Op, data *[]byte) error {
					if !sealed && strings.Contains(op.Key, "records/") {
						return nil // nothing tells whether a plain one is right, but whoever reads it
					}
					good := bytes.Clone(*data)
					if n.Add(1)%3 == 1 && len(good) > 0 {
						*data = distort(good, *before.Load())
					}
					before.Store(&good)
					return nil
				})
				defer w.faults.After(nil)
				cache := storetest.NewMemCache()
				s := w.open(t, t.TempDir(), cache)
				for i, err := range w.whole(t.Context(), s) {
					require.NoError(t, err, "%d", i)
				}
				st := s.Stats()
				require.Zero(t, st.DamagedChunks+st.UnreadablePacks)
				require.Zero(t, st.DamagedReads)
				for _, c := range w.chunks {
					require.True(t, s.Has(c.Digest))
				}
			})
		}
	})
}

// Every answer about content is wrong for a while: each read is an error that names what it
// was for, no byte is wrong, and when it is over everything reads, also in a store that has
// seen it, and after another opening: nobody has to clean up.
func TestBrokenAnswersForAWhile(t *testing.T) {
	each(t, func(t *testing.T, sealed bool) {
		w := newStock(t, sealed)
		for name, distort := range distortions {
			for _, warm := range []bool{false, true} { // the indexes are known before
				t.Run(fmt.Sprintf("%s/warm %v", name, warm), func(t *testing.T) {
					dir, cache := t.TempDir(), storetest.NewMemCache()
					s := w.open(t, dir, cache)
					if warm {
						require.True(t, s.Has(w.chunks[0].Digest))
					}
					w.faults.After(func(op storetest.Op, data *[]byte) error {
						if len(*data) > 0 && (sealed || !strings.Contains(op.Key, "records/")) {
							*data = distort(*data, storetest.Data(7, 1000))
						}
						return nil
					})
					defer w.faults.After(nil)
					errs := w.whole(t.Context(), s)
					for i, err := range errs {
						if i == len(errs)-1 && !sealed {
							require.NoError(t, err)
							continue
						}
						require.Equal(t, fault.Corrupt, fault.ClassOf(err), "%d: %v", i, err)
						require.NotEmpty(t, err.Error())
						if i < len(w.chunks) {
							require.ErrorContains(t, err, w.chunks[i].Digest.Short())
							require.NotEmpty(t, fault.HintOf(err))
						}
					}
					require.Zero(t, cache.Stats().Chunks, "something wrong is in the cache")

					w.faults.After(nil)
					for i, err := range w.whole(t.Context(), s) {
						require.NoError(t, err, "%d: poisoned", i)
					}
					require.Zero(t, s.Stats().DamagedChunks)
					s.Close()
					s = w.open(t, dir, nil)
					for i, err := range w.whole(t.Context(), s) {
						require.NoError(t, err, "%d: poisoned", i)
					}
				})
			}
		}
	})
}

// 404 for what a manifest names: the error says what is missing, and it is not for ever.
func TestMissingPack(t *testing.T) {
	each(t, func(t *testing.T, sealed bool) {
		w := newStock(t, sealed)
		for _, warm := range []bool{false, true} {
			dir := t.TempDir()
			s := w.open(t, dir, nil)
			if warm {
				require.True(t, s.Has(w.chunks[0].Digest))
			}
			w.faults.Before(func(_ context.Context, op storetest.Op) error {
				if op.Name == "read" || op.Name == "get" || op.Name == "size" {
					return fault.New(fault.NotFound, "404")
				}
				return nil
			})
			errs := w.whole(t.Context(), s)
			for i, c := range w.chunks {
				require.Equal(t, fault.Corrupt, fault.ClassOf(errs[i]), "%v", errs[i])
				require.ErrorContains(t, errs[i], c.Digest.Short())
				require.Contains(t, fault.HintOf(errs[i]), "Import or build the image again")
			}
			w.faults.Before(nil)
			reader := s.Reader(w.packs, w.chunks)
			for i, c := range w.chunks {
				b := make([]byte, c.Size)
				_, err := reader.ReadChunk(t.Context(), c, b)
				require.NoError(t, err)
				require.Equal(t, w.pieces[i], b)
			}
			s.Close()
		}
	})
}

// A pack whose index, with a right checksum, names each chunk in the other's place.
func TestPackWithAWrongIndex(t *testing.T) {
	w := newStock(t, false)
	w.mem.Change(packKey(w.packs[0]), func(b []byte) []byte {
		foot := b[len(b)-96:]
		x := b[binary.LittleEndian.Uint64(foot[32:]):][:binary.LittleEndian.Uint32(foot[40:])]
		a := [32]byte(x[:32])
		copy(x[:32], x[48:80])
		copy(x[48:80], a[:])
		clear(foot[48:80])
		sum := blake3.Sum256(append(bytes.Clone(x), foot...))
		copy(foot[48:], sum[:])
		return b
	})
	cache := storetest.NewMemCache()
	s := w.open(t, t.TempDir(), cache)
	errs := w.whole(t.Context(), s)
	for i := range w.chunks {
		if want := map[int]fault.Class{0: fault.Corrupt, 1: fault.Corrupt}[i]; fault.ClassOf(errs[i]) != want {
			t.Fatalf("chunk %d: %v", i, errs[i])
		}
	}
	until(func() bool { return cache.Stats().Chunks == 2 })
	// Writing them again makes them good.
	_, again := storetest.Commit(t, s, w.pieces...)
	require.Equal(t, 2, again.NewChunks)
	for i, c := range w.chunks {
		wantRead(t, s, c, w.pieces[i])
	}
}

// Frames that would become gigabytes are refused before they are.
func TestZstdBombs(t *testing.T) {
	encoder, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	defer encoder.Close()
	bomb := encoder.EncodeAll(make([]byte, 256<<20), nil)
	// A frame's length is fixed by the index: what is left is a frame to be skipped.
	fill := func(n int) []byte {
		b := append([]byte{}, bomb...)
		require.Less(t, len(b)+8, n)
		b = binary.LittleEndian.AppendUint32(b, 0x184D2A50)
		b = binary.LittleEndian.AppendUint32(b, uint32(n-len(b)-4))
		return append(b, make([]byte, n-len(b))...)
	}
	mem := storetest.NewMemOrigin()
	s := storetest.With(t, store.Options{Dir: t.TempDir(), Origin: mem})
	chunks, w := storetest.Commit(t, s, storetest.Data(1, store.ChunkSize), storetest.Data(2, 1000))
	blob, err := s.PutBlob(t.Context(), storetest.Data(3, 100_000))
	require.NoError(t, err)
	mem.Change(packKey(w.Packs[0]), func(b []byte) []byte {
		foot := b[len(b)-64:]
		stored := binary.LittleEndian.Uint32(b[binary.LittleEndian.Uint64(foot)+36:])
		copy(b[16:], fill(int(stored)))
		return b
	})
	mem.Change(blobKey(blob), func([]byte) []byte { return bomb })
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = read(t.Context(), s, chunks[0])
	wantClass(t, err, fault.Corrupt)
	_, err = s.GetBlob(t.Context(), blob, 100_000)
	wantClass(t, err, fault.Corrupt)
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(32<<20))
	wantRead(t, s, chunks[1], storetest.Data(2, 1000))
}

// An origin that takes ten seconds for everything: whoever needs it is told within
// half a minute, all at the same time, what it was and why; what is local is there at
// once; and five seconds are just slow.
func TestSlowOrigin(t *testing.T) {
	w := newStock(t, true)
	for _, err := range w.whole(t.Context(), w.open(t, t.TempDir(), nil)) { // what the process shares belongs to no bubble
		require.NoError(t, err)
	}
	synctest.Test(t, func(t *testing.T) {
		latency := 10*time.Second + time.Millisecond // an attempt ends after 10 s: not both at once
		w.faults.Before(func(ctx context.Context, op storetest.Op) error {
			select {
			case <-time.After(latency):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		far := remotely.New(w.faults, remotely.Options{Log: storetest.Log(t)})
		defer far.Close()
		o := w.opts
		o.Origin, o.Dir, o.Cache = far, t.TempDir(), storetest.NewMemCache()
		local, data := storetest.Piece(70, 100)
		require.NoError(t, o.Cache.Write(local, data))
		s, err := store.Open(t.Context(), o)
		require.NoError(t, err)
		defer s.Close()
		began := time.Now()
		reader := s.Reader(w.packs, append([]store.Chunk{local}, w.chunks...))
		_, err = reader.ReadChunk(t.Context(), local, make([]byte, 100))
		require.NoError(t, err)
		require.Zero(t, time.Since(began))

		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				c := w.chunks[i%2]
				_, err := reader.ReadChunk(t.Context(), c, make([]byte, c.Size))
				if class := fault.ClassOf(err); class != fault.Unavailable && class != fault.Timeout || time.Since(began) > 31*time.Second {
					t.Errorf("after %v: %v", time.Since(began), err)
				}
			})
		}
		wg.Wait()
		latency = 5 * time.Second
		time.Sleep(time.Minute)
		began = time.Now()
		b := make([]byte, w.chunks[0].Size)
		_, err = reader.ReadChunk(t.Context(), w.chunks[0], b)
		require.NoError(t, err)
		require.Equal(t, w.pieces[0], b)
		require.LessOrEqual(t, time.Since(began), 30*time.Second)
	})
}

// The origin is down, or does not let us in, from the start or from the middle on:
// what is local reads; what is not is an error that says what and why, for all who wait.
func TestOriginAway(t *testing.T) {
	why := map[string]error{
		"down":    fault.New(fault.Unavailable, "connection refused").WithHint("Is it up?"),
		"expired": fault.New(fault.Machine, "the credentials have expired (%w)", store.ErrDenied).WithHint("Renew them."),
	}
	each(t, func(t *testing.T, sealed bool) {
		w := newStock(t, sealed)
		for name, away := range why {
			for _, from := range []string{"the start", "the middle"} {
				t.Run(name+" from "+from, func(t *testing.T) {
					dir, cache := t.TempDir(), storetest.NewMemCache()
					s := w.open(t, dir, cache)
					wantRead(t, s, w.chunks[0], w.pieces[0])
					wantRead(t, s, w.chunks[1], w.pieces[1])
					w.faults.Before(func(context.Context, storetest.Op) error { return away })
					defer w.faults.Before(nil)
					if from == "the start" {
						s.Close()
						s = w.open(t, dir, cache)
					}
					reader := s.Reader(w.packs, w.chunks)
					for i := range 2 {
						b := make([]byte, w.chunks[i].Size)
						_, err := reader.ReadChunk(t.Context(), w.chunks[i], b)
						require.NoError(t, err)
						require.Equal(t, w.pieces[i], b)
					}
					var wg sync.WaitGroup
					for range 10 {
						wg.Go(func() {
							c := w.chunks[2]
							_, err := reader.ReadChunk(t.Context(), c, make([]byte, c.Size))
							if fault.ClassOf(err) != fault.ClassOf(away) || !strings.Contains(err.Error(), c.Digest.Short()) || fault.HintOf(err) != fault.HintOf(away) {
								t.Errorf("%v, hint %q", err, fault.HintOf(err))
							}
						})
					}
					wg.Wait()
					w.faults.Before(nil)
					wantRead(t, s, w.chunks[2], w.pieces[2])
				})
			}
		}
	})
}

// A disk that fills at any write of an import: an error that says which disk, nothing is
// left over, what was there reads, and with room the same works.
func TestDiskFullAnywhere(t *testing.T) {
	if unix.Getuid() != 0 {
		t.Skip("mounts a tmpfs: needs root")
	}
	dir := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	resize := func(size string) {
		t.Helper()
		require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size="+size))
	}
	s, cache := storetest.Open(t, dir)
	first, _ := storetest.Commit(t, s, storetest.Data(1, 50_000))
	cache.Flush()
	var used unix.Statfs_t
	require.NoError(t, unix.Statfs(dir, &used))
	base := int64(used.Blocks-used.Bfree) * used.Bsize
	full := 0
	for extra := int64(0); extra < 800<<10; extra += 40 << 10 {
		resize(fmt.Sprint(base + extra))
		err := func() error {
			b := s.Begin(t.Context())
			defer b.Abort()
			for i := range 4 {
				if _, _, err := b.Add(storetest.Data(uint64(100+i), 100_000)); err != nil {
					return err
				}
			}
			if _, err := b.Commit(t.Context()); err != nil {
				return err
			}
			if _, err := s.PutBlob(t.Context(), storetest.Data(200, 60_000)); err != nil {
				return err
			}
			_, err := s.PutRecord(t.Context(), "manifests", "web", storetest.Data(201, 60_000), nil)
			return err
		}()
		if err != nil {
			full++
			wantClass(t, err, fault.DiskFull)
			require.Contains(t, fault.HintOf(err), dir)
		}
		wantRead(t, s, first[0], storetest.Data(1, 50_000))
		wantEmpty(t, filepath.Join(dir, "cache"))
		if err == nil {
			break
		}
	}
	require.GreaterOrEqual(t, full, 8)
	resize("8m")
	s.Close()
	cache.Close()
	s, _ = storetest.Open(t, dir)
	for i := range 4 {
		c, data := storetest.Piece(uint64(100+i), 100_000)
		wantRead(t, s, c, data)
	}
	r, _, err := s.GetRecord(t.Context(), "manifests", "web")
	require.NoError(t, err)
	require.Equal(t, storetest.Data(201, 60_000), r)
}

// A data directory whose filesystem becomes read-only, as after an error of the
// disk: what can be read is read, and writing says what is wrong.
func TestReadOnlyDirectory(t *testing.T) {
	if unix.Getuid() != 0 {
		t.Skip("mounts a tmpfs: needs root")
	}
	dir := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	origin, err := store.OpenDir(filepath.Join(dir, "store"))
	require.NoError(t, err)
	s, err := store.Open(t.Context(), store.Options{Dir: filepath.Join(dir, "packs"), Origin: origin, Log: storetest.Log(t)})
	require.NoError(t, err)
	chunks, _ := storetest.Commit(t, s, storetest.Data(1, 50_000))
	s.Close()
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""))

	for _, open := range []func() error{
		func() error { _, err := store.OpenDir(filepath.Join(dir, "store")); return err },
		func() error { _, err := store.OpenDir(filepath.Join(dir, "new")); return err },
		func() error {
			_, err := store.Open(t.Context(), store.Options{Dir: filepath.Join(dir, "new"), Origin: origin})
			return err
		},
		func() error {
			_, err := slab.Open(slab.Options{Dir: filepath.Join(dir, "cache"), Log: storetest.Log(t)})
			return err
		},
		func() error { return origin.Put(t.Context(), "key", strings.NewReader("x")) },
		func() error { _, err := origin.Swap(t.Context(), "key", "", []byte("x")); return err },
	} {
		if err := open(); err != nil {
			wantClass(t, err, fault.Machine)
			require.Contains(t, fault.HintOf(err), "read-only")
		}
	}
	require.Error(t, origin.Put(t.Context(), "key", strings.NewReader("x")))
	s = storetest.With(t, store.Options{Dir: t.TempDir(), Origin: origin})
	wantRead(t, s, chunks[0], storetest.Data(1, 50_000))
}

// Whatever a remote origin answers, in whatever order, no byte is ever wrong: random
// answers, errors and readers.
func TestRandomAnswers(t *testing.T) {
	w := newStock(t, true)
	r := rand.New(rand.NewPCG(1, 2))
	var mu sync.Mutex
	names := []string{}
	for name := range distortions {
		names = append(names, name)
	}
	pick := func(n int) int { mu.Lock(); defer mu.Unlock(); return r.IntN(n) }
	w.faults.Before(func(context.Context, storetest.Op) error {
		if pick(4) == 0 {
			return fault.New(fault.Unavailable, "503")
		}
		return nil
	})
	w.faults.After(func(op storetest.Op, data *[]byte) error {
		if pick(3) == 0 && len(*data) > 0 {
			*data = distortions[names[pick(len(names))]](*data, storetest.Data(uint64(pick(100)), 500))
		}
		return nil
	})
	dir := t.TempDir()
	for range 20 {
		s := w.open(t, dir, storetest.NewMemCache())
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for i, err := range w.whole(t.Context(), s) {
					if class := fault.ClassOf(err); err != nil && class != fault.Corrupt && class != fault.Unavailable {
						t.Errorf("%d: %v", i, err)
					}
				}
			})
		}
		wg.Wait()
		s.Close()
	}
	w.faults.Before(nil)
	w.faults.After(nil)
	s := w.open(t, dir, nil)
	for i, err := range w.whole(t.Context(), s) {
		require.NoError(t, err, "%d", i)
	}
}

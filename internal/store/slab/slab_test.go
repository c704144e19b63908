package slab_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/slab"
	"brisk.dev/brisk/internal/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, dir string, limit int64) *slab.Slab {
	t.Helper()
	s, err := slab.Open(slab.Options{Dir: dir, Limit: limit, Log: storetest.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestCache(t *testing.T) {
	storetest.TestCache(t, func(t *testing.T) store.Cache { return open(t, t.TempDir(), 64<<20) })
}

// pieces are the chunks of most tests here: 1 + 1 + 2 + 32 + 2 blocks.
var sizes = []int{1, 4096, 4097, store.ChunkSize, 5000}

// piece gives one of them; making it is slow under the race detector.
var piece = func() func(i int) (store.Chunk, []byte) {
	chunks, datas := make([]store.Chunk, len(sizes)), make([][]byte, len(sizes))
	for i, n := range sizes {
		chunks[i], datas[i] = storetest.Piece(uint64(i), n)
	}
	return func(i int) (store.Chunk, []byte) { return chunks[i], datas[i] }
}()

const usedBytes = (1 + 1 + 2 + 32 + 2) * 4096

func fill(t testing.TB, s *slab.Slab) {
	t.Helper()
	for i := range sizes {
		c, data := piece(i)
		if err := s.Write(c, data); err != nil {
			t.Fatal(err)
		}
	}
}

// present reads all pieces and fails if one has wrong bytes.
func present(t testing.TB, s *slab.Slab) (there []int) {
	t.Helper()
	for i, n := range sizes {
		c, data := piece(i)
		dst := make([]byte, n)
		ok, err := s.Read(c, dst)
		if err != nil {
			t.Fatal(err)
		}
		if ok && !bytes.Equal(dst, data) {
			t.Fatalf("piece %d: wrong bytes", i)
		}
		if ok {
			there = append(there, i)
		}
	}
	return there
}

func wantPresent(t testing.TB, s *slab.Slab, want ...int) {
	t.Helper()
	if got := present(t, s); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("present: %v, want %v", got, want)
	}
}

// copyOf is the slab's files as they are now, in another directory: what a
// process that is killed now leaves.
func copyOf(t testing.TB, dir string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

func TestSurvivesClosing(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 0)
	fill(t, s)
	s.Close()
	s = open(t, dir, 0)
	wantPresent(t, s, 0, 1, 2, 3, 4)
	if st := s.Stats(); st.Chunks != 5 || st.Bytes != usedBytes || st.Hits != 5 || st.Drops != 0 || st.Limit != 0 {
		t.Fatalf("%+v", st)
	}
	st, err := os.Stat(filepath.Join(dir, "slab"))
	if err != nil || st.Size() != usedBytes+4096 {
		t.Fatalf("slab of %d bytes, %v", st.Size(), err)
	}
}

func TestKilled(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 0)
	wantPresent(t, s)
	fill(t, s)
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	c, data := storetest.Piece(99, 7000)
	if err := s.Write(c, data); err != nil {
		t.Fatal(err)
	}
	if ok, err := s.Read(c, make([]byte, 7000)); !ok || err != nil {
		t.Fatalf("not readable before it is synced: %v", err)
	}
	after := open(t, copyOf(t, dir), 0)
	wantPresent(t, after, 0, 1, 2, 3, 4)
	if after.Has(c.Digest) {
		t.Fatal("the index named a chunk that was not synced")
	}
}

func TestOnlyOne(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 0)
	if _, err := slab.Open(slab.Options{Dir: dir}); !fault.Is(err, fault.Exists) {
		t.Fatalf("opened twice: %v", err)
	}
	s.Close()
	open(t, dir, 0)
}

func TestClosed(t *testing.T) {
	s := open(t, t.TempDir(), 0)
	fill(t, s)
	s.Close()
	c, data := storetest.Piece(0, 1)
	if err := s.Write(c, data); !fault.Is(err, fault.Cancelled) {
		t.Fatal(err)
	}
	if _, err := s.Read(c, make([]byte, 1)); !fault.Is(err, fault.Cancelled) {
		t.Fatal(err)
	}
}

// Damage of the data: found at the first read, and healed by writing again.
func TestDamagedData(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 0)
	fill(t, s)
	s.Close()
	path := filepath.Join(dir, "slab")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	c, data := storetest.Piece(3, store.ChunkSize)
	b[bytes.Index(b, data)+70_000] ^= 0x10
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, 0)
	wantPresent(t, s, 0, 1, 2, 4)
	wantPresent(t, s, 0, 1, 2, 4)
	if st := s.Stats(); st.Drops != 1 || st.Chunks != 4 || s.Has(c.Digest) {
		t.Fatalf("%+v", st)
	}
	if err := s.Write(c, data); err != nil {
		t.Fatal(err)
	}
	wantPresent(t, s, 0, 1, 2, 3, 4)
	if st := s.Stats(); st.Bytes != usedBytes+store.ChunkSize {
		t.Fatalf("the damaged place was reused: %+v", st)
	}
	s.Close()
	s = open(t, dir, 0)
	wantPresent(t, s, 0, 1, 2, 3, 4)
	if st := s.Stats(); st.Drops != 0 || st.Bytes != usedBytes {
		t.Fatalf("%+v", st)
	}
}

// A drop is remembered, so that a damaged chunk is read in vain once, not at every start.
func TestDropIsRemembered(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 0)
	fill(t, s)
	s.Close()
	if err := os.WriteFile(filepath.Join(dir, "slab"), append(header(t, dir), make([]byte, usedBytes)...), 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, 0)
	wantPresent(t, s)
	s.Close()
	s = open(t, dir, 0)
	wantPresent(t, s)
	if st := s.Stats(); st.Drops != 0 || st.Chunks != 0 || st.Bytes != 0 {
		t.Fatalf("%+v", st)
	}
}

func header(t *testing.T, dir string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "slab"))
	if err != nil {
		t.Fatal(err)
	}
	return b[:4096]
}

// The index cut at many lengths: a record counts if it is whole.
func TestIndexCut(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 0)
	fill(t, s)
	s.Close()
	index, err := os.ReadFile(filepath.Join(dir, "slab.idx"))
	if err != nil || len(index) != 32+6*48 { // the first record is the scrub's
		t.Fatalf("index of %d bytes, %v", len(index), err)
	}
	work := copyOf(t, dir)
	data, err := os.ReadFile(filepath.Join(dir, "slab"))
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; n < len(index); n += 5 { // each opening waits for the disk several times
		if err := os.WriteFile(filepath.Join(work, "slab"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(work, "slab.idx"), index[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		s := open(t, work, 0)
		wantPresent(t, s, []int{0, 1, 2, 3, 4}[:max((n-32)/48-1, 0)]...)
		if n%3 != 1 {
			s.Close()
			continue
		}
		// It goes on as if nothing had been.
		fill(t, s)
		wantPresent(t, s, 0, 1, 2, 3, 4)
		s.Close()
		s = open(t, work, 0)
		wantPresent(t, s, 0, 1, 2, 3, 4)
		s.Close()
	}
}

// Bytes all over the index damaged: at most that record is lost, or all with the header.
func TestIndexFlipped(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 0)
	fill(t, s)
	s.Close()
	index, err := os.ReadFile(filepath.Join(dir, "slab.idx"))
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "slab"))
	if err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	for n := 0; n < len(index); n += 5 {
		if err := os.WriteFile(filepath.Join(work, "slab"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		bad := bytes.Clone(index)
		bad[n] ^= 1 << (n % 8)
		if err := os.WriteFile(filepath.Join(work, "slab.idx"), bad, 0o600); err != nil {
			t.Fatal(err)
		}
		s := open(t, work, 0)
		want := 4
		if n < 32 {
			want = 0
		} else if n < 32+48 {
			want = 5
		}
		if got := present(t, s); len(got) != want {
			t.Fatalf("byte %d: present %v, want %d", n, got, want)
		}
		s.Close()
	}
}

// The slab shorter than its index says, as after a power loss or a bad copy.
func TestSlabCut(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 0)
	fill(t, s)
	s.Close()
	data, err := os.ReadFile(filepath.Join(dir, "slab"))
	if err != nil {
		t.Fatal(err)
	}
	ends := []int{2, 3, 5, 37, 39} // blocks after which each piece is there
	for n := 0; n <= len(data); n += 2048 {
		work := copyOf(t, dir)
		if err := os.WriteFile(filepath.Join(work, "slab"), data[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		want := 0
		for _, end := range ends {
			if n >= end*4096 {
				want++
			}
		}
		s := open(t, work, 0)
		wantPresent(t, s, []int{0, 1, 2, 3, 4}[:want]...)
		if st := s.Stats(); st.Drops != 0 || st.Chunks != int64(want) {
			t.Fatalf("cut at %d: %+v", n, st)
		}
		fill(t, s)
		wantPresent(t, s, 0, 1, 2, 3, 4)
		s.Close()
	}
}

// An index from another slab says nothing about this one.
func TestForeignIndex(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	for _, d := range []string{dir, other} {
		s := open(t, d, 0)
		fill(t, s)
		s.Close()
	}
	b, err := os.ReadFile(filepath.Join(other, "slab.idx"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "slab.idx"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	wantPresent(t, open(t, dir, 0))
}

// TestLimit goes beyond it by one piece: what of the five stays depends on what has been synced
// when room is made, since that alone may go.
func TestLimit(t *testing.T) {
	s := open(t, t.TempDir(), 36*4096) // all but the last piece
	fill(t, s)
	if st := s.Stats(); st.Bytes > 36*4096 || st.Limit != 36*4096 || st.Writes < 4 {
		t.Fatalf("%+v", st)
	}
}

// Gaps that drops leave are found again after reopening.
func TestGapsAreReused(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 0)
	fill(t, s)
	s.Close()
	f, err := os.OpenFile(filepath.Join(dir, "slab"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("damage"), 5*4096); err != nil { // piece 3
		t.Fatal(err)
	}
	f.Close()
	s = open(t, dir, 0)
	wantPresent(t, s, 0, 1, 2, 4)
	s.Close()
	s = open(t, dir, 0)
	fill(t, s)
	wantPresent(t, s, 0, 1, 2, 3, 4)
	st, err := os.Stat(filepath.Join(dir, "slab"))
	if err != nil || st.Size() != usedBytes+4096 {
		t.Fatalf("the slab grew to %d bytes, %v", st.Size(), err)
	}
}

// The rest of a chunk's last block is zeros, whatever was there before.
func TestPadding(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 0)
	fill(t, s)
	s.Close()
	b, err := os.ReadFile(filepath.Join(dir, "slab"))
	if err != nil {
		t.Fatal(err)
	}
	_, data := storetest.Piece(4, 5000)
	at := bytes.Index(b, data)
	if at%4096 != 0 || !bytes.Equal(b[at+5000:at+8192], make([]byte, 3192)) {
		t.Fatalf("piece at %d is not padded", at)
	}
}

func TestDiskFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounts a tmpfs: needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	s := open(t, dir, 0)
	t.Cleanup(func() { s.Close() }) // before the unmount
	c, data := storetest.Piece(1, store.ChunkSize)
	if err := s.Write(c, data); err != nil {
		t.Fatal(err)
	}
	full, fullData := storetest.Piece(2, store.ChunkSize)
	err := s.Write(full, fullData)
	if !fault.Is(err, fault.DiskFull) || fault.HintOf(err) == "" {
		t.Fatalf("%v, hint %q", err, fault.HintOf(err))
	}
	if st := s.Stats(); s.Has(full.Digest) || !s.Has(c.Digest) || st.Bytes != store.ChunkSize {
		t.Fatalf("%+v", st)
	}
	if ok, err := s.Read(c, make([]byte, store.ChunkSize)); !ok || err != nil {
		t.Fatal(ok, err)
	}
}

func BenchmarkRead(b *testing.B) {
	s := open(b, b.TempDir(), 0)
	var chunks []store.Chunk
	for i := range 256 {
		c, data := storetest.Piece(uint64(i), store.ChunkSize)
		if err := s.Write(c, data); err != nil {
			b.Fatal(err)
		}
		chunks = append(chunks, c)
	}
	dst := make([]byte, store.ChunkSize)
	b.SetBytes(store.ChunkSize)
	for i := 0; b.Loop(); i++ {
		if ok, err := s.Read(chunks[i%len(chunks)], dst); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}

package snapshot

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func key() Key {
	return Key{Workspace: "default", Function: store.Sum([]byte("f")), Image: store.Sum([]byte("i")), Shape: store.Sum([]byte("s")), Runtime: "r1", Features: []string{"avx2", "sse4"}}
}

func open(t *testing.T, dir string) *Snapshots {
	t.Helper()
	s, err := Open(dir, quiet)
	require.NoError(t, err)
	return s
}

// memory is 300,000 bytes: three chunks, the last one shorter.
func memory() []byte {
	b := make([]byte, 300_000)
	for i := range b {
		b[i] = byte(i * 7)
	}
	return b
}

func write(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "checkpoint.img"), []byte("state"), 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "pages.img"), memory(), 0o600)
}

func made(t *testing.T, dir string) (*Snapshots, *Snapshot) {
	t.Helper()
	s := open(t, dir)
	snap, err := s.Make(context.Background(), key(), "stats.mean", write)
	require.NoError(t, err)
	return s, snap
}

func TestMakeFindAndReopen(t *testing.T) {
	dir := t.TempDir()
	s, snap := made(t, dir)
	require.Equal(t, int64(300_005), snap.Manifest.Bytes())
	require.Len(t, snap.Manifest.Files[1].Chunks, 3)
	found, _ := s.Find(context.Background(), key())
	require.Same(t, snap, found)

	again := open(t, dir)
	found, reason := again.Find(context.Background(), key())
	require.NotNil(t, found, reason)
	require.Equal(t, snap.Manifest, found.Manifest)
	require.Equal(t, Status{State: "ready", Bytes: 300_005}, again.Status(key().Function))
}

func TestWhatDiffersIsNamedAndTheSnapshotGoes(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Key)
		reason string
	}{
		"runtime":  {func(k *Key) { k.Runtime = "r2" }, "it was made by runsc r1, and this is r2"},
		"features": {func(k *Key) { k.Features = []string{"sse4"} }, "it was made on a CPU with other features"},
		"shape":    {func(k *Key) { k.Shape = store.Digest{} }, "it was made in a sandbox of another shape"},
		"image":    {func(k *Key) { k.Image = store.Digest{} }, "it was made on another image"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s, _ := made(t, dir)
			k := key()
			c.change(&k)
			snap, reason := s.Find(context.Background(), k)
			require.Nil(t, snap)
			require.Equal(t, c.reason, reason)
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, left)
			require.True(t, s.Wanted(k.Function), "a new one can be made")
		})
	}
}

func TestDamageIsFoundAfterAReopen(t *testing.T) {
	damage := map[string]func(path string) error{
		"flipped bit": func(p string) error {
			b := memory()
			b[200_000] ^= 1
			return os.WriteFile(p, b, 0o600)
		},
		"truncated": func(p string) error { return os.Truncate(p, 299_999) },
		"longer":    func(p string) error { return os.WriteFile(p, append(memory(), 0), 0o600) },
		"gone":      os.Remove,
	}
	for name, f := range damage {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			_, snap := made(t, dir)
			require.NoError(t, f(filepath.Join(snap.Dir, "pages.img")))
			s := open(t, dir)
			found, reason := s.Find(context.Background(), key())
			require.Nil(t, found)
			require.Contains(t, reason, "pages.img")
		})
	}
}

func TestDamagedManifestIsDropped(t *testing.T) {
	dir := t.TempDir()
	_, snap := made(t, dir)
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(snap.Dir), "snapshot.json"), []byte(`{"version":1`), 0o600))
	s := open(t, dir)
	found, reason := s.Find(context.Background(), key())
	require.Nil(t, found)
	require.Equal(t, "none has been made yet", reason)
}

func TestUnfinishedIsSwept(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "tmp-1", "image"), 0o700))
	open(t, dir)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestFailuresLeaveNothingAndAreCapped(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	full := fault.New(fault.DiskFull, "no space left")
	for range MaxFailures {
		_, err := s.Make(context.Background(), key(), "stats.mean", func(dir string) error {
			require.NoError(t, write(dir))
			return full
		})
		require.ErrorIs(t, err, full)
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left)
	}
	_, err := s.Make(context.Background(), key(), "stats.mean", write)
	require.ErrorIs(t, err, ErrBusy)
	require.Equal(t, Status{State: "failed", Reason: "it has failed 3 times, the last time: making it failed: no space left"}, s.Status(key().Function))
}

func TestOneAtATime(t *testing.T) {
	s := open(t, t.TempDir())
	begun, finish := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := s.Make(context.Background(), key(), "stats.mean", func(dir string) error {
			close(begun)
			<-finish
			return write(dir)
		})
		require.NoError(t, err)
	})
	<-begun
	_, err := s.Make(context.Background(), key(), "stats.mean", write)
	require.ErrorIs(t, err, ErrBusy)
	_, reason := s.Find(context.Background(), key())
	require.Equal(t, "it is being made", reason)
	close(finish)
	wg.Wait()
}

func TestFailedRestoreThrowsAway(t *testing.T) {
	dir := t.TempDir()
	s, snap := made(t, dir)
	s.Failed(snap, errors.New("bad pages"))
	found, reason := s.Find(context.Background(), key())
	require.Nil(t, found)
	require.Equal(t, "restoring it failed: bad pages", reason)
	require.NoDirExists(t, snap.Dir)
}

func FuzzDecodeManifest(f *testing.F) {
	f.Add([]byte(`{"version":1,"key":{"function":"` + store.Digest{}.String() + `"},"files":[{"name":"pages.img","size":0,"chunks":[]}]}`))
	f.Add([]byte(`{"version":1,"files":[{"name":"../x","size":1,"chunks":["` + store.Digest{}.String() + `"]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeManifest(b)
		if err != nil {
			return
		}
		for _, file := range m.Files {
			if file.Name != filepath.Base(file.Name) {
				t.Fatalf("accepted the name %q", file.Name)
			}
		}
	})
}

func TestSweep(t *testing.T) {
	s, snap := made(t, t.TempDir())
	n, _ := s.Sweep(func(k Key) bool { return k.Function == key().Function }, false)
	require.Zero(t, n)
	none := func(Key) bool { return false }
	for _, dry := range []bool{true, false} {
		n, bytes := s.Sweep(none, dry)
		require.Equal(t, 1, n)
		require.EqualValues(t, 300_005, bytes)
	}
	require.NoDirExists(t, filepath.Dir(snap.Dir))
	require.Empty(t, s.All())
	require.True(t, s.Wanted(key().Function))
}

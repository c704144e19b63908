package slab_test

import (
	"context"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/store"
)

// onDisk is what a file takes of the disk.
func onDisk(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

func TestDiscard(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 64<<20)
	fill(t, s)
	wanted, _ := piece(1)
	pinned, _ := piece(2)
	s.Pin("image", []store.Chunk{pinned})
	keep := func(d store.Digest) bool { return d == wanted.Digest }
	for _, dry := range []bool{true, false} {
		chunks, freed, err := s.Discard(t.Context(), keep, dry)
		if err != nil || chunks != 3 || freed != (1+32+2)*4096 {
			t.Fatal(dry, chunks, freed, err)
		}
		if dry {
			wantPresent(t, s, 0, 1, 2, 3, 4)
		}
	}
	wantPresent(t, s, 1, 2)
	if used := onDisk(t, s.Path()); used > 4*4096 {
		t.Fatalf("the slab still takes %d bytes of the disk", used)
	}
	if chunks, _, err := s.Discard(t.Context(), keep, false); err != nil || chunks != 0 {
		t.Fatal(chunks, err)
	}
	fill(t, s)
	wantPresent(t, s, 0, 1, 2, 3, 4)
	s.Close()
	wantPresent(t, open(t, dir, 64<<20), 0, 1, 2, 3, 4)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s = open(t, t.TempDir(), 64<<20)
	fill(t, s)
	if _, _, err := s.Discard(ctx, keep, false); err == nil {
		t.Fatal("it goes on when nobody wants it any more")
	}
	if _, err := os.Stat(s.Path()); err != nil {
		t.Fatal(err)
	}
}

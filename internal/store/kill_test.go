package store_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/slab"
	"brisk.dev/brisk/internal/store/storetest"
)

// TestKilledWriter is the process that TestKill kills: it commits batches,
// reads them through the slab, and says which are acknowledged.
func TestKilledWriter(t *testing.T) {
	dir := os.Getenv("BRISK_TEST_KILL_DIR")
	if dir == "" {
		t.Skip("is run by TestKill")
	}
	first, err := strconv.Atoi(os.Getenv("BRISK_TEST_KILL_FIRST"))
	if err != nil {
		t.Fatal(err)
	}
	s, cache := storetest.Open(t, dir)
	for n := first; ; n++ {
		b := s.Begin(context.Background())
		for i := range 10 {
			if _, _, err := b.Add(storetest.Data(uint64(n*10+i), 3000)); err != nil {
				t.Fatal(err)
			}
			if n > first { // of the batch before
				c, _ := storetest.Piece(uint64(n*10-10+i), 3000)
				if _, err := s.ReadChunk(context.Background(), c, make([]byte, 3000)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := b.Commit(context.Background()); err != nil {
			t.Fatal(err)
		}
		cache.Flush()
		fmt.Printf("committed %d\n", n)
	}
}

// kill -9 of a process that imports: all that it acknowledged is there, and
// nothing else but whole packs.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	next := 0
	for round := range 6 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledWriter$", "-test.count=1")
		cmd.Env = append(os.Environ(), "BRISK_TEST_KILL_DIR="+dir, "BRISK_TEST_KILL_FIRST="+strconv.Itoa(next))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for seen := 0; lines.Scan(); {
			var n int
			if _, err := fmt.Sscanf(lines.Text(), "committed %d", &n); err != nil {
				if strings.Contains(lines.Text(), "FAIL") {
					t.Fatal(lines.Text())
				}
				continue
			}
			next = n + 1
			if seen++; seen == 3+round { // and it is anywhere in the next
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		cmd.Wait()
		if next == 0 {
			t.Fatal("the writer committed nothing")
		}

		// With the local copy of indexes and the slab as they were left, and without.
		origin, err := store.OpenDir(filepath.Join(dir, "store"))
		if err != nil {
			t.Fatal(err)
		}
		cache, err := slab.Open(slab.Options{Dir: filepath.Join(dir, "cache"), Log: storetest.Log(t)})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range []store.Options{
			{Dir: filepath.Join(dir, "cache"), Origin: origin, Cache: cache},
			{Dir: t.TempDir(), Origin: origin},
		} {
			s := storetest.With(t, o)
			for i := range next * 10 {
				c, data := storetest.Piece(uint64(i), 3000)
				if got, err := read(t.Context(), s, c); err != nil || !bytes.Equal(got, data) {
					t.Fatalf("round %d: chunk %d of %d: %v", round, i, next*10, err)
				}
			}
			if st := s.Stats(); st.UnreadablePacks != 0 || st.DamagedChunks != 0 {
				t.Fatalf("%+v", st)
			}
			s.Close()
		}
		if st := cache.Stats(); st.Drops != 0 {
			t.Fatalf("%+v", st)
		}
		cache.Close()
		wantEmpty(t, filepath.Join(dir, "cache"))
		if left, err := os.ReadDir(filepath.Join(dir, "store", ".tmp")); err != nil || len(left) != 0 {
			t.Fatalf("left over: %v, %v", left, err)
		}
	}
}

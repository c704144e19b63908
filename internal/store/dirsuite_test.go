package store_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDirOrigin(t *testing.T) {
	storetest.TestOrigin(t, func(t *testing.T) store.Origin {
		o, err := store.OpenDir(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return o
	})
}

func TestPrefixedDirOrigin(t *testing.T) {
	storetest.TestOrigin(t, func(t *testing.T) store.Origin {
		o, err := store.OpenDir(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return store.Prefix(o, "w/")
	})
}

// TestSwappingProcess counts with TestSwapBetweenProcesses.
func TestSwappingProcess(t *testing.T) {
	dir := os.Getenv("BRISK_TEST_SWAP_DIR")
	if dir == "" {
		t.Skip("is run by TestSwapBetweenProcesses")
	}
	count(t, dir, 20)
}

// count adds n to the counter in dir.
func count(t *testing.T, dir string, n int) {
	o, err := store.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for n > 0 {
		b, v, err := o.Get(t.Context(), "counter", 1<<10)
		if err != nil && !fault.Is(err, fault.NotFound) {
			t.Fatal(err)
		}
		if _, err = o.Swap(t.Context(), "counter", v, append(b, 'x')); err == nil {
			n--
		} else if !fault.Is(err, fault.Exists) {
			t.Fatal(err)
		}
	}
}

func TestSwapBetweenProcesses(t *testing.T) {
	dir := t.TempDir()
	var others []*exec.Cmd
	for range 3 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSwappingProcess$", "-test.count=1")
		cmd.Env = append(os.Environ(), "BRISK_TEST_SWAP_DIR="+dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		others = append(others, cmd)
	}
	count(t, dir, 20)
	for _, cmd := range others {
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	o, err := store.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if size, err := o.Size(t.Context(), "counter"); err != nil || size != 80 {
		t.Fatalf("counted %d of 80, %v", size, err)
	}
}

// A swap waits for another process, but not longer than its caller does.
func TestSwapGivesUp(t *testing.T) {
	dir := t.TempDir()
	o, err := store.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	lock, err := os.Open(filepath.Join(dir, ".tmp"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = o.Swap(ctx, "a", "", []byte("x"))
	wantClass(t, err, fault.Timeout)
	if left, err := os.ReadDir(filepath.Join(dir, ".tmp")); err != nil || len(left) != 0 {
		t.Fatalf("left over: %v, %v", left, err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Swap(t.Context(), "a", "", []byte("x")); err != nil {
		t.Fatal(err)
	}
}

package store

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// The steps of publishing, in the order that makes an object durable before its
// name can be seen.
func TestDirOriginSteps(t *testing.T) {
	d, err := OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var steps []string
	d.step = func(name string) error { steps = append(steps, name); return nil }
	if err := d.Put(t.Context(), "packs/ab/1", strings.NewReader("content")); err != nil {
		t.Fatal(err)
	}
	if want := []string{"create", "write", "sync", "mkdir", "link", "syncdir"}; !slices.Equal(steps, want) {
		t.Fatalf("steps %q, want %q", steps, want)
	}
}

// A crash after each step: the object is whole or not there, nothing is left
// over, and putting it again works.
func TestDirOriginCrash(t *testing.T) {
	for _, via := range []string{"Put", "PutFile"} {
		for _, step := range []string{"create", "write", "sync", "mkdir", "link", "syncdir"} {
			t.Run(via+"/"+step, func(t *testing.T) {
				root := t.TempDir()
				d, err := OpenDir(root)
				if err != nil {
					t.Fatal(err)
				}
				d.step = func(name string) error {
					if name == step {
						return errCrash
					}
					return nil
				}
				putVia := func(d *DirOrigin) error {
					if via == "Put" {
						return d.Put(t.Context(), "packs/ab/1", strings.NewReader("content"))
					}
					file := filepath.Join(t.TempDir(), "file")
					if err := os.WriteFile(file, []byte("content"), 0o600); err != nil {
						t.Fatal(err)
					}
					return d.PutFile(t.Context(), "packs/ab/1", file, false)
				}
				err = putVia(d)
				if via == "PutFile" && (step == "create" || step == "write") {
					if err != nil {
						t.Fatal(err)
					}
				} else if !errors.Is(err, errCrash) {
					t.Fatalf("no crash: %v", err)
				}
				d, err = OpenDir(root)
				if err != nil {
					t.Fatal(err)
				}
				if left, err := os.ReadDir(filepath.Join(root, ".tmp")); err != nil || len(left) != 0 {
					t.Fatalf("left over: %v, %v", left, err)
				}
				if size, err := d.Size(t.Context(), "packs/ab/1"); !fault.Is(err, fault.NotFound) && (err != nil || size != 7) {
					t.Fatalf("half an object: %d, %v", size, err)
				}
				if err := putVia(d); err != nil {
					t.Fatal(err)
				}
				got := make([]byte, 7)
				if err := d.ReadAt(t.Context(), "packs/ab/1", got, 0); err != nil || string(got) != "content" {
					t.Fatalf("%q, %v", got, err)
				}
			})
		}
	}
}

// A crash after each step of an exchange: the old content or the new, whole.
func TestDirOriginSwapCrash(t *testing.T) {
	for _, step := range []string{"create", "write", "sync", "mkdir", "link", "syncdir"} {
		t.Run(step, func(t *testing.T) {
			root := t.TempDir()
			d, err := OpenDir(root)
			if err != nil {
				t.Fatal(err)
			}
			v, err := d.Swap(t.Context(), "records/a", "", []byte("old"))
			if err != nil {
				t.Fatal(err)
			}
			d.step = func(name string) error {
				if name == step {
					return errCrash
				}
				return nil
			}
			if _, err = d.Swap(t.Context(), "records/a", v, []byte("new")); !errors.Is(err, errCrash) {
				t.Fatalf("no crash: %v", err)
			}
			d, err = OpenDir(root)
			if err != nil {
				t.Fatal(err)
			}
			if left, err := os.ReadDir(filepath.Join(root, ".tmp")); err != nil || len(left) != 0 {
				t.Fatalf("left over: %v, %v", left, err)
			}
			got, v, err := d.Get(t.Context(), "records/a", 3)
			want := map[string]string{"link": "new", "syncdir": "new"}[step]
			if want == "" {
				want = "old"
			}
			if err != nil || string(got) != want {
				t.Fatalf("%q, %v, want %q", got, err, want)
			}
			if _, err := d.Swap(t.Context(), "records/a", v, []byte("newer")); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestSweepSparesTheLiving(t *testing.T) {
	root := t.TempDir()
	d, err := OpenDir(root)
	if err != nil {
		t.Fatal(err)
	}
	f, err := createTemp(d.tmp)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.WriteFile(filepath.Join(d.tmp, "new-stale"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDir(root); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(d.tmp)
	if err != nil || len(left) != 1 || left[0].Name() != filepath.Base(f.Name()) {
		t.Fatalf("left: %v, %v", left, err)
	}
}

func TestPutFileReplaces(t *testing.T) {
	d, err := OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Put(t.Context(), "packs/ab/1", strings.NewReader("damaged")); err != nil {
		t.Fatal(err)
	}
	for _, replace := range []bool{false, true} {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, []byte("content"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := d.PutFile(t.Context(), "packs/ab/1", file, replace); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(file); !os.IsNotExist(err) {
			t.Fatalf("the file is still there: %v", err)
		}
		got := make([]byte, 7)
		if err := d.ReadAt(t.Context(), "packs/ab/1", got, 0); err != nil || string(got) != map[bool]string{false: "damaged", true: "content"}[replace] {
			t.Fatalf("replace %v: %q, %v", replace, got, err)
		}
	}
}

// tmpfs mounts a filesystem of few KiB that is gone when the test ends.
func tmpfs(t *testing.T, options string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounts a tmpfs: needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func TestDirOriginDiskFull(t *testing.T) {
	root := tmpfs(t, "size=256k")
	d, err := OpenDir(root)
	if err != nil {
		t.Fatal(err)
	}
	err = d.Put(t.Context(), "packs/ab/1", strings.NewReader(strings.Repeat("x", 300_000)))
	if !fault.Is(err, fault.DiskFull) || !strings.Contains(fault.HintOf(err), root) || !strings.Contains(fault.HintOf(err), "brisk image rm") {
		t.Fatalf("%v, hint %q", err, fault.HintOf(err))
	}
	if left, err := os.ReadDir(d.tmp); err != nil || len(left) != 0 {
		t.Fatalf("left over: %v, %v", left, err)
	}
	if err := d.Put(t.Context(), "packs/ab/1", strings.NewReader(strings.Repeat("x", 200_000))); err != nil {
		t.Fatalf("the space is not free again: %v", err)
	}
}

// A pack in another filesystem is copied.
func TestPutFileAcrossFilesystems(t *testing.T) {
	d, err := OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(tmpfs(t, "size=256k"), "file")
	for _, replace := range []bool{false, true} {
		if err := os.WriteFile(file, []byte("content"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := d.PutFile(t.Context(), "packs/ab/1", file, replace); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 7)
		if err := d.ReadAt(t.Context(), "packs/ab/1", got, 0); err != nil || string(got) != "content" {
			t.Fatalf("%q, %v", got, err)
		}
		if _, err := os.Lstat(file); !os.IsNotExist(err) {
			t.Fatalf("the file is still there: %v", err)
		}
	}
}

func TestBatchDiskFull(t *testing.T) {
	dir := tmpfs(t, "size=256k")
	origin, err := OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), Options{Dir: dir, Origin: origin})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	b := s.Begin(t.Context())
	defer b.Abort()
	data := make([]byte, ChunkSize)
	for i := range 16 {
		for j := range data { // incompressible enough
			data[j] = byte(j*j>>3 + j*i + j>>7*(i+3))
		}
		copy(data, Sum(data).String())
		if _, _, err = b.Add(data); err != nil {
			break
		}
	}
	if err == nil {
		_, err = b.Commit(t.Context())
	} else {
		b.Abort()
	}
	if !fault.Is(err, fault.DiskFull) || !strings.Contains(fault.HintOf(err), dir) {
		t.Fatalf("%v, hint %q", err, fault.HintOf(err))
	}
	if left, err := os.ReadDir(s.tmp); err != nil || len(left) != 0 {
		t.Fatalf("left over: %v, %v", left, err)
	}
}

// A directory that is opened while others write takes nothing away from them, not even
// what they have made and not locked yet.
func TestSweepDuringWrites(t *testing.T) {
	d, err := OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var sweeper sync.WaitGroup
	defer sweeper.Wait()
	defer close(done)
	sweeper.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if err := sweep(d.tmp); err != nil {
				t.Errorf("sweep: %v", err)
				return
			}
		}
	})
	for range 2000 {
		f, err := createTemp(d.tmp)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(f.Name()); err != nil {
			t.Fatalf("it was swept: %v", err)
		}
		f.Close()
		path, lock, err := createTempDir(d.tmp)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatalf("it was swept: %v", err)
		}
		lock.Close()
	}
}

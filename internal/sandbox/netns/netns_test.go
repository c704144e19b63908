package netns

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func names(t *testing.T) string {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Error(err)
	}
	var l []string
	for _, i := range all {
		l = append(l, i.Name)
	}
	return strings.Join(l, " ")
}

func TestNamespaces(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	before, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "n")
	if err := New(path); err != nil {
		t.Fatal(err)
	}
	if err := New(path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second of one name: got %v", err)
	}
	host := names(t)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			err := Do(path, func() error {
				if got := names(t); got != "lo" {
					t.Errorf("interfaces inside: %q", got)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if got := names(t); got != host {
				t.Errorf("interfaces outside: %q, want %q", got, host)
			}
		})
	}
	wg.Wait()
	failure := errors.New("mine")
	if err := Do(path, func() error { return failure }); err != failure {
		t.Errorf("error of the function: got %v", err)
	}
	for range 2 {
		if err := Remove(path); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	if err := Do(path, func() error { return nil }); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("inside of nothing: got %v", err)
	}
	if err := Do("/proc/self/status", func() error { return nil }); !errors.Is(err, unix.EINVAL) {
		t.Errorf("inside of a file: got %v", err)
	}
	if after, err := os.Readlink("/proc/self/ns/net"); err != nil || after != before {
		t.Errorf("the process is in %s, was in %s", after, before)
	}
}

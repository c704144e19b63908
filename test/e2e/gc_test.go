package e2e

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// collected is what `brisk store gc --json` says.
type collected struct {
	Freed []struct {
		Kind         string
		Count, Bytes int64
	}
	Bytes int64
	Notes []string
}

// randomFile is incompressible.
func randomFile(name string, size int) member {
	b := make([]byte, size)
	_, _ = rand.Read(b)
	return file(name, string(b))
}

// dataOf makes an image's tar of files in /data, and the program that reads them.
func (s *site) dataOf(t *testing.T, program string, name string, files ...member) (tar, sum string) {
	t.Helper()
	b, err := os.ReadFile(program)
	require.NoError(t, err)
	probe := file("bin/probe", string(b))
	probe.Mode = 0o755
	h := sha256.New()
	for _, f := range files {
		h.Write(f.content)
	}
	all := append([]member{dir("bin/"), probe, dir("data/")}, files...)
	return s.write(t, name+".tar", string(archive(t, all...))), fmt.Sprintf("%x", h.Sum(nil))
}

// whole reads every byte of an image's data in a sandbox.
func (s *site) whole(t *testing.T, image, sum string) {
	t.Helper()
	require.Equal(t, sum, s.ok(t, "run", "--image", image, "--", "/bin/probe", "sum", "/data"), "the files of %s", image)
}

// disk is what the site takes of the disk, without its log.
func (s *site) disk(t *testing.T) (n int64) {
	t.Helper()
	unix.Sync()
	require.NoError(t, filepath.WalkDir(s.data, func(path string, e os.DirEntry, err error) error {
		if os.IsNotExist(err) || err == nil && strings.HasPrefix(path, filepath.Join(s.data, "log")) {
			return nil
		}
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err == nil {
			n += st.Blocks * 512
		}
		return nil
	}))
	return n
}

// Removing an image gives back what it alone took, in the store and in the cache,
// and takes nothing from another that shares most of it.
func TestRemovedImageGivesDiskBack(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	s := newSite(t)
	program := guest(t)
	common := randomFile("data/common", 8*mib)
	web, webSum := s.dataOf(t, program, "web", common, randomFile("data/own", 12*mib))
	api, apiSum := s.dataOf(t, program, "api", common, randomFile("data/own", 4*mib))
	s.ok(t, "image", "ls")
	empty := s.disk(t)
	s.ok(t, "image", "import", api, "--name", "api")
	s.whole(t, "api", apiSum)
	one := s.disk(t)
	s.ok(t, "image", "import", web, "--name", "web")
	s.whole(t, "web", webSum)
	both := s.disk(t)
	require.Greater(t, both, one+22*mib, "its own 12 MiB are in the store and in the cache")

	s.ok(t, "image", "rm", "web")
	require.Less(t, s.disk(t), one+mib)
	s.whole(t, "api", apiSum)
	s.killServer(t)
	require.NoError(t, os.RemoveAll(filepath.Join(s.data, "cache")))
	s.whole(t, "api", apiSum)

	s.ok(t, "image", "rm", "api")
	require.Less(t, s.disk(t), empty+mib)

	// The first of two holds what both need in the packs that it made; they are made anew.
	s.ok(t, "image", "import", api, "--name", "api")
	s.ok(t, "image", "import", web, "--name", "web")
	s.whole(t, "web", webSum)
	s.ok(t, "image", "rm", "api")
	s.ok(t, "store", "gc")
	require.Less(t, s.disk(t), empty+41*mib, "20 MiB in the store, and 20 in the cache")
	s.whole(t, "web", webSum)
	s.killServer(t)
	require.NoError(t, os.RemoveAll(filepath.Join(s.data, "cache")))
	s.whole(t, "web", webSum)
	s.ok(t, "image", "rm", "web")
	require.Less(t, s.disk(t), empty+mib)
	var c collected
	s.ask(t, &c, "store", "gc", "--dry-run")
	require.Empty(t, c.Notes)
	require.Zero(t, c.Bytes, "%+v", c)
}

// Collections run beside imports, removals and calls, and the server is killed in the
// midst of them, over and over: every image that an import has acknowledged is whole, and in the end nothing is left but
// what images need.
func TestKillOfTheServerInACollection(t *testing.T) {
	t.Parallel()
	const kib = 1 << 10
	s := newSite(t)
	program := guest(t)
	common := randomFile("data/common", 700*kib)
	sums := map[string]string{}
	var garbage []string
	for i := range 4 {
		name := fmt.Sprintf("image%d", i)
		var path string
		path, sums[name] = s.dataOf(t, program, name, common, randomFile("data/own", 300*kib))
		garbage = append(garbage, path)
	}
	path, sum := garbage[0], sums["image0"]
	s.ok(t, "image", "import", path, "--name", "kept")
	s.whole(t, "kept", sum)

	for round := range 6 {
		var wg sync.WaitGroup
		acknowledged := map[string]bool{}
		var mu sync.Mutex
		for i, p := range garbage {
			wg.Go(func() {
				name := fmt.Sprintf("image%d", i)
				if s.brisk(t, "image", "import", p, "--name", name).code != 0 {
					return
				}
				if i%2 == 0 {
					mu.Lock()
					acknowledged[name] = true
					mu.Unlock()
					return
				}
				s.brisk(t, "image", "rm", name)
			})
		}
		for range 2 {
			wg.Go(func() { s.brisk(t, "store", "gc") })
		}
		time.Sleep(time.Duration(mathrand.IntN(1500)) * time.Millisecond) // anywhere
		s.killServer(t)
		wg.Wait()
		s.ok(t, "store", "gc")
		s.whole(t, "kept", sum)
		for name := range acknowledged {
			s.whole(t, name, sums[name])
		}
		t.Logf("round %d: %d imports were acknowledged", round, len(acknowledged))
	}

	for i := range garbage {
		s.brisk(t, "image", "rm", fmt.Sprintf("image%d", i))
	}
	s.killServer(t)
	require.NoError(t, os.RemoveAll(filepath.Join(s.data, "cache")))
	s.whole(t, "kept", sum)
	s.ok(t, "store", "gc")
	var c collected
	s.ask(t, &c, "store", "gc", "--dry-run")
	require.Empty(t, c.Notes)
	require.Zero(t, c.Bytes, "%+v", c)
	s.whole(t, "kept", sum)
}

package e2e

import (
	"crypto/rand"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// smallDisk mounts a filesystem of so many MiB, of the test's own.
func smallDisk(t *testing.T, mib int64) string {
	t.Helper()
	dir := t.TempDir()
	image, at := filepath.Join(dir, "disk"), filepath.Join(dir, "mount")
	require.NoError(t, os.Mkdir(at, 0o755))
	f, err := os.Create(image)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(mib<<20))
	require.NoError(t, f.Close())
	require.NoError(t, quietly("", "mkfs.ext4", "-q", "-m", "0", image))
	require.NoError(t, quietly("", "mount", "-o", "loop", image, at))
	t.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Errorf("somebody still uses the disk: %v", err)
			_ = unix.Unmount(at, unix.MNT_DETACH)
		}
	})
	return at
}

// free is how many bytes the disk has left.
func free(t *testing.T, at string) int64 {
	t.Helper()
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(at, &st))
	return int64(st.Bavail) * st.Bsize
}

// fill takes all of a disk but so many bytes, until it is called.
func fill(t *testing.T, at string, leave int64) (empty func()) {
	t.Helper()
	path := filepath.Join(at, "filler")
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, unix.Fallocate(int(f.Fd()), 0, 0, free(t, at)-leave-1<<20)) // the filesystem's own needs
	_, _ = f.Seek(0, io.SeekEnd)
	for block := make([]byte, 4096); free(t, at) > leave; {
		if _, err := f.Write(block); err != nil {
			require.ErrorIs(t, err, unix.ENOSPC)
			break
		}
	}
	return func() { require.NoError(t, os.Remove(path)) }
}

func TestDiskFullDuringAnImport(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, 400)
	s := newSiteAt(t, filepath.Join(disk, "data"))
	require.Equal(t, "well\n", s.in(t, "echo", "well").out)
	big := filepath.Join(s.files, "big")
	require.NoError(t, os.Mkdir(big, 0o755))
	content := make([]byte, 64<<20)
	for i := range 8 {
		_, _ = rand.Read(content)
		require.NoError(t, os.WriteFile(filepath.Join(big, string(rune('a'+i))), content, 0o644))
	}
	before := free(t, disk)
	e := s.refused(t, 6, "image", "import", big, "--name", "big")
	require.Equal(t, "disk_full", e.Class)
	require.Contains(t, e.Message, "import "+big)
	require.Contains(t, e.Message, "no space left on device")
	require.NotEmpty(t, e.Hint)
	s.fails(t, 3, "image", "inspect", "big")
	eventually(t, "no temporary file of what is over is left", func() bool { return len(s.census(t).dead()) == 0 })
	require.InDelta(t, before, free(t, disk), 8<<20, "what was written is gone")
	require.Equal(t, "well\n", s.in(t, "echo", "well").out, "good images work")

	require.NoError(t, os.RemoveAll(big))
	require.NoError(t, os.Mkdir(big, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(big, "small"), []byte("small"), 0o644))
	s.ok(t, "image", "import", big, "--name", "big")
}

func TestDiskFullDuringASnapshot(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, 400)
	s := newSiteAt(t, filepath.Join(disk, "data"))
	file := s.write(t, "counted.py", counted)
	require.Equal(t, "well\n", s.in(t, "echo", "well").out)
	empty := fill(t, disk, 6<<20)
	require.Equal(t, "42\n", s.ok(t, "run", file+"::f"))
	s.cooled(t, "counted")
	tried := func() bool {
		found, _ := filepath.Glob(filepath.Join(s.data, "snapshots", "*"))
		return len(found) == 0 && len(s.instances(t, "counted", "")) == 0
	}
	eventually(t, "making the snapshot has failed", tried)
	require.Equal(t, "42\n", s.ok(t, "run", file+"::f"), "the function works without")
	c := s.lastCall(t, "counted")
	require.Equal(t, "cold", c.Start)
	require.Contains(t, c.step(t, "snapshot").Note, "making it failed: ")
	require.Contains(t, c.step(t, "snapshot").Note, "no space left on device")
	s.cooled(t, "counted")
	// The next attempt may have begun only now: it ends, and leaves nothing either.
	eventually(t, "making the snapshot has failed again", func() bool { return tried() && len(s.census(t).dead()) == 0 })

	empty()
	require.Equal(t, "42\n", s.ok(t, "run", file+"::f"))
	s.ready(t, "counted")
	s.cooled(t, "counted")
	require.Equal(t, "42\n", s.ok(t, "run", file+"::f"))
	require.Equal(t, "restored", s.lastCall(t, "counted").Start)
}

// A disk that is full when the server starts: it says so, or works without writing.
func TestDiskFullFromTheBeginning(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, 200)
	s := newSiteAt(t, filepath.Join(disk, "data"))
	empty := fill(t, disk, 0)
	r := s.brisk(t, "run", "--image", "x", "--", "true")
	require.Contains(t, []int{3, 6}, r.code, "%s", r)
	t.Log(r)
	s.ok(t, "down")
	empty()
	require.Equal(t, "well\n", s.in(t, "echo", "well").out)
}

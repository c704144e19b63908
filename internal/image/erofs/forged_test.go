package erofs_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image/erofs"
)

// inodeAt finds the inode of an owner, and its number, in metadata.
func inodeAt(t *testing.T, meta []byte, owner uint32) (inode []byte, nid uint64) {
	t.Helper()
	for at := erofs.BlockSize; at+64 <= len(meta); at += 32 {
		if b := meta[at : at+64]; binary.LittleEndian.Uint32(b[24:]) == owner {
			return b, uint64(binary.LittleEndian.Uint32(b[20:])) // see docs/format/image.md: its number is in it
		}
	}
	require.FailNow(t, "no inode", "of %d", owner)
	return nil, 0
}

// Metadata that no writer of ours made, of trees that cannot be: none is read.
func TestForged(t *testing.T) {
	const up, down, one, two = 70_001, 70_002, 70_003, 70_004
	h := newHostile()
	h.dir("up").UID = up
	h.dir("up/down").UID = down
	h.add("up/down/one", h.file(bytes.Repeat([]byte("1"), 2*erofs.ChunkSize))).UID = one
	h.add("up/two", h.file(bytes.Repeat([]byte("2"), 100))).UID = two
	whole, err := erofs.Encode(h.seal().root, h.blocks())
	require.NoError(t, err)
	_, _, err = erofs.Decode(whole.Bytes)
	require.NoError(t, err)

	refused := func(t *testing.T, meta []byte) {
		t.Helper()
		_, _, err := erofs.Decode(meta)
		require.True(t, fault.Is(err, fault.Corrupt), "%v", err)
	}
	for _, size := range []uint64{1 << 63, math.MaxUint64, math.MaxInt64, 1 << 62, 1 << 40, 0} {
		for name, owner := range map[string]uint32{"file": one, "directory": up} {
			t.Run(fmt.Sprintf("%s of %d bytes", name, size), func(t *testing.T) {
				meta := bytes.Clone(whole.Bytes)
				inode, _ := inodeAt(t, meta, owner)
				binary.LittleEndian.PutUint64(inode[8:], size)
				refused(t, meta)
			})
		}
	}
	// Whatever names one inode is made to name another.
	for _, c := range []struct {
		name     string
		from, to uint32
	}{{"a cycle", down, up}, {"a directory as a file", one, down}, {"a file as a directory", down, one}, {"two files in one", one, two}} {
		t.Run(c.name, func(t *testing.T) {
			_, from := inodeAt(t, whole.Bytes, c.from)
			_, to := inodeAt(t, whole.Bytes, c.to)
			changed := 0
			for at := erofs.BlockSize; at+12 <= len(whole.Bytes); at += 4 {
				if binary.LittleEndian.Uint64(whole.Bytes[at:]) == from && whole.Bytes[at+11] == 0 {
					meta := bytes.Clone(whole.Bytes)
					binary.LittleEndian.PutUint64(meta[at:], to)
					refused(t, meta)
					changed++
				}
			}
			require.NotZero(t, changed)
		})
	}
	t.Run("content behind the device", func(t *testing.T) {
		meta := bytes.Clone(whole.Bytes)
		at := whole.Relocs[0]
		binary.LittleEndian.PutUint32(meta[at:], h.blocks())
		refused(t, meta)
	})
}

// A directory of a million entries takes no more than it has to, and the kernel reads it.
func TestMillionEntries(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	const n = 1_000_000
	h := newHostile()
	many := h.dir("many")
	for i := range n {
		many.Entries = append(many.Entries, erofs.Entry{Name: fmt.Sprintf("%07d", i), Inode: &erofs.Inode{Mode: unix.S_IFREG | 0o644}})
	}
	h.add("device", h.file([]byte("so that there is one")))
	h.seal()
	m, err := erofs.Encode(h.root, h.blocks())
	require.NoError(t, err)
	require.Less(t, len(m.Bytes), 100*n)
	root, _, err := erofs.Decode(m.Bytes)
	require.NoError(t, err)
	require.Len(t, root.Entries[1].Inode.Entries, n)

	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	meta, device := h.write(t)
	mnt := t.TempDir()
	require.NoError(t, unix.Mount(meta, mnt, "erofs", unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOSUID, "device="+device))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(mnt, unix.MNT_DETACH)) })
	d, err := os.Open(mnt + "/many")
	require.NoError(t, err)
	defer d.Close()
	names, err := d.Readdirnames(-1)
	require.NoError(t, err)
	require.Len(t, names, n)
	for _, name := range []string{"0000000", "0499999", "0999999"} {
		require.FileExists(t, mnt+"/many/"+name)
	}
	require.NoFileExists(t, mnt+"/many/1000000")
}

package erofs_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image/erofs"
)

// moved gives the address in a relocated image of whatever was at addr.
const moved = 1 << 20

func move(addr, _ uint32) (uint32, error) { return addr + moved, nil }

// moveTree changes a tree as Relocate with move changes its encoding.
func moveTree(n *erofs.Inode, seen map[*erofs.Inode]bool) {
	for i, a := range n.Addrs {
		if a != erofs.Hole && !seen[n] {
			n.Addrs[i] = a + moved
		}
	}
	seen[n] = true
	for _, e := range n.Entries {
		moveTree(e.Inode, seen)
	}
}

func TestRelocateIsEncodingWithOtherAddresses(t *testing.T) {
	check := func(t require.TestingT, root *erofs.Inode, blocks uint32) {
		m, err := erofs.Encode(root, blocks)
		require.NoError(t, err)
		before := bytes.Clone(m.Bytes)
		got, err := erofs.Relocate(m.Bytes, blocks+moved, move)
		require.NoError(t, err)
		require.True(t, bytes.Equal(before, m.Bytes), "the input must stay as it is")
		moveTree(root, map[*erofs.Inode]bool{})
		want, err := erofs.Encode(root, blocks+moved)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want.Bytes, got))
	}
	h := everything(5000)
	check(t, h.root, h.blocks())
	check(t, dir(0o755), 0)
	rapid.Check(t, func(t *rapid.T) {
		check(t, genDir(t, 3, 1<<20, &[]*erofs.Inode{}), 1<<20)
	})
}

func TestRelocateRefuses(t *testing.T) {
	h := newHostile()
	h.add("a/file", h.file(bytes.Repeat([]byte("x"), erofs.ChunkSize+1)))
	h.add("b", h.file([]byte("y")))
	m, err := erofs.Encode(h.seal().root, h.blocks())
	require.NoError(t, err)

	var sizes []uint32
	_, err = erofs.Relocate(m.Bytes, h.blocks(), func(addr, size uint32) (uint32, error) {
		sizes = append(sizes, size)
		return addr, nil
	})
	require.NoError(t, err)
	slices.Sort(sizes)
	require.Equal(t, []uint32{1, 1, erofs.ChunkSize}, sizes)

	no := errors.New("no such chunk")
	_, err = erofs.Relocate(m.Bytes, h.blocks(), func(uint32, uint32) (uint32, error) { return 0, no })
	require.ErrorIs(t, err, no)
	_, err = erofs.Relocate(m.Bytes, moved, move)
	require.ErrorContains(t, err, "on a device of")
	require.True(t, fault.Is(err, fault.Corrupt))
}

// area is an inode area under construction, for metadata that Encode would not write.
type area []byte

func (a *area) inode(slot int, kind uint16, layout uint16, size uint64, union uint32) {
	for len(*a) < slot*32+64 {
		*a = append(*a, 0)
	}
	b := (*a)[slot*32:]
	binary.LittleEndian.PutUint16(b, 1|layout<<1)
	binary.LittleEndian.PutUint16(b[4:], kind|0o755)
	binary.LittleEndian.PutUint64(b[8:], size)
	binary.LittleEndian.PutUint32(b[16:], union)
	binary.LittleEndian.PutUint32(b[20:], uint32(slot))
	binary.LittleEndian.PutUint32(b[44:], 1)
}

// dirents is a directory's content with "." and ".." and one more name.
func dirents(self, child uint64, kind byte) []byte {
	var b []byte
	for i, e := range []struct {
		nid  uint64
		kind byte
	}{{self, 2}, {self, 2}, {child, kind}} {
		b = binary.LittleEndian.AppendUint64(b, e.nid)
		b = binary.LittleEndian.AppendUint16(b, uint16(36+[]int{0, 1, 3}[i]))
		b = append(b, e.kind, 0)
	}
	return append(b, "...x"...)
}

// TestRelocateFindsHiddenAddresses tries ways to have the kernel follow an address
// that Relocate did not see: whoever made the metadata could read any chunk in the
// slab by it.
func TestRelocateFindsHiddenAddresses(t *testing.T) {
	const chunks, inline, plain, fileFormat = 4, 2, 0, 0x25
	good := func() *area {
		a := &area{}
		a.inode(1, unix.S_IFDIR, inline, 40, 0)
		*a = append((*a)[:3*32], dirents(1, 5, 1)...)
		a.inode(5, unix.S_IFREG, chunks, 1, fileFormat)
		*a = append(*a, 0, 0, 1, 0, 3, 0, 0, 0)
		return a
	}
	relocate := func(a *area, inodes uint64) error {
		_, err := erofs.Relocate(erofs.Seal(*a, inodes, 16), 1<<21, move)
		return err
	}
	require.NoError(t, relocate(good(), 2))

	hidden := good() // the file's inode counts as part of a symbolic link's target
	hidden.inode(5, unix.S_IFLNK, inline, 200, 0)
	hidden.inode(8, unix.S_IFREG, chunks, 1, fileFormat)
	*hidden = append(*hidden, make([]byte, 200)...)
	copy((*hidden)[3*32:], dirents(1, 8, 1))
	require.ErrorContains(t, relocate(hidden, 2), "leads to inode 8, which is none")

	for _, block := range []uint32{0, 1} { // a directory is read from where addresses are written
		among := good()
		among.inode(1, unix.S_IFDIR, plain, 4096, block)
		among.inode(3, unix.S_IFREG, chunks, 1, fileFormat)
		*among = append((*among)[:5*32], 0, 0, 1, 0, 3, 0, 0, 0)
		require.ErrorContains(t, relocate(among, 2), "lies among the inodes")
	}

	for name, change := range map[string]func(b []byte){
		"a device that is the metadata":    func(b []byte) { b[7*32+2] = 0 },
		"a second device":                  func(b []byte) { b[7*32+2] = 2 },
		"high bits of an address":          func(b []byte) { b[7*32] = 1 },
		"an address behind the device":     func(b []byte) { b[7*32+4] = 16 },
		"chunks of another size":           func(b []byte) { b[5*32+16] = 0x24 },
		"chunks without indexes":           func(b []byte) { b[5*32+16] = 0x05 },
		"a directory in chunks":            func(b []byte) { b[1*32] = 1 | chunks<<1 },
		"a file of plain blocks":           func(b []byte) { b[5*32] = 1 | plain<<1 },
		"a compressed file":                func(b []byte) { b[5*32] = 1 | 1<<1 },
		"a file with inline data":          func(b []byte) { b[5*32] = 1 | inline<<1 },
		"a compact inode":                  func(b []byte) { b[5*32] = chunks << 1 },
		"more chunks than bytes":           func(b []byte) { b[5*32+14] = 1 },
		"a negative size":                  func(b []byte) { b[5*32+15] = 0x80 },
		"xattrs behind the end":            func(b []byte) { b[5*32+3] = 0xff },
		"a flag of later kernels":          func(b []byte) { b[5*32] |= 0x10 },
		"an inode that says another place": func(b []byte) { b[5*32+20]++ },
		"names that begin nowhere":         func(b []byte) { b[3*32+8] = 0 },
		"a name for a high inode":          func(b []byte) { b[3*32+24+7] = 0x08 },
	} {
		a := good()
		change(*a)
		err := relocate(a, 2)
		require.True(t, fault.Is(err, fault.Corrupt), "%s: %v", name, err)
	}
	require.ErrorContains(t, relocate(good(), 3), "inodes are missing")
	require.Error(t, relocate(good(), 1), "then the file is none")
	_, err := erofs.Relocate([]byte(strings.Repeat("x", 8192)), 1, move)
	require.True(t, fault.Is(err, fault.Corrupt))
}

func FuzzRelocate(f *testing.F) {
	h := newHostile()
	h.add("a/file", h.file(bytes.Repeat([]byte("x"), erofs.ChunkSize+1))).Xattrs = map[string]string{"user.a": "b"}
	h.add("b", h.add("a/link", &erofs.Inode{Mode: unix.S_IFLNK | 0o777, Link: "file"}))
	for i := range 20 {
		h.add("long/"+strings.Repeat("z", 252)+string(rune('a'+i)), &erofs.Inode{Mode: unix.S_IFIFO})
	}
	m, err := erofs.Encode(h.seal().root, h.blocks())
	require.NoError(f, err)
	f.Add(m.Bytes[erofs.BlockSize:], uint64(m.Inodes), h.blocks())
	f.Fuzz(func(t *testing.T, area []byte, inodes uint64, blocks uint32) {
		blocks %= moved
		out, err := erofs.Relocate(erofs.Seal(area, inodes, blocks), 2*moved, move)
		if err != nil {
			require.True(t, fault.Is(err, fault.Corrupt), err)
			return
		}
		// Whatever a reader comes across has been moved.
		root, n, err := erofs.Decode(out)
		if err != nil {
			return
		}
		require.EqualValues(t, 2*moved, n)
		var walk func(n *erofs.Inode)
		walk = func(n *erofs.Inode) {
			for _, a := range n.Addrs {
				require.GreaterOrEqual(t, a, uint32(moved))
			}
			for _, e := range n.Entries {
				walk(e.Inode)
			}
		}
		walk(root)
	})
}

func BenchmarkRelocate(b *testing.B) {
	h := thirtyThousand()
	m, err := erofs.Encode(h.root, h.blocks())
	require.NoError(b, err)
	b.SetBytes(int64(len(m.Bytes)))
	for b.Loop() {
		if _, err := erofs.Relocate(m.Bytes, h.blocks()+moved, move); err != nil {
			b.Fatal(err)
		}
	}
}

package lazyfs

import (
	"context"
	"log/slog"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

func message(op uint32, node uint64, body []byte) []byte {
	b := make([]byte, inHeader, inHeader+len(body))
	order.PutUint32(b, uint32(inHeader+len(body)))
	order.PutUint32(b[4:], op)
	order.PutUint64(b[8:], 42)
	order.PutUint64(b[16:], node)
	return append(b, body...)
}

func initBody(major, minor uint32, flags uint64) []byte {
	b := make([]byte, 64)
	order.PutUint32(b, major)
	order.PutUint32(b[4:], minor)
	order.PutUint32(b[12:], uint32(flags))
	order.PutUint32(b[16:], uint32(flags>>32))
	return b
}

func TestInitTakesWhatIsOffered(t *testing.T) {
	all := uint64(wantedFlags | initResend)
	for name, c := range map[string]struct {
		body   []byte
		minor  uint32 // 0: refused
		resend bool
	}{
		"6.18":                 {initBody(7, 44, ^uint64(0)), 40, true},
		"6.8, no resend":       {initBody(7, 39, all&^initResend), 39, false},
		"5.15, no second word": {initBody(7, 34, all&^initExt), 34, false},
		"too old":              {initBody(7, 19, all), 0, false},
		"another protocol":     {initBody(8, 1, all), 0, false},
		"short":                {make([]byte, 15), 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			body, s := answerInit(c.body)
			require.Equal(t, c.resend, s.resend)
			if c.minor == 0 {
				require.Nil(t, body)
				return
			}
			require.Len(t, body, 64)
			require.Equal(t, uint32(7), order.Uint32(body))
			require.Equal(t, c.minor, order.Uint32(body[4:]))
			got := uint64(order.Uint32(body[12:])) | uint64(order.Uint32(body[32:]))<<32
			require.Zero(t, got&^all, "flags nobody wanted")
			require.Equal(t, uint16(256), order.Uint16(body[28:]), "pages in a read")
		})
	}
}

func TestNodesComeFromDigests(t *testing.T) {
	for id, want := range map[string]uint64{
		"0000000000000000":   0x8000000000000000,
		"0123456789abcdef":   0x8123456789abcdef,
		"f123456789abcdef00": 0xf123456789abcdef,
	} {
		got, err := nodeOf(id)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, id := range []string{"", "..", "0123456789abcde", "0123456789abcdeg", "0123456789ABCDEF", "0123456789abcdef/.."} {
		_, err := nodeOf(id)
		require.True(t, fault.Is(err, fault.Invalid), "%q", id)
	}
}

func TestImagesWithOneNodeAreNotMixedUp(t *testing.T) {
	d := &files{budget: 1 << 20, byNode: map[uint64]*file{}}
	a, err := d.use("0123456789abcdef00", nil)
	require.NoError(t, err)
	_, err = d.use("0123456789abcdef01", nil)
	require.True(t, fault.Is(err, fault.Exists), "%v", err)
	require.Nil(t, d.named("0123456789abcdef01"))
	require.True(t, d.drop(a))
	_, err = d.use("0123456789abcdef01", nil)
	require.NoError(t, err)
}

// FuzzRequest has a server answer whatever may come out of /dev/fuse.
func FuzzRequest(f *testing.F) {
	node, _ := nodeOf("0123456789abcdef")
	args := make([]byte, 40)
	order.PutUint32(args[16:], 8192)
	f.Add(message(opLookup, rootNode, []byte("0123456789abcdef\x00")))
	f.Add(message(opGetattr, node, args[:16]))
	f.Add(message(opOpen, node, args[:8]))
	f.Add(message(opRead, node, args))
	f.Add(message(opReaddir, rootNode, args))
	f.Add(message(opInit, 0, initBody(7, 40, ^uint64(0))))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, ok := parseRequest(b)
		if !ok {
			return
		}
		answerInit(r.body)
		img := Image{Blocks: &fakeBlocks{data: make([]byte, 5000)}}
		s := &server{
			files:    &files{budget: maxRead, byNode: map[uint64]*file{}},
			deadline: time.Second, budget: semaphore.NewWeighted(maxRead),
			log: newComplaints(slog.New(slog.DiscardHandler)), released: func(*file) {}, ctx: t.Context(),
		}
		file, err := s.files.use("0123456789abcdef", &img)
		require.NoError(t, err)
		if r.op != opRead {
			body, errno := s.small(context.Background(), r)
			require.True(t, errno == 0 || errno == unix.ENOENT || errno == unix.ESTALE || errno == unix.EINVAL || errno == unix.ENOSYS)
			require.LessOrEqual(t, len(body), maxRead)
			return
		}
		off, size, ok := r.readArgs()
		if !ok {
			return
		}
		n, err := s.fill(context.Background(), file, make([]byte, size), off)
		require.NoError(t, err)
		require.Equal(t, int(max(0, min(int64(size), 8192-off))), n)
	})
}

// TestBuffers: the data of an answer begins at a page, or disks could not write to it.
func TestBuffers(t *testing.T) {
	for _, n := range []int{1, 4096, chunkData, chunkData + 1, maxRead} {
		for range 20 {
			b := buffers.get(n)
			require.Len(t, b.data(n), n)
			require.Zero(t, uintptr(unsafe.Pointer(&b.data(n)[0]))%4096)
		}
	}
}

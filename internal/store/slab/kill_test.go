package slab_test

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/slab"
	"brisk.dev/brisk/internal/store/storetest"
)

// TestKilledProcess is the process that TestKill kills: it fills a slab that is
// too small, and says what it has placed.
func TestKilledProcess(t *testing.T) {
	dir := os.Getenv("BRISK_TEST_SLAB_DIR")
	if dir == "" {
		t.Skip("is run by TestKill")
	}
	first, err := strconv.Atoi(os.Getenv("BRISK_TEST_SLAB_FIRST"))
	require.NoError(t, err)
	s := open(t, dir, killLimit)
	for n := first; ; n++ {
		var chunks []store.Chunk
		for i := range 20 {
			c, data := storetest.Piece(uint64(n*20+i), 9000)
			require.NoError(t, s.Write(c, data))
			chunks = append(chunks, c)
		}
		if p, err := s.Place(fmt.Sprint("image", n), chunks[:5]); err == nil {
			fmt.Printf("placed %d %s\n", n, strings.Trim(fmt.Sprint(p.Blocks), "[]"))
		}
		if n >= first+4 {
			s.Unpin(fmt.Sprint("image", n-4))
			fmt.Printf("unpinned %d\n", n-4)
		}
	}
}

const killLimit = 200 * 12 << 10

// kill -9 anywhere: what was placed is in its place for good, and nothing is wrong.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	placed := map[string][]uint32{}
	next := 0
	for round := range 5 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledProcess$", "-test.count=1")
		cmd.Env = append(os.Environ(), "BRISK_TEST_SLAB_DIR="+dir, "BRISK_TEST_SLAB_FIRST="+strconv.Itoa(next))
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(out)
		seen := 0
		for lines.Scan() {
			fields := strings.Fields(lines.Text())
			switch {
			case len(fields) == 7 && fields[0] == "placed":
				n, err := strconv.Atoi(fields[1])
				require.NoError(t, err)
				var blocks []uint32
				for _, f := range fields[2:] {
					b, err := strconv.ParseUint(f, 10, 32)
					require.NoError(t, err)
					blocks = append(blocks, uint32(b))
				}
				placed[fmt.Sprint("image", n)] = blocks
				next = n + 1
				if n >= 4 {
					delete(placed, fmt.Sprint("image", n-4)) // it is just being unpinned
				}
			case strings.Contains(lines.Text(), "FAIL"):
				t.Fatal(lines.Text())
			}
			if seen++; seen == 8+3*round { // and it is anywhere in what comes next
				require.NoError(t, cmd.Process.Kill())
			}
		}
		_ = cmd.Wait()
		require.NotZero(t, next)

		s, err := slab.Open(slab.Options{Dir: dir, Limit: killLimit, Log: storetest.Log(t)})
		require.NoError(t, err)
		f := openFile(t, s.Path())
		for owner, blocks := range placed {
			require.Contains(t, s.Owners(), owner)
			n, err := strconv.Atoi(strings.TrimPrefix(owner, "image"))
			require.NoError(t, err)
			for i, b := range blocks {
				_, want := storetest.Piece(uint64(n*20+i), 9000)
				got := make([]byte, 9000)
				_, err := f.ReadAt(got, int64(b)*4096)
				require.NoError(t, err)
				require.True(t, bytes.Equal(want, got), "%s: chunk %d is not at block %d", owner, i, b)
			}
		}
		for i := range next * 20 {
			c, want := storetest.Piece(uint64(i), 9000)
			got := make([]byte, 9000)
			if ok, err := s.Read(c, got); err != nil || ok && !bytes.Equal(want, got) {
				t.Fatalf("chunk %d: wrong bytes, or %v", i, err)
			}
		}
		for _, owner := range s.Owners() {
			if placed[owner] == nil {
				s.Unpin(owner)
			}
		}
		require.NoError(t, s.Close())
	}
}

// Everybody at once on a slab that is too small: nothing that is read is wrong.
func TestConcurrentEviction(t *testing.T) {
	const n = 120
	var chunks []store.Chunk
	var datas [][]byte
	for i := range n {
		c, data := storetest.Piece(uint64(i), 1+i*997%20_000)
		chunks, datas = append(chunks, c), append(datas, data)
	}
	s := open(t, t.TempDir(), 50*12<<10)
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 1))
			dst := make([]byte, 20_000)
			for range 600 {
				i := r.IntN(n)
				switch what := r.IntN(40); {
				case what == 0:
					_ = s.Flush()
				case what == 1:
					_, _ = s.Evict(t.Context(), 40_000)
				case what == 2:
					owner := fmt.Sprint(w)
					p, err := s.Place(owner, chunks[i:min(i+3, n)])
					if err == nil && len(p.Blocks) != min(3, n-i) {
						t.Errorf("%d blocks", len(p.Blocks))
					}
				case what == 3:
					s.Unpin(fmt.Sprint(w))
				case what == 4:
					s.Pin(fmt.Sprint(w), chunks[i:min(i+3, n)])
				case what == 5:
					s.Stats()
					s.Owners()
				case what < 20:
					if err := s.Write(chunks[i], datas[i]); err != nil {
						t.Error(err)
					}
				default:
					ok, err := s.Read(chunks[i], dst[:chunks[i].Size])
					if err != nil || ok && !bytes.Equal(dst[:chunks[i].Size], datas[i]) {
						t.Errorf("chunk %d: wrong bytes, or %v", i, err)
					}
				}
			}
		})
	}
	wg.Wait()
	st := s.Stats()
	require.Zero(t, st.Drops)
	require.Positive(t, st.Evicted)
	require.LessOrEqual(t, st.Bytes, int64(50*12<<10))
}

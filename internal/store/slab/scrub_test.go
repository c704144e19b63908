package slab

import (
	"context"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// rot changes a byte of a chunk on the disk.
func (s *shelf) rot(n int) {
	s.t.Helper()
	c, _ := block(n)
	_, e := s.table.find(c.Digest)
	require.NotNil(s.t, e)
	s.disk.files[dataName].content[e.place.offset()+1000]++
}

// repairing gives options that mend what can be, and the numbers of what was told.
func (s *shelf) repairing(told map[store.Digest]bool) ScrubOptions {
	return ScrubOptions{Damaged: func(c store.Chunk, mounted bool) {
		told[c.Digest] = mounted
		for n := range 100 {
			if b, data := block(n); mounted && b == c {
				require.NoError(s.t, s.Repair(c, data))
			}
		}
	}}
}

func digest(n int) store.Digest {
	c, _ := block(n)
	return c.Digest
}

func TestScrub(t *testing.T) {
	s := newShelf(t, 1000)
	s.put(0, 20)
	mounted, _ := block(7)
	p, err := s.Place("image", []store.Chunk{mounted})
	require.NoError(t, err)
	s.rot(7)
	s.rot(12)

	told := map[store.Digest]bool{}
	r, err := s.Scrub(t.Context(), s.repairing(told))
	require.NoError(t, err)
	require.Equal(t, ScrubReport{Chunks: 20, Bytes: 20 * 4096, Damaged: 2, Mounted: 1, Complete: true}, r)
	require.Equal(t, map[store.Digest]bool{digest(7): true, digest(12): false}, told)
	require.Equal(t, "0-11 13-19", s.there(20))
	s.use(7, 8)
	again, err := s.Place("image", []store.Chunk{mounted})
	require.NoError(t, err)
	require.Equal(t, p, again)

	r, err = s.Scrub(t.Context(), ScrubOptions{})
	require.NoError(t, err)
	require.Equal(t, ScrubReport{Chunks: 19, Bytes: 19 * 4096, Complete: true}, r)
	require.EqualValues(t, 2, s.Stats().Drops)
	c := s.Coverage()
	require.False(t, c.Ended.IsZero())
	require.True(t, c.Began.IsZero())
	require.EqualValues(t, 19*4096, c.Total)
}

// A round goes on where it was interrupted, also by another process.
func TestScrubGoesOn(t *testing.T) {
	s := newShelf(t, 1000)
	s.put(0, 20)
	ctx, cancel := context.WithCancel(t.Context())
	var seen []int64
	r, err := s.Scrub(ctx, ScrubOptions{Progress: func(done, total int64) {
		require.EqualValues(t, 20*4096, total)
		if seen = append(seen, done/4096); done == 5*4096 {
			cancel()
		}
	}})
	require.True(t, fault.Is(err, fault.Cancelled), "%v", err)
	require.Equal(t, ScrubReport{Chunks: 5, Bytes: 5 * 4096}, r)
	require.Equal(t, []int64{1, 2, 3, 4, 5}, seen)
	began := s.Coverage().Began
	require.False(t, began.IsZero())
	require.EqualValues(t, 5*4096, s.Coverage().Done)

	s.reopen(1000)
	require.Equal(t, began, s.Coverage().Began)
	require.EqualValues(t, 5*4096, s.Coverage().Done)
	r, err = s.Scrub(t.Context(), ScrubOptions{})
	require.NoError(t, err)
	require.Equal(t, ScrubReport{Chunks: 15, Bytes: 15 * 4096, Complete: true}, r)
	ended := s.Coverage().Ended
	require.False(t, ended.IsZero())
	s.reopen(1000)
	require.Equal(t, ended, s.Coverage().Ended)
}

// The rate is kept, and neither the caller's end nor the slab's is waited for.
func TestScrubRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(t, 1000)
		s.put(0, 11)
		began := time.Now()
		_, err := s.Scrub(t.Context(), ScrubOptions{Rate: 4096})
		require.NoError(t, err)
		require.Equal(t, 10*time.Second, time.Since(began))

		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		r, err := s.Scrub(ctx, ScrubOptions{Rate: 4096})
		require.True(t, fault.Is(err, fault.Timeout), "%v", err)
		require.EqualValues(t, 2, r.Chunks)

		closed := make(chan error)
		go func() {
			_, err := s.Scrub(context.Background(), ScrubOptions{Rate: 1})
			closed <- err
		}()
		synctest.Wait()
		_, err = s.Scrub(t.Context(), ScrubOptions{})
		require.True(t, fault.Is(err, fault.Exists), "%v", err)
		require.NoError(t, s.Close())
		require.True(t, fault.Is(<-closed, fault.Cancelled))
	})
}

// A scrub reads the disk, not the page cache, and mends the records of pins.
func TestScrubReadsTheDisk(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(Options{Dir: dir, Log: quiet})
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	c, data := block(1)
	require.NoError(t, s.Write(c, data))
	_, err = s.Place("image", []store.Chunk{c})
	require.NoError(t, err)
	pins := filepath.Join(dir, "pins", "image")
	require.NoError(t, unix.Truncate(pins, 50))
	r, err := s.Scrub(t.Context(), ScrubOptions{})
	require.NoError(t, err)
	require.Equal(t, ScrubReport{Chunks: 1, Bytes: 4096, Pins: 1, Complete: true}, r)
	var st unix.Stat_t
	require.NoError(t, unix.Stat(pins, &st))
	require.EqualValues(t, pinOverhead+pinSize, st.Size)
}

func TestCheck(t *testing.T) {
	s := newShelf(t, 1000)
	s.put(0, 20)
	mounted, _ := block(7)
	_, err := s.Place("image", []store.Chunk{mounted})
	require.NoError(t, err)
	r, err := s.Check(t.Context(), CheckOptions{})
	require.NoError(t, err)
	require.Equal(t, CheckReport{Chunks: 20, Bytes: 20 * 4096}, r)

	s.rot(7)
	s.rot(12)
	s.disk.files[indexName].content[headerSize+recordSize*5]++
	s.disk.files[pinDir+"/image"].content[60]++
	var last int64
	o := CheckOptions{Damaged: s.repairing(map[store.Digest]bool{}).Damaged, Progress: func(done, total int64) {
		require.EqualValues(t, 20*4096, total)
		last = done
	}}
	r, err = s.Check(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, CheckReport{Chunks: 20, Bytes: 20 * 4096, Damaged: 2, Mounted: 1, Mended: []string{
		"the index lacked 1 chunks", "1 records of natively mounted images were damaged",
	}}, r)
	require.EqualValues(t, 20*4096, last)
	o.Progress = nil
	r, err = s.Check(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, CheckReport{Chunks: 19, Bytes: 19 * 4096}, r)

	// All of it is so on the disk, too.
	s.disk = s.disk.afterCrash(dropAll, nil)
	s.Slab = nil
	s.reopen(1000)
	require.Equal(t, []string{"image"}, s.Owners())
	s.use(0, 12)

	s.disk.files[indexName].content[3]++
	r, err = s.Check(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, []string{"the index could not be read (its header is damaged)"}, r.Mended)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Check(ctx, o)
	require.True(t, fault.Is(err, fault.Cancelled), "%v", err)
}

// The blocks' rest after a chunk can be seen through a mapping: it is looked at too.
func TestScrubFindsPadding(t *testing.T) {
	s := newShelf(t, 1000)
	data := []byte("short")
	c := store.Chunk{Digest: store.Sum(data), Size: 5}
	require.NoError(t, s.Write(c, data))
	require.NoError(t, s.Flush())
	s.disk.files[dataName].content[2*4096-1] = 1
	r, err := s.Scrub(t.Context(), ScrubOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 1, r.Damaged)
}

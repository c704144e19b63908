package image

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/trace"
)

// StartSpec says what is being started.
type StartSpec struct {
	Workspace string
	Image     store.Digest
	Entry     Entry
	Guess     Guess        // for when nothing is known of it or of others on the image; nil: none
	Trace     *trace.Trace // gets the steps of bringing; nil: none
}

// Guess names chunks that a start is likely to read. It may read the image, and hands on
// what it has found with emit, which does not wait.
type Guess func(ctx context.Context, img *Image, emit func([]store.Chunk)) error

// StartReport says what one start came to.
type StartReport struct {
	Source  string // where the list of chunks came from: "profile", "image" (its other entry points), "guess" or "none"
	Listed  int    // chunks on the list
	Touched int    // chunks that were read
	Used    int    // of these, those that were on the list
	Brought int64  // chunks that were fetched for it ahead of reading
	Bytes   int64  // in them
	At      time.Time
}

// Start is one start of an entry point: what it is likely to read is brought to the
// cache, and what it reads is recorded. Its life:
//
//	Begin -> Attach -> Go -> Ready -> Done
//
// and Fail at any time. A nil Start does nothing. Its methods are safe for
// concurrent use, and only Known waits.
type Start struct {
	p        *Profiles
	attached chan struct{} // closed by Attach

	mu        sync.Mutex
	spec      StartSpec
	course    *course // nil: ended
	img       *Image
	blocks    *Blocks
	recording *Recording
	timer     *time.Timer
}

// course is the bringing of what one entry point reads.
type course struct {
	ctx      context.Context
	stop     context.CancelFunc
	asked    chan struct{} // closed when it is known whether there is a profile
	known    bool          // or cannot be told
	finished chan struct{}
	fetching bool // there was something to be fetched; of the course's own goroutine

	mu     sync.Mutex
	report StartReport
	list   []store.Chunk
}

const (
	// longestCourse ends a prefetch that no start has been waiting for in the end.
	longestCourse = 2 * time.Minute
)

// FirstUse is how long after being ready a start may still read what belongs to it, if nobody
// says that it has been of use.
const FirstUse = 10 * time.Second

// Begin begins to bring what a start is going to read. It is to be called as early as
// can be: the image itself may still have to be fetched.
func (p *Profiles) Begin(spec StartSpec) *Start {
	if p == nil {
		return nil
	}
	s := &Start{p: p, spec: spec, attached: make(chan struct{})}
	s.course = s.begin(spec)
	return s
}

func (s *Start) begin(spec StartSpec) *course {
	c := &course{asked: make(chan struct{}), finished: make(chan struct{})}
	c.report.Source = "none"
	c.ctx, c.stop = context.WithTimeout(s.p.ctx, longestCourse)
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if s.p.closed {
		c.stop()
		close(c.asked)
		close(c.finished)
		return c
	}
	s.p.wg.Go(func() {
		defer close(c.finished)
		defer c.stop()
		s.fetch(c, spec)
		if c.fetching {
			s.p.stats.courses.Add(1)
			if c.ctx.Err() != nil {
				s.p.stats.cancelled.Add(1)
			}
		}
	})
	return c
}

// Known reports whether there is a profile of the entry point. If the store does not
// say so in time the answer is yes: it is not worth waiting for.
func (s *Start) Known(ctx context.Context) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	c := s.course
	s.mu.Unlock()
	if c == nil {
		return false
	}
	select {
	case <-c.asked:
		return c.known
	case <-ctx.Done():
		return true
	}
}

// Attach tells which image it is: it can be read from now on, for a guess.
func (s *Start) Attach(img *Image, blocks *Blocks) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.course != nil && s.blocks == nil {
		s.img, s.blocks = img, blocks
		close(s.attached)
	}
}

// Go says that it begins to read, and the recording does: as e, which may differ from
// what was expected when it was begun.
func (s *Start) Go(e Entry) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.course == nil || s.recording != nil {
		return
	}
	if e.ID != s.spec.Entry.ID {
		s.course.stop()
		s.spec.Entry, s.spec.Guess = e, nil
		s.course = s.begin(s.spec)
	}
	if s.blocks != nil {
		s.recording = s.blocks.Record()
	}
}

// Ready marks that the start is over for whoever waits for it. What is read from now
// on is for the first use, which Done ends, or else time does.
func (s *Start) Ready() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.course == nil {
		return
	}
	if s.recording != nil {
		s.recording.Ready()
	}
	if s.timer == nil {
		s.timer = time.AfterFunc(FirstUse, s.Done)
	}
}

// Done ends the recording, and the fetching, and learns from it.
func (s *Start) Done() { s.end(true) }

// Fail ends it without learning: the start did not get to where others do.
func (s *Start) Fail() { s.end(false) }

func (s *Start) end(learn bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.course
	if c == nil {
		return
	}
	s.course = nil
	c.stop()
	if s.timer != nil {
		s.timer.Stop()
	}
	if s.recording == nil {
		return
	}
	if run := s.recording.Stop(); learn {
		spec, device := s.spec, s.blocks.Chunks()
		s.p.spawn(func() { s.p.recorded(c, spec, run, device) })
	}
}

// recorded hands what a start has read to the profiles.
func (p *Profiles) recorded(c *course, spec StartSpec, run Run, device []store.Chunk) {
	<-c.finished
	report, list := c.report, c.list
	read := make(map[store.Digest]bool, len(run.Chunks))
	for _, i := range run.Chunks {
		read[device[i].Digest] = true
	}
	report.Listed, report.Touched, report.At = len(list), len(read), time.Now()
	var listedBytes, usedBytes int64
	for _, c := range list {
		listedBytes += int64(c.Size)
		if read[c.Digest] {
			report.Used++
			usedBytes += int64(c.Size)
		}
	}
	st := &p.stats
	st.listedBytes.Add(listedBytes)
	st.usedBytes.Add(usedBytes)
	st.starts.Add(1)
	st.listed.Add(int64(report.Listed))
	st.used.Add(int64(report.Used))
	st.touched.Add(int64(report.Touched))
	p.log.Debug("a start has been recorded", "image", spec.Image.Short(), "entry", spec.Entry.Label, "complete", run.Complete,
		"source", report.Source, "listed", report.Listed, "touched", report.Touched, "used", report.Used, "brought", report.Brought)
	key := profileKey{spec.Workspace, spec.Image, spec.Entry.ID}
	p.learn(key, spec.Entry, run, device, &report)
	// For all entry points at once, every run is a part.
	key.entry = anyEntry.ID
	p.learn(key, anyEntry, Run{Chunks: run.Chunks, Ready: run.Ready}, device, nil)
}

// fetch brings what the start is going to read.
func (s *Start) fetch(c *course, spec StartSpec) {
	asked := sync.OnceFunc(func() { close(c.asked) })
	defer asked()
	c.known = true
	st, err := s.p.opt.Store(spec.Workspace)
	if err != nil {
		return // the start itself will say so
	}
	for _, try := range []struct {
		source string
		entry  EntryID
	}{{"profile", spec.Entry.ID}, {"image", anyEntry.ID}} {
		key := profileKey{spec.Workspace, spec.Image, try.entry}
		began := time.Now()
		k, err := s.p.get(c.ctx, key)
		spec.Trace.Add("find profile", began, time.Since(began), "")
		if err != nil {
			if c.ctx.Err() == nil {
				s.p.log.Warn("a profile cannot be read; the start reads for itself", "image", spec.Image.Short(), "error", err)
			}
			return
		}
		s.p.mu.Lock()
		profile := k.profile
		s.p.mu.Unlock()
		if profile != nil {
			asked()
			c.plan(try.source, profile.List())
			s.follow(c, st, key, k, profile)
			return
		}
		c.known = false
		asked()
	}
	if spec.Guess != nil && s.await(c) {
		s.guess(c, st, spec.Guess)
	}
}

func (c *course) plan(source string, list []store.Chunk) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report.Source, c.list = source, list
}

func (s *Start) brought(c *course, chunks, bytes int64) {
	s.p.stats.brought.Add(chunks)
	s.p.stats.broughtBytes.Add(bytes)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report.Brought += chunks
	c.report.Bytes += bytes
}

// follow brings what a profile lists.
func (s *Start) follow(c *course, st ProfileStore, key profileKey, k *known, profile *Profile) {
	if len(profile.Hot) > 0 {
		c.fetching = true
		began := time.Now()
		got, err := st.Stream(c.ctx, profile.Hot)
		s.brought(c, got.Chunks, got.Bytes)
		s.spec.Trace.Add("stream hot pack", began, time.Since(began), fmt.Sprintf("%d chunks, %.1f MB", got.Chunks, float64(got.Stored)/1e6))
		if c.ctx.Err() != nil {
			return
		}
		if err != nil {
			s.p.log.Warn("a hot pack cannot be read", "image", key.image.Short(), "entry", profile.Entry.Label, "error", err)
		}
		if got.Damaged > 0 || fault.Is(err, fault.NotFound) || fault.Is(err, fault.Corrupt) {
			s.p.unheat(key, k)
		}
	}
	if s.await(c) {
		s.prefetch(c, st, s.inImage(profile.List()))
	}
}

// await waits for Attach: until then nobody knows in which packs the chunks are, and
// looking for them would mean reading the indexes of all.
func (s *Start) await(c *course) bool {
	select {
	case <-s.attached:
		return true
	case <-c.ctx.Done():
		return false
	}
}

// inImage leaves out what the image does not have.
func (s *Start) inImage(list []store.Chunk) []store.Chunk {
	has := make(map[store.Chunk]bool, len(s.blocks.Chunks()))
	for _, c := range s.blocks.Chunks() {
		has[c] = true
	}
	return slices.DeleteFunc(list, func(c store.Chunk) bool { return !has[c] })
}

func (s *Start) prefetch(c *course, st ProfileStore, list []store.Chunk) {
	c.fetching = true
	got, err := st.Prefetch(c.ctx, list)
	s.brought(c, got.Chunks, got.Bytes)
	if err != nil && c.ctx.Err() == nil {
		s.p.log.Warn("prefetching has ended early", "error", err)
	}
}

// guess brings what an entry point of its kind is likely to read.
func (s *Start) guess(c *course, st ProfileStore, guess Guess) {
	found := make(chan []store.Chunk, 1)
	var list []store.Chunk
	go func() {
		defer close(found)
		err := guess(c.ctx, s.img, func(more []store.Chunk) {
			list = append(list, more...)
			select { // with what is still waiting there, which nobody has taken
			case waiting := <-found:
				more = append(waiting, more...)
			default:
			}
			found <- more
		})
		if err != nil && c.ctx.Err() == nil {
			s.p.log.Debug("no more guesses at what a start reads", "error", err)
		}
	}()
	for more := range found {
		s.prefetch(c, st, more)
	}
	c.plan("guess", list)
}

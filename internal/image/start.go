package image

import (
	"context"
	"slices"
	"sync"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// StartSpec says what is being started.
type StartSpec struct {
	Workspace string
	Image     store.Digest
	Entry     Entry
	// Guess names chunks that the start is likely to read, for when nothing is known
	// of it or of others on the image; nil: no guess. It may read the image, and hands on
	// what it has found with emit, which does not wait.
	Guess func(ctx context.Context, img *Image, emit func([]store.Chunk)) error
}

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

// Start is one start of an entry point. While it lasts, what it is likely to read is
// brought to the cache, and what it reads is recorded. A nil Start does nothing. Its
// methods are safe for concurrent use and never wait.
type Start struct {
	p    *Profiles
	spec StartSpec
	stop context.CancelFunc
	ctx  context.Context

	attached chan struct{}
	fetched  chan struct{} // closed when nothing is fetched any more

	mu        sync.Mutex
	done      bool
	img       *Image
	blocks    *Blocks
	recording *Recording
	report    StartReport
	list      []store.Chunk
	timer     *time.Timer
}

// longestStart ends what nobody ends: a start that takes longer is not bound by reading.
const longestStart = 2 * time.Minute

// Begin begins to bring what a start is going to read. It is to be called as early as
// can be: the image itself may still have to be fetched.
func (p *Profiles) Begin(spec StartSpec) *Start {
	if p == nil {
		return nil
	}
	s := &Start{p: p, spec: spec, attached: make(chan struct{}), fetched: make(chan struct{})}
	s.report.Source = "none"
	s.ctx, s.stop = context.WithTimeout(p.ctx, longestStart)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		s.stop()
		close(s.fetched)
		return s
	}
	s.timer = time.AfterFunc(longestStart, s.Done)
	p.wg.Go(func() {
		defer close(s.fetched)
		s.fetch()
	})
	return s
}

// Attach tells which image it is, and begins the recording. fresh says that it has been
// mounted just now, for this start.
func (s *Start) Attach(img *Image, blocks *Blocks, fresh bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done || s.recording != nil {
		return
	}
	s.img, s.blocks = img, blocks
	s.recording = blocks.Record(fresh)
	close(s.attached)
}

// Ready marks that the start is over for whoever waits for it, and what is
// read from now on is for the first use.
func (s *Start) Ready() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.recording != nil {
		s.recording.Ready()
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
	if s.done {
		return
	}
	s.done = true
	s.stop()
	if s.timer != nil {
		s.timer.Stop()
	}
	if s.recording == nil {
		return
	}
	run := s.recording.Stop()
	if learn {
		s.p.spawn(func() { s.learn(run) })
	}
}

// learn hands what was read to the profiles.
func (s *Start) learn(run Run) {
	<-s.fetched
	s.mu.Lock()
	report, blocks, list := s.report, s.blocks, s.list
	s.mu.Unlock()
	device := blocks.Chunks()
	read := make(map[store.Digest]bool, len(run.Chunks))
	for _, i := range run.Chunks {
		read[device[i].Digest] = true
	}
	report.Listed, report.Touched, report.At = len(list), len(read), time.Now()
	for _, c := range list {
		if read[c.Digest] {
			report.Used++
		}
	}
	st := &s.p.stats
	st.starts.Add(1)
	st.listed.Add(int64(report.Listed))
	st.used.Add(int64(report.Used))
	st.touched.Add(int64(report.Touched))
	s.p.log.Debug("a start has been recorded", "image", s.spec.Image.Short(), "entry", s.spec.Entry.Label, "complete", run.Complete,
		"source", report.Source, "listed", report.Listed, "touched", report.Touched, "used", report.Used, "brought", report.Brought)
	key := profileKey{s.spec.Workspace, s.spec.Image, s.spec.Entry.ID}
	s.p.learn(key, s.spec.Entry, run, device, &report)
	// For all entry points at once, every run is a part.
	key.entry = anyEntry.ID
	s.p.learn(key, anyEntry, Run{Chunks: run.Chunks, Ready: run.Ready}, device, nil)
}

// fetch brings what the start is going to read.
func (s *Start) fetch() {
	st, err := s.p.opt.Store(s.spec.Workspace)
	if err != nil {
		return // the start itself will say so
	}
	for _, try := range []struct {
		source string
		entry  EntryID
	}{{"profile", s.spec.Entry.ID}, {"image", anyEntry.ID}} {
		key := profileKey{s.spec.Workspace, s.spec.Image, try.entry}
		k, err := s.p.get(s.ctx, key)
		if err != nil {
			if s.ctx.Err() == nil {
				s.p.log.Warn("a profile cannot be read; the start reads for itself", "image", s.spec.Image.Short(), "error", err)
			}
			return
		}
		s.p.mu.Lock()
		profile := k.profile
		s.p.mu.Unlock()
		if profile != nil {
			s.plan(try.source, profile.List())
			s.follow(st, key, k, profile)
			return
		}
	}
	s.guess(st)
}

func (s *Start) plan(source string, list []store.Chunk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Source, s.list = source, list
}

func (s *Start) brought(chunks, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Brought += chunks
	s.report.Bytes += bytes
}

// follow brings what a profile lists.
func (s *Start) follow(st ProfileStore, key profileKey, k *known, profile *Profile) {
	if len(profile.Hot) > 0 {
		got, err := st.Stream(s.ctx, profile.Hot)
		s.brought(got.Chunks, got.Bytes)
		if s.ctx.Err() != nil {
			return
		}
		if err != nil {
			s.p.log.Warn("a hot pack cannot be read", "image", s.spec.Image.Short(), "entry", profile.Entry.Label, "error", err)
		}
		if got.Damaged > 0 || fault.Is(err, fault.NotFound) || fault.Is(err, fault.Corrupt) {
			s.p.unheat(key, k)
		}
	}
	if s.await() {
		s.prefetch(st, s.inImage(profile.List()))
	}
}

// await waits for Attach: until then nobody knows in which packs the chunks are, and
// looking for them would mean reading the indexes of all.
func (s *Start) await() bool {
	select {
	case <-s.attached:
		return true
	case <-s.ctx.Done():
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

func (s *Start) prefetch(st ProfileStore, list []store.Chunk) {
	got, err := st.Prefetch(s.ctx, list)
	s.brought(got.Chunks, got.Bytes)
	if err != nil && s.ctx.Err() == nil {
		s.p.log.Warn("prefetching has ended early", "image", s.spec.Image.Short(), "entry", s.spec.Entry.Label, "error", err)
	}
}

// guess brings what an entry point of its kind is likely to read.
func (s *Start) guess(st ProfileStore) {
	if s.spec.Guess == nil {
		return
	}
	if !s.await() {
		return
	}
	found := make(chan []store.Chunk, 1)
	var list []store.Chunk
	go func() {
		defer close(found)
		err := s.spec.Guess(s.ctx, s.img, func(more []store.Chunk) {
			list = append(list, more...)
			select { // with what is still waiting there, which nobody has taken
			case waiting := <-found:
				more = append(waiting, more...)
			default:
			}
			found <- more
		})
		if err != nil && s.ctx.Err() == nil {
			s.p.log.Debug("no more guesses at what a start reads", "image", s.spec.Image.Short(), "error", err)
		}
	}()
	for more := range found {
		s.prefetch(st, more)
	}
	s.plan("guess", list)
}

package scheduler

import (
	"bufio"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"brisk.dev/brisk/internal/fault"
)

// keptCalls is how many records are kept, in memory and on disk: some 1 KiB each.
const keptCalls = 2000

// rotateAt is the size in bytes at which the journal file is begun anew.
const rotateAt = 8 << 20

// journal keeps the records of calls: in memory the last keptCalls, on disk one
// JSON object a line, a call's first at its beginning and its last at its end;
// the last line of a call counts. journal.1 is the file before. It is written
// through to the kernel but not synced: it survives a killed server, and a power
// failure may take the last second (results go to the caller, not here).
type journal struct {
	dir string
	log *slog.Logger
	mu  struct {
		sync.Mutex
		file   *os.File
		size   int64
		order  []string // oldest first
		byID   map[string]CallRecord
		active map[string]struct{}

		closing bool
	}
}

func openJournal(dir string, log *slog.Logger) (*journal, error) {
	if err := os.MkdirAll(filepath.Join(dir, "output"), 0o700); err != nil {
		return nil, fault.Wrap(err, "open calls in", dir)
	}
	j := &journal{dir: dir, log: log}
	j.mu.byID = map[string]CallRecord{}
	j.mu.active = map[string]struct{}{}
	for _, name := range []string{"journal.1", "journal"} {
		if err := j.replay(filepath.Join(dir, name)); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(filepath.Join(dir, "journal"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fault.Wrap(err, "open calls in", dir)
	}
	st, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, fault.Wrap(err, "open calls in", dir)
	}
	j.mu.file, j.mu.size = f, st.Size()
	j.interrupt()
	return j, nil
}

// replay reads a file; a line that a crash has torn is skipped.
func (j *journal) replay(path string) error {
	f, err := os.Open(path)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return fault.Wrap(err, "read calls from", path)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var r CallRecord
		if json.Unmarshal(lines.Bytes(), &r) == nil && r.ID != "" {
			j.keepLocked(r)
		}
	}
	return fault.Wrap(lines.Err(), "read calls from", path)
}

// interrupt ends what a server that was killed has left running.
func (j *journal) interrupt() {
	for _, id := range j.mu.order {
		r := j.mu.byID[id]
		if r.State == CallQueued || r.State == CallRunning {
			r.State = CallFailed
			r.Error = &ErrorRecord{Class: fault.Interrupted, Message: "the server ended while the call was under way"}
			j.keepLocked(r)
			_ = j.appendLocked(r)
		}
	}
}

func (j *journal) keepLocked(r CallRecord) {
	if _, known := j.mu.byID[r.ID]; !known {
		j.mu.order = append(j.mu.order, r.ID)
		if len(j.mu.order) > keptCalls {
			old := j.mu.order[0]
			j.mu.order = append(j.mu.order[:0:0], j.mu.order[1:]...)
			delete(j.mu.byID, old)
			_ = os.Remove(j.outputPath(old))
		}
	}
	j.mu.byID[r.ID] = r
}

func (j *journal) appendLocked(r CallRecord) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fault.Wrap(err, "encode call", r.ID)
	}
	if j.mu.size > rotateAt {
		j.rotateLocked()
	}
	// A line is whole or the last one: a torn one must not swallow the next.
	n, err := j.mu.file.Write(append(b, '\n'))
	j.mu.size += int64(n)
	if err != nil && n > 0 {
		_, _ = j.mu.file.Write([]byte{'\n'})
	}
	return fault.Wrap(err, "record call", r.ID)
}

func (j *journal) rotateLocked() {
	path := filepath.Join(j.dir, "journal")
	if err := os.Rename(path, path+".1"); err != nil {
		j.log.Warn("the journal of calls cannot be rotated", "error", err)
		return
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		j.log.Warn("the journal of calls cannot be rotated", "error", err)
		return
	}
	_ = j.mu.file.Close()
	j.mu.file, j.mu.size = f, 0
}

// begin records a call before anything is done for it. A full disk is no reason
// to refuse it: that it is missing in a listing after a crash is the lesser harm.
func (j *journal) begin(r CallRecord) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.mu.active[r.ID] = struct{}{}
	j.keepLocked(r)
	if err := j.appendLocked(r); err != nil {
		j.log.Warn("a call is not on record", "call", r.ID, "error", err)
	}
}

// end records how a call ended.
func (j *journal) end(r CallRecord) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.mu.active, r.ID)
	j.keepLocked(r)
	if err := j.appendLocked(r); err != nil {
		j.log.Warn("the end of a call is not on record", "call", r.ID, "error", err)
	}
	j.closeIfDoneLocked()
}

func (j *journal) running() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.mu.active)
}

// close ends the journal with the last call that is on its way to its record: a
// call ends when its instance does, but its caller may be slow to hear of it.
func (j *journal) close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.mu.closing = true
	j.closeIfDoneLocked()
}

func (j *journal) closeIfDoneLocked() {
	if j.mu.closing && len(j.mu.active) == 0 {
		_ = j.mu.file.Close() // every line has been with the kernel since it was written
	}
}

func (j *journal) outputPath(id string) string { return filepath.Join(j.dir, "output", id) }

// newest gives records for which want holds, newest first, at most limit (0: all).
func (j *journal) newest(limit int, want func(*CallRecord) bool) []CallRecord {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []CallRecord
	for i := len(j.mu.order) - 1; i >= 0 && (limit <= 0 || len(out) < limit); i-- {
		if r := j.mu.byID[j.mu.order[i]]; want(&r) {
			out = append(out, r)
		}
	}
	return out
}

// Calls lists the records of calls, newest first, at most limit (0: all there are).
func (s *Scheduler) Calls(_ context.Context, workspace string, limit int) ([]CallRecord, error) {
	return s.journal.newest(limit, func(r *CallRecord) bool { return r.Workspace == workspace }), nil
}

// CallByID finds one record by its ID, or by a beginning of it that is unique.
func (s *Scheduler) CallByID(_ context.Context, workspace, id string) (CallRecord, error) {
	found := s.journal.newest(2, func(r *CallRecord) bool { return r.Workspace == workspace && strings.HasPrefix(r.ID, id) })
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1 && found[0].ID != id:
		return CallRecord{}, fault.New(fault.Invalid, "%q is the beginning of several calls, such as %s and %s", id, found[0].ID, found[1].ID)
	case len(found) > 1:
		return found[0], nil
	}
	return CallRecord{}, fault.New(fault.NotFound, "no call %q", id).WithHint("brisk calls lists the last %d.", keptCalls)
}

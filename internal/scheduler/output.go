package scheduler

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"time"
)

// maxKeptOutput bounds what is kept of a call's output, in bytes; the caller gets all of it.
const maxKeptOutput = 1 << 20

// output carries what a call prints to its caller, and keeps the beginning of it.
// The file is made when something is printed: most calls print nothing.
type output struct {
	rec    CallRecord
	to     Sink
	path   string
	cancel context.CancelCauseFunc
	file   *os.File
	kept   int
	gone   bool // the caller
	failed bool // the file
}

func (s *Scheduler) newOutput(rec CallRecord, to Sink, cancel context.CancelCauseFunc) *output {
	return &output{rec: rec, to: to, path: s.journal.outputPath(rec.ID), cancel: cancel}
}

// sink is a node.Sink.
func (o *output) sink(stream string, p []byte) {
	if len(p) == 0 {
		return
	}
	o.keep(stream, p)
	if !o.gone && o.to.Log(stream, p) != nil {
		o.gone = true
		o.cancel(errCallerGone)
	}
}

func (o *output) keep(stream string, p []byte) {
	if o.failed || o.kept >= maxKeptOutput {
		return
	}
	text := string(p)
	if o.kept += len(p); o.kept >= maxKeptOutput {
		text += "\n[the rest of the output was not kept]\n"
	}
	if o.file == nil {
		f, err := os.OpenFile(o.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			o.failed = true
			return
		}
		o.file = f
	}
	b, err := json.Marshal(LogLine{Time: time.Now().UTC(), Call: o.rec.ID, Instance: o.rec.Instance, Function: o.rec.Function, Stream: stream, Text: text})
	if err == nil {
		_, err = o.file.Write(append(b, '\n'))
	}
	o.failed = err != nil
}

func (o *output) close() {
	if o.file != nil {
		_ = o.file.Close()
	}
}

// Logs gives kept output; see LogFilter.
func (s *Scheduler) Logs(ctx context.Context, workspace string, f LogFilter) ([]LogLine, error) {
	if f.Call != "" {
		r, err := s.CallByID(ctx, workspace, f.Call)
		if err != nil {
			return nil, err
		}
		return last(readOutput(s.journal.outputPath(r.ID)), f.Limit), nil
	}
	calls := s.journal.newest(0, func(r *CallRecord) bool {
		return r.Workspace == workspace && (f.Function == "" || r.Function == f.Function || strings.HasPrefix(r.Digest.String(), f.Function))
	})
	var newestFirst [][]LogLine
	n := 0
	for _, c := range calls {
		lines := readOutput(s.journal.outputPath(c.ID))
		newestFirst = append(newestFirst, lines)
		if n += len(lines); f.Limit > 0 && n >= f.Limit {
			break
		}
	}
	var out []LogLine
	for _, n := range slices.Backward(newestFirst) {
		out = append(out, n...)
	}
	return last(out, f.Limit), nil
}

func last(l []LogLine, n int) []LogLine {
	if n > 0 && len(l) > n {
		return l[len(l)-n:]
	}
	return l
}

func readOutput(path string) []LogLine {
	f, err := os.Open(path)
	if err != nil {
		return nil // printed nothing
	}
	defer f.Close()
	var out []LogLine
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 8*maxKeptOutput)
	for lines.Scan() {
		var l LogLine
		if json.Unmarshal(lines.Bytes(), &l) == nil {
			out = append(out, l)
		}
	}
	return out
}

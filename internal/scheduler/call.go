package scheduler

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/trace"
)

// Call runs one call to its end. Cancelling ctx cancels it: its instance, which
// may be anywhere in user code, is destroyed.
func (s *Scheduler) Call(ctx context.Context, r CallRequest, sink Sink) Outcome {
	p, err := s.pool(r.Workspace, r.Function)
	if err != nil {
		return Outcome{Kind: Failed, Err: err}
	}
	if r.App == "" {
		r.App = p.fn.App
	}
	tr := trace.New()
	rec := CallRecord{
		ID: newCallID(), Workspace: r.Workspace, Node: s.opt.Node.ID(), App: r.App, Function: p.fn.Name,
		Digest: r.Function, State: CallQueued, Created: now(),
	}
	s.journal.begin(rec)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out := s.newOutput(rec, sink, cancel)
	defer out.close()
	if err := sink.Accepted(rec.ID); err != nil {
		cancel(errCallerGone)
	}
	outcome := p.call(trace.With(ctx, tr), &rec, r.Input, out)
	finish(&rec, tr, outcome)
	s.tallies.called(rec.State)
	s.journal.end(rec)
	return outcome
}

var errCallerGone = fault.New(fault.Cancelled, "the caller has gone")

func finish(rec *CallRecord, tr *trace.Trace, o Outcome) {
	rec.MS = float64(time.Since(tr.Began()).Microseconds()) / 1000
	rec.Steps = tr.Steps()
	switch o.Kind {
	case Returned:
		rec.State = CallSucceeded
	case Raised:
		rec.State = CallRaised
		rec.Error = &ErrorRecord{Class: fault.UserCode, Message: o.Exception.Type + ": " + o.Exception.Message}
	default:
		rec.State = CallFailed
		rec.Error = &ErrorRecord{Class: fault.ClassOf(o.Err), Message: o.Err.Error(), Hint: fault.HintOf(o.Err)}
	}
}

// call takes an instance, runs the call on it and gives it back or destroys it.
func (p *pool) call(ctx context.Context, rec *CallRecord, input []byte, out *output) Outcome {
	waited := time.Now()
	l, fresh, err := p.acquire(ctx)
	if err != nil {
		if le := loadError(err); le != nil {
			out.sink("stderr", []byte(le.Output))
			return Outcome{Kind: Raised, Exception: le.Exception}
		}
		return Outcome{Kind: Failed, Err: err}
	}
	rec.Instance, rec.Start, rec.State = l.Name(), "warm", CallRunning
	tr := trace.From(ctx)
	var before image.BlockStats
	if fresh {
		rec.Start = l.start.kind
		tr.Add("wait for instance", waited, time.Since(waited), l.start.kind)
		tr.Merge(l.start.trace)
		for _, o := range l.start.output {
			out.sink(o.stream, o.data)
		}
		l.start.output = nil
		rec.Origin = &OriginRecord{}
		before = l.start.reads
	} else if d := time.Since(waited); d > 100*time.Microsecond {
		tr.Add("wait for instance", waited, d, "busy")
	}
	p.s.tallies.waited(rec.Start, time.Since(waited))

	end, began := trace.Begin(ctx, "run"), time.Now()
	reply, err := l.Call(ctx, rec.ID, input, out.sink)
	p.s.tallies.runs.Observe(time.Since(began))
	if err != nil {
		if p.s.ctx.Err() != nil {
			err = fault.New(fault.Unavailable, "the server is shutting down") // the instance was destroyed, and how that looked is of no interest
		}
		end(string(fault.ClassOf(err)))
		p.discard(l)
		return Outcome{Kind: Failed, Err: err}
	}
	end(strconv.FormatFloat(reply.MS, 'f', 3, 64) + " ms in the runner")
	if fresh {
		after, size := l.Reads()
		*rec.Origin = OriginRecord{
			OriginBytes: after.OriginBytes - before.OriginBytes, OriginChunks: after.OriginChunks - before.OriginChunks,
			CacheBytes: after.CacheBytes - before.CacheBytes, CacheChunks: after.CacheChunks - before.CacheChunks,
			ImageBytes: size,
		}
	}
	p.release(l)
	if reply.Exception != nil {
		return Outcome{Kind: Raised, Exception: reply.Exception, Payload: reply.Payload, MS: reply.MS}
	}
	return Outcome{Kind: Returned, Payload: reply.Payload, MS: reply.MS}
}

// newCallID sorts by time, so that a listing by name is one by age: 40 bits of
// seconds and 40 random bits, in hexadecimal.
func newCallID() string {
	var b [5]byte
	_, _ = rand.Read(b[:]) // never fails since Go 1.24
	var r [8]byte
	copy(r[3:], b[:])
	return fmt.Sprintf("c-%010x%010x", time.Now().Unix(), binary.BigEndian.Uint64(r[:]))
}

package api

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/scheduler"
	"brisk.dev/brisk/internal/store"
)

// A stream is a sequence of frames: a JSON object on a line of its own, and, if
// it has a member "len", that many raw bytes right after the newline. Every
// object has a "type". The last frame's type says how it ended (Frame.Last).

// maxHeader bounds a frame's line. The longest is an exception's, whose traceback comes in
// a runner's header of at most 1 MiB; escaping it for JSON can multiply a byte by six.
const maxHeader = 8 << 20

// Frame is the union of all frames' headers, as a reader sees them.
type Frame struct {
	Type      string          `json:"type"`
	Len       int64           `json:"len"` // bytes of payload
	Call      string          `json:"call"`
	Stream    string          `json:"stream"` // of log: stdout or stderr
	MS        float64         `json:"ms"`
	Index     int             `json:"index"` // of step: from 1
	Total     int64           `json:"total"` // of step: steps; of progress: bytes, 0 if not known
	Done      int64           `json:"done"`  // of progress: bytes
	Text      string          `json:"text"`
	Cached    bool            `json:"cached"`
	Digest    store.Digest    `json:"digest"`
	Import    *ImportResult   `json:"import"`
	Export    *ExportResult   `json:"export"`
	Code      int             `json:"code"` // of exit
	OOM       bool            `json:"oom"`
	Collected *Collected      `json:"collected"`
	Check     *StoreCheck     `json:"check"`
	Error     json.RawMessage `json:"error"` // of error, failed: see Fault; of exception: see Exception
}

// Last reports whether f ends its stream.
func (f *Frame) Last() bool {
	switch f.Type {
	case "done", "error", "exit", "result", "exception", "failed":
		return true
	}
	return false
}

// Fault reads the error of an "error" or "failed" frame.
func (f *Frame) Fault() error {
	var e scheduler.ErrorRecord
	if err := json.Unmarshal(f.Error, &e); err != nil || e.Class == "" {
		return fault.New(fault.Internal, "the server sent an error that cannot be read: %.200s", f.Error)
	}
	return faultOf(e)
}

// Exception reads the error of an "exception" frame.
func (f *Frame) Exception() (scheduler.Exception, error) {
	var e scheduler.Exception
	if err := json.Unmarshal(f.Error, &e); err != nil {
		return e, fault.New(fault.Internal, "the server sent an exception that cannot be read: %.200s", f.Error)
	}
	return e, nil
}

// FrameReader reads a stream. Not safe for concurrent use.
type FrameReader struct {
	r       *bufio.Reader
	payload io.LimitedReader
}

// NewFrameReader reads frames from r.
func NewFrameReader(r io.Reader) *FrameReader {
	b := bufio.NewReaderSize(r, 8<<10)
	return &FrameReader{r: b, payload: io.LimitedReader{R: b}}
}

// Next reads the next header; what is left of the payload before it is skipped.
// A stream that ends between frames gives io.EOF, one that ends inside a frame
// io.ErrUnexpectedEOF, and what is no frame a fault.Corrupt.
func (r *FrameReader) Next() (*Frame, error) {
	if _, err := io.Copy(io.Discard, &r.payload); err != nil {
		return nil, err
	}
	if r.payload.N > 0 {
		return nil, io.ErrUnexpectedEOF
	}
	line, err := r.line()
	if err != nil {
		return nil, err
	}
	var f Frame
	if err := json.Unmarshal(line, &f); err != nil {
		return nil, fault.New(fault.Corrupt, "not a frame: %.60q", line)
	}
	if f.Type == "" || f.Len < 0 {
		return nil, fault.New(fault.Corrupt, "not a frame: %.60q", line)
	}
	r.payload.N = f.Len
	return &f, nil
}

// Payload reads the current frame's raw bytes; it is valid until Next.
func (r *FrameReader) Payload() io.Reader { return payloadReader{&r.payload} }

// payloadReader tells a payload's end from a stream's that comes too early.
type payloadReader struct{ r *io.LimitedReader }

func (p payloadReader) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	if err == io.EOF && p.r.N > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// line reads up to a newline, which it drops, in one piece and bounded.
func (r *FrameReader) line() ([]byte, error) {
	var long []byte
	for {
		piece, err := r.r.ReadSlice('\n')
		if err == nil && long == nil {
			return piece[:len(piece)-1], nil
		}
		long = append(long, piece...)
		switch {
		case err == nil:
			return long[:len(long)-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
			if len(long) > maxHeader {
				return nil, fault.New(fault.Corrupt, "a frame's header is longer than %d bytes", maxHeader)
			}
		case err == io.EOF && len(long) > 0:
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}

// The frames as they are written: members that belong to a frame are there even
// when they are zero.
type (
	acceptedFrame struct {
		Type string `json:"type"`
		Call string `json:"call"`
	}
	logFrame struct {
		Type   string `json:"type"`
		Stream string `json:"stream,omitempty"`
		Len    int    `json:"len"`
	}
	stepFrame struct {
		Type   string `json:"type"`
		Index  int    `json:"index"`
		Total  int    `json:"total"`
		Text   string `json:"text"`
		Cached bool   `json:"cached"`
	}
	textFrame struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	progressFrame struct {
		Type  string `json:"type"`
		Done  int64  `json:"done"`
		Total int64  `json:"total"`
	}
	builtFrame struct {
		Type   string       `json:"type"`
		Digest store.Digest `json:"digest"`
	}
	stageFrame struct {
		Type  string `json:"type"`
		Text  string `json:"text"`
		Done  int64  `json:"done"`
		Total int64  `json:"total"`
	}
	collectedFrame struct {
		Type      string    `json:"type"`
		Collected Collected `json:"collected"`
	}
	checkedFrame struct {
		Type  string     `json:"type"`
		Check StoreCheck `json:"check"`
	}
	importedFrame struct {
		Type   string       `json:"type"`
		Import ImportResult `json:"import"`
	}
	exportedFrame struct {
		Type   string       `json:"type"`
		Export ExportResult `json:"export"`
	}
	exitFrame struct {
		Type string `json:"type"`
		Code int    `json:"code"`
		OOM  bool   `json:"oom"`
	}
	errorFrame struct {
		Type  string                `json:"type"`
		Call  string                `json:"call,omitempty"`
		Error scheduler.ErrorRecord `json:"error"`
	}
	resultFrame struct {
		Type string  `json:"type"`
		Call string  `json:"call"`
		MS   float64 `json:"ms"`
		Len  int     `json:"len"`
	}
	exceptionFrame struct {
		Type  string               `json:"type"`
		Call  string               `json:"call"`
		MS    float64              `json:"ms"`
		Error *scheduler.Exception `json:"error"`
		Len   int                  `json:"len"`
	}
)

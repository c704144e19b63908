package scheduler

import (
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/node/channel"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/trace"
)

// CallRequest asks for one call. Input is opaque: a pickle that only the runner opens.
type CallRequest struct {
	Workspace string
	App       string // who asks, for the record
	Function  store.Digest
	Input     []byte
}

// Outcome is how a call ended: exactly one of Result, Exception and Err.
type Outcome struct {
	Kind      OutcomeKind
	Payload   []byte     // pickle of the result or of the exception
	Exception *Exception // when Kind is Raised
	Err       error      // of package fault, when Kind is Failed
	MS        float64    // in the runner
}

// OutcomeKind tells an Outcome's variants apart; the strings are those of the API.
type OutcomeKind string

// The kinds.
const (
	Returned OutcomeKind = "result"
	Raised   OutcomeKind = "exception"
	Failed   OutcomeKind = "failed"
)

// Exception is a Python exception as text. Kind is one of raised, import,
// not_found, unpickle, pickle (see docs/design/architecture.md).
type Exception = channel.Exception

// Sink takes what a call or a container produces while it runs. Its methods are
// called from one goroutine at a time; a slow Sink slows the sandbox's output down.
type Sink interface {
	Accepted(call string) error
	// Log gets raw output; p is only valid during the call. An error means that
	// the caller has gone: the call is cancelled.
	Log(stream string, p []byte) error
}

// CallState is the state of a call's record.
type CallState string

// A call is Queued, then Running (its instance has it), then one of the others for ever.
const (
	CallQueued    CallState = "queued"
	CallRunning   CallState = "running"
	CallSucceeded CallState = "succeeded"
	CallRaised    CallState = "raised"
	CallFailed    CallState = "failed"
)

// CallRecord is what is kept of a call; its JSON form is the API's.
type CallRecord struct {
	ID        string        `json:"id"`
	Workspace string        `json:"workspace"`
	Node      string        `json:"node"`
	App       string        `json:"app"`
	Function  string        `json:"function"` // name
	Digest    store.Digest  `json:"digest"`
	Instance  string        `json:"instance,omitempty"`
	Start     string        `json:"start"` // warm, restored, restored-fresh (no pre-created sandbox), cold, fallback
	State     CallState     `json:"state"`
	Created   time.Time     `json:"created"`
	MS        float64       `json:"ms"`
	Error     *ErrorRecord  `json:"error,omitempty"`
	Steps     []trace.Step  `json:"steps,omitempty"`
	Origin    *OriginRecord `json:"origin,omitempty"`
}

// OriginRecord says what a cold start read of its image from the origin and from the machine's cache.
type OriginRecord struct {
	OriginBytes  int64 `json:"origin_bytes"`
	OriginChunks int64 `json:"origin_chunks"`
	CacheBytes   int64 `json:"cache_bytes"`
	CacheChunks  int64 `json:"cache_chunks"`
	ImageBytes   int64 `json:"image_bytes"`
}

// ErrorRecord is an error as the API gives it.
type ErrorRecord struct {
	Class   fault.Class `json:"class"`
	Message string      `json:"message"`
	Hint    string      `json:"hint,omitempty"`
}

// InstanceRecord describes a live instance or container for `brisk ps`.
type InstanceRecord struct {
	ID        string    `json:"id"`
	Workspace string    `json:"workspace"`
	Node      string    `json:"node"`
	App       string    `json:"app,omitempty"`
	Function  string    `json:"function,omitempty"` // or empty for a container
	Image     string    `json:"image"`
	State     string    `json:"state"` // created, starting, idle, busy, stopping
	Start     string    `json:"start,omitempty"`
	Since     time.Time `json:"since"`
	Calls     int64     `json:"calls"`
	MemoryMax int64     `json:"memory_max,omitempty"` // bytes
}

// ContainerRequest runs any command on any image.
type ContainerRequest struct {
	Workspace     string   `json:"workspace"`
	Image         string   `json:"image"`
	Args          []string `json:"args"` // empty: the image's own entrypoint and command
	Env           []string `json:"env"`  // NAME=VALUE, after the image's
	Workdir       string   `json:"workdir"`
	User          string   `json:"user"`
	CPU           float64  `json:"cpu"`
	Memory        int64    `json:"memory"` // MiB
	Pids          int64    `json:"pids"`
	Timeout       float64  `json:"timeout"` // seconds; 0 = none
	BlockNetwork  bool     `json:"block_network"`
	AllowNetworks []string `json:"allow_networks"`
}

// ContainerExit is how a container ended.
type ContainerExit struct {
	Code int  `json:"code"`
	OOM  bool `json:"oom"`
}

// LogLine is a piece of kept output.
type LogLine struct {
	Time     time.Time `json:"time"`
	Call     string    `json:"call,omitempty"`
	Instance string    `json:"instance"`
	Function string    `json:"function,omitempty"`
	Stream   string    `json:"stream"`
	Text     string    `json:"text"`
}

// LogFilter selects kept output: of one call (by id or unique prefix), of one
// function (by name or digest), or, when both are empty, of everything. The
// newest Limit lines are given, oldest first.
type LogFilter struct {
	Call, Function string
	Limit          int
}

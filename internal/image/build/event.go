package build

// Event is something that a build says while it runs. Kind tells which fields count.
type Event struct {
	Kind   EventKind
	Index  int    // of StepBegins: from 1; the base is the first
	Total  int    // of StepBegins
	Cached bool   // of StepBegins: nothing has to be run
	Text   string // of StepBegins and Progress: one line for people
	Log    []byte // of Output: raw bytes; valid during the call only
}

// EventKind tells events apart.
type EventKind string

// The kinds of events.
const (
	StepBegins EventKind = "step"
	Output     EventKind = "log"      // of the current step
	Progress   EventKind = "progress" // what Brisk did itself: the image that a step gave
)

package build

import (
	"context"
	"io"
	"time"

	"brisk.dev/brisk/internal/image"
)

// Executor runs steps in sandboxes. The node implements it. Safe for concurrent use.
type Executor interface {
	// RunStep runs one command on a writable view of an image and returns when it
	// has ended. A command that ran and failed is no error: its Layer says so. An
	// error means that it did not run to its end: ctx or the timeout ended it, or
	// the machine could not run it. After an error there is no Layer to close.
	RunStep(ctx context.Context, s Step) (Layer, error)
}

// Step is one command to run, as root, with the network that functions have.
type Step struct {
	Workspace string
	Parent    *image.Image  // its files are the root filesystem
	Args      []string      // Args[0] is looked up in the PATH of Env
	Env       []string      // NAME=VALUE; all of it: the parent's configuration is in it already
	Cwd       string        // may not exist in the parent: then / counts
	Binds     []Bind        // in order; a target that is missing is made, and is not part of the layer
	Output    io.Writer     // of stdout and stderr, as they come; written to by one goroutine at a time, and no more after RunStep
	Timeout   time.Duration // above zero; passing it is of class fault.Timeout
}

// Bind is a file or directory of the host that the step sees.
type Bind struct {
	Source, Target string
	ReadOnly       bool
}

// Layer is what a step left behind.
type Layer struct {
	ExitCode  int           // 0..255; 128+signal if a signal ended it
	OOMKilled bool          // the memory limit was hit
	Tar       io.ReadCloser // what the step changed in its root, in overlayfs convention; nil if ExitCode is not 0. To be closed.
}

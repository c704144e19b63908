// Package fault is Brisk's vocabulary of failure. Every error that a user can
// meet belongs to one Class, says what was being done to what, and, where there
// is something to do about it, carries a Hint that says what.
//
// Classes are stable: they travel over the API as strings, the SDK maps each to
// one exception, and the command line maps each to one exit code. Add to the
// list; never rename.
//
// Wrap at the place that knows the object, once; above that, return the error as
// it is, or wrap with fmt.Errorf("%w"): the class survives.
package fault

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Class is the kind of a failure, as everybody above branches on it.
type Class string

// The classes. Internal is what an error without a class counts as.
const (
	Invalid     Class = "invalid"      // the request or the input is wrong; asking again changes nothing
	NotFound    Class = "not_found"    // no such image, function, call, instance
	Exists      Class = "exists"       // it is there already, or somebody else holds it
	Unavailable Class = "unavailable"  // something needed does not answer now; later may work
	Corrupt     Class = "corrupt"      // bytes are not what their digest or format says
	Timeout     Class = "timeout"      // a deadline of the user's or of Brisk's passed
	Cancelled   Class = "cancelled"    // the caller went away or asked to stop
	DiskFull    Class = "disk_full"    // no space left where Brisk keeps its state
	Exhausted   Class = "exhausted"    // a limit of the sandbox or of the machine: memory, processes
	Machine     Class = "machine"      // the machine lacks something; `brisk doctor` says what
	BuildFailed Class = "build_failed" // a step of an image failed
	UserCode    Class = "user_code"    // the user's function raised or exited
	Interrupted Class = "interrupted"  // the call had begun when its instance or server died
	Internal    Class = "internal"     // a fault of Brisk's
)

// Error is a failure with its class. Op and Object are lower-case fragments
// ("import", "image web"); Hint is a whole sentence for the user.
type Error struct {
	Class  Class
	Op     string
	Object string
	Hint   string
	Err    error
}

// Error gives one line: op object: cause. The hint is not part of it.
func (e *Error) Error() string {
	s := e.Op
	if e.Object != "" {
		if s != "" {
			s += " "
		}
		s += e.Object
	}
	if e.Err == nil {
		return s
	}
	if s == "" {
		return e.Err.Error()
	}
	return s + ": " + e.Err.Error()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// New makes an error of a class from a message.
func New(c Class, format string, args ...any) *Error {
	return &Error{Class: c, Err: fmt.Errorf(format, args...)}
}

// Wrap says what was being done to which object when err came up. Its class is
// err's own, so that the innermost place that knew decides.
func Wrap(err error, op, object string) error {
	if err == nil {
		return nil
	}
	return &Error{Class: ClassOf(err), Op: op, Object: object, Err: err}
}

// WithHint adds what the user can do about it.
func (e *Error) WithHint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// ClassOf finds the class of err: that of the outermost *Error in its chain, else
// what the standard library's errors amount to, else Internal.
func ClassOf(err error) Class {
	var e *Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Class
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return Timeout
	case errors.Is(err, context.Canceled):
		return Cancelled
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return DiskFull
	case errors.Is(err, syscall.EROFS):
		return Machine
	case errors.Is(err, os.ErrNotExist):
		return NotFound
	case errors.Is(err, os.ErrExist):
		return Exists
	}
	return Internal
}

// Is reports whether err is of class c.
func Is(err error, c Class) bool { return err != nil && ClassOf(err) == c }

// HintOf finds the outermost hint in err's chain, or "".
func HintOf(err error) string {
	for err != nil {
		var e *Error
		if !errors.As(err, &e) {
			return ""
		}
		if e.Hint != "" {
			return e.Hint
		}
		err = e.Err
	}
	return ""
}

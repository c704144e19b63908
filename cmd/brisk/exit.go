package main

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/scheduler"
)

// Exit codes. They are part of Brisk's interface.
const (
	exitOK          = 0
	exitUser        = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitTimeout     = 4
	exitBuild       = 5
	exitMachine     = 6
	exitUnreachable = 7
	exitInternal    = 70
	exitInterrupted = 130
)

func exitCodesTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "exit-codes",
		Short: "What brisk's exit codes mean",
		Long: `Exit codes:
   0  it worked
   1  the user's code raised an exception, or hit a limit of its sandbox
   2  usage: wrong arguments, or a request that cannot work
   3  there is no such file, function, image or call
   4  timed out or cancelled
   5  an image could not be built
   6  the machine lacks something; ` + "`brisk doctor`" + ` says what
   7  no server answers
  70  a fault of Brisk's
 130  interrupted by a signal

` + "`brisk run --image`" + ` ends with the container's own code when the container ran.
With --json the error is JSON on standard error:
  {"error": {"class": "not_found", "message": "...", "hint": "..."}}`,
	}
}

// codes gives each class of failure its exit code. The SDK has the same table.
var codes = map[fault.Class]int{
	fault.Invalid:     exitUsage,
	fault.Exists:      exitUsage,
	fault.NotFound:    exitNotFound,
	fault.Timeout:     exitTimeout,
	fault.Cancelled:   exitTimeout,
	fault.BuildFailed: exitBuild,
	fault.Machine:     exitMachine,
	fault.DiskFull:    exitMachine,
	fault.Unavailable: exitUnreachable,
	fault.UserCode:    exitUser,
	fault.Exhausted:   exitUser,
	fault.Corrupt:     exitInternal,
	fault.Interrupted: exitInternal,
	fault.Internal:    exitInternal,
}

func codeOf(err error) int {
	if c, ok := codes[fault.ClassOf(err)]; ok {
		return c
	}
	return exitInternal
}

// exitError is an error that has been told already, or is none of Brisk's: only
// the code is left to give.
type exitError int

func (c exitError) Error() string { return "exit " + strconv.Itoa(int(c)) }

// complain tells an error on standard error.
func (a *app) complain(err error) {
	if a.json {
		b, _ := json.Marshal(map[string]scheduler.ErrorRecord{
			"error": {Class: fault.ClassOf(err), Message: err.Error(), Hint: fault.HintOf(err)},
		})
		fmt.Fprintf(a.err, "%s\n", b)
		return
	}
	fmt.Fprintf(a.err, "brisk: %v\n", err)
	if hint := fault.HintOf(err); hint != "" {
		fmt.Fprintf(a.err, "%s\n", hint)
	}
}

// tell says something on standard error that is not an error.
func (a *app) tell(format string, args ...any) {
	fmt.Fprintf(a.err, "brisk: "+format+"\n", args...)
}

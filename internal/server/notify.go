package server

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/scheduler"
)

// readyVariable names the descriptor on which a server in the background tells
// who started it how that went: one JSON object, then the end of the file.
const readyVariable = "BRISK_READY_FD"

// report is that object.
type report struct {
	Ready bool                   `json:"ready"`
	Error *scheduler.ErrorRecord `json:"error,omitempty"`
}

// ReadyPipe gives the function that reports to whoever started this process with
// StartBackground, or nil if nobody did. Call it once the process is in its
// namespace: only then is the descriptor kept from children.
func ReadyPipe() func(error) {
	fd, err := strconv.Atoi(os.Getenv(readyVariable))
	if err != nil || fd < 3 {
		return nil
	}
	os.Unsetenv(readyVariable)
	unix.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), "ready")
	return func(err error) {
		r := report{Ready: err == nil}
		if err != nil {
			r.Error = &scheduler.ErrorRecord{Class: fault.ClassOf(err), Message: err.Error(), Hint: fault.HintOf(err)}
		}
		_ = json.NewEncoder(f).Encode(r) // who started us may have gone
		_ = f.Close()
	}
}

// readReport reads what a server reported; io.EOF if it ended without.
func readReport(r io.Reader) error {
	var rep report
	if err := json.NewDecoder(r).Decode(&rep); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF
		}
		return err
	}
	if rep.Error != nil {
		return &fault.Error{Class: rep.Error.Class, Hint: rep.Error.Hint, Err: errors.New(rep.Error.Message)}
	}
	return nil
}

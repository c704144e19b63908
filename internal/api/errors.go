package api

import (
	"encoding/json"
	"errors"
	"net/http"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/scheduler"
)

// statuses give each class its HTTP status. Clients go by the class in the body;
// the status is for people with curl.
var statuses = map[fault.Class]int{
	fault.Invalid:     http.StatusBadRequest,
	fault.NotFound:    http.StatusNotFound,
	fault.Exists:      http.StatusConflict,
	fault.Unavailable: http.StatusServiceUnavailable,
	fault.Corrupt:     http.StatusInternalServerError,
	fault.Timeout:     http.StatusGatewayTimeout,
	fault.Cancelled:   499, // the client has gone; nobody reads it
	fault.DiskFull:    http.StatusInsufficientStorage,
	fault.Exhausted:   http.StatusTooManyRequests,
	fault.Machine:     http.StatusNotImplemented,
	fault.BuildFailed: http.StatusUnprocessableEntity,
	fault.UserCode:    http.StatusUnprocessableEntity,
	fault.Interrupted: http.StatusBadGateway,
	fault.Internal:    http.StatusInternalServerError,
}

// errorBody is the body of an error response.
type errorBody struct {
	Error scheduler.ErrorRecord `json:"error"`
}

func recordOf(err error) scheduler.ErrorRecord {
	return scheduler.ErrorRecord{Class: fault.ClassOf(err), Message: err.Error(), Hint: fault.HintOf(err)}
}

// faultOf turns what came over the wire into an error again.
func faultOf(r scheduler.ErrorRecord) error {
	return &fault.Error{Class: r.Class, Hint: r.Hint, Err: errors.New(r.Message)}
}

func writeError(w http.ResponseWriter, err error) {
	rec := recordOf(err)
	status := statuses[rec.Class]
	if status == 0 {
		status = http.StatusInternalServerError
	}
	writeJSON(w, status, errorBody{rec})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		status, b = http.StatusInternalServerError, []byte(`{"error":{"class":"internal","message":"an answer has no JSON form"}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // a client that has gone needs no answer
}

package cluster

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// protocol is the version of what goes over the wire between members:
// docs/format/peer.md.
const protocol = 1

// Limits of what is read from the other side, in bytes.
const (
	maxRequest = 64 << 10
	maxAnswer  = 16 << 20 // a list of members and all workspaces' keys
)

// The paths of the control node.
const (
	pathJoin  = "/v1/join"
	pathBeat  = "/v1/beat"
	pathKeys  = "/v1/keys"
	pathLeave = "/v1/leave"
)

type message interface{ check() error }

type joinRequest struct {
	Version int    `json:"version"`
	Token   string `json:"token"`  // its ID
	Secret  []byte `json:"secret"` // the token's
	Name    string `json:"name"`
	Request []byte `json:"request"` // a PKCS #10 certificate request: whose key it is, and that the machine has it
}

func (q *joinRequest) check() error {
	switch {
	case q.Version != protocol:
		return otherVersion(q.Version)
	case len(q.Token) != 16, len(q.Secret) != 32:
		return fault.New(fault.Invalid, "the token is incomplete")
	case !ValidName(q.Name):
		return badName(q.Name)
	case len(q.Request) == 0:
		return fault.New(fault.Invalid, "the certificate request is missing")
	}
	return nil
}

func badName(name string) error {
	return fault.New(fault.Invalid, "%.80q cannot be the name of a machine: want at most 63 letters, digits, dots, dashes and underscores, a letter or a digit first", name).
		WithHint("Give it another one with --node.")
}

type joinAnswer struct {
	Version     int               `json:"version"`
	Certificate []byte            `json:"certificate"` // DER
	Control     []string          `json:"control"`     // addresses of the control node
	Origin      string            `json:"origin"`      // of the cluster's store
	Keys        map[string]string `json:"keys,omitempty"`
}

func (a *joinAnswer) check() error {
	if a.Version != protocol {
		return otherVersion(a.Version)
	}
	return checkAddresses(a.Control)
}

type beatRequest struct {
	Version     int         `json:"version"`
	Incarnation string      `json:"incarnation"` // random, of this server process
	Address     string      `json:"address"`     // where this member listens, or ""
	Brisk       string      `json:"brisk"`       // version
	Keys        Fingerprint `json:"keys"`        // of all workspaces' keys that it has
	Traffic     Traffic     `json:"traffic"`
}

func (q *beatRequest) check() error {
	switch {
	case q.Version != protocol:
		return otherVersion(q.Version)
	case q.Incarnation == "", len(q.Incarnation) > 32, len(q.Brisk) > 100:
		return fault.New(fault.Invalid, "the beat is malformed")
	case q.Address != "" && !validAddress(q.Address):
		return fault.New(fault.Invalid, "%.80q is not an address", q.Address)
	}
	return nil
}

type beatAnswer struct {
	Version     int               `json:"version"`
	Time        time.Time         `json:"time"`
	Beat        int64             `json:"beat_ms"` // until the next one
	Members     []Member          `json:"members"`
	Control     []string          `json:"control"`
	Certificate []byte            `json:"certificate,omitempty"` // DER, if it is to be replaced
	Keys        map[string]string `json:"keys,omitempty"`        // all of them, if the member lacks any
}

func (a *beatAnswer) check() error {
	if a.Version != protocol {
		return otherVersion(a.Version)
	}
	if a.Beat < 1 || a.Beat > time.Hour.Milliseconds() || a.Time.IsZero() {
		return fault.New(fault.Invalid, "the answer to a beat is malformed")
	}
	names := map[string]bool{}
	for _, m := range a.Members {
		if !ValidName(m.Name) || names[m.Name] || m.Address != "" && !validAddress(m.Address) {
			return fault.New(fault.Invalid, "the list of members is malformed at %.80q", m.Name)
		}
		names[m.Name] = true
	}
	return checkAddresses(a.Control)
}

type keysRequest struct {
	Version   int    `json:"version"`
	Workspace string `json:"workspace"` // whose keys are needed, and made if there are none
}

func (q *keysRequest) check() error {
	if q.Version != protocol {
		return otherVersion(q.Version)
	}
	if !ValidName(q.Workspace) {
		return fault.New(fault.Invalid, "%.80q is not the name of a workspace", q.Workspace)
	}
	return nil
}

type keysAnswer struct {
	Version int               `json:"version"`
	Keys    map[string]string `json:"keys"`
}

func (a *keysAnswer) check() error {
	if a.Version != protocol {
		return otherVersion(a.Version)
	}
	return nil
}

// nothing is the body of what needs none.
type nothing struct{}

func (*nothing) check() error { return nil }

func otherVersion(v int) error {
	return fault.New(fault.Invalid, "the other side speaks version %d of the cluster's protocol, this one %d", v, protocol).
		WithHint("Run the same version of Brisk on all machines.")
}

func checkAddresses(l []string) error {
	if len(l) > maxTokenAddresses {
		return fault.New(fault.Invalid, "%d addresses of the control node", len(l))
	}
	for _, a := range l {
		if !validAddress(a) {
			return fault.New(fault.Invalid, "%.80q is not an address", a)
		}
	}
	return nil
}

// decode reads one message of at most limit bytes, to the end.
func decode(r io.Reader, limit int64, m message) error {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return &fault.Error{Class: fault.Unavailable, Op: "read from the other side", Err: err}
	}
	if int64(len(b)) > limit {
		return fault.New(fault.Invalid, "a message of more than %d bytes", limit)
	}
	if err := json.Unmarshal(b, m); err != nil {
		return &fault.Error{Class: fault.Invalid, Op: "read a message", Err: err}
	}
	return m.check()
}

// problem is the body of an answer that is none.
type problem struct {
	Error struct {
		Class   fault.Class `json:"class"`
		Message string      `json:"message"`
		Hint    string      `json:"hint,omitempty"`
	} `json:"error"`
}

// refusal is the error of somebody who may not: it has the status 403, by which
// a member learns that it is none any more.
type refusal struct{ err error }

func (r refusal) Error() string { return r.err.Error() }
func (r refusal) Unwrap() error { return r.err }

func isRefusal(err error) bool {
	_, is := errors.AsType[refusal](err)
	return is
}

func writeProblem(w http.ResponseWriter, err error) {
	var p problem
	p.Error.Class, p.Error.Message, p.Error.Hint = fault.ClassOf(err), err.Error(), fault.HintOf(err)
	status := http.StatusInternalServerError
	switch {
	case isRefusal(err):
		status = http.StatusForbidden
	case p.Error.Class == fault.Invalid:
		status = http.StatusBadRequest
	case p.Error.Class == fault.NotFound:
		status = http.StatusNotFound
	case p.Error.Class == fault.Exists:
		status = http.StatusConflict
	case p.Error.Class == fault.Exhausted:
		status = http.StatusTooManyRequests
	case p.Error.Class == fault.Unavailable:
		status = http.StatusServiceUnavailable
	}
	writeMessage(w, status, p)
}

func writeMessage(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		status, b = http.StatusInternalServerError, []byte(`{}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b) // the other side may have gone
}

// readAnswer reads an answer, or the error that it is.
func readAnswer(res *http.Response, m message) error {
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK {
		return decode(res.Body, maxAnswer, m)
	}
	b, err := io.ReadAll(io.LimitReader(res.Body, maxRequest))
	if err != nil {
		return &fault.Error{Class: fault.Unavailable, Op: "read from the other side", Err: err}
	}
	var p problem
	if json.Unmarshal(b, &p) != nil || p.Error.Class == "" {
		return fault.New(fault.Unavailable, "the other side answered %s", res.Status)
	}
	err = &fault.Error{Class: p.Error.Class, Hint: p.Error.Hint, Err: errors.New(p.Error.Message)}
	if res.StatusCode == http.StatusForbidden {
		return refusal{err}
	}
	return err
}

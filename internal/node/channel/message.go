package channel

import "encoding/json"

// Message is anything a runner sends; Type says which fields count.
type Message struct {
	Type       string     `json:"type"`
	Phase      string     `json:"phase"`      // hello: start or restored
	Generation string     `json:"generation"` // hello
	Python     string     `json:"python"`     // hello
	ID         string     `json:"id"`         // result, exception
	MS         float64    `json:"ms"`         // loaded, result, exception
	Error      *Exception `json:"error"`      // load_failed, exception
	Payload    []byte     `json:"-"`
}

// Exception is a Python exception as text; see the scheduler's type of the same name.
type Exception struct {
	Type      string `json:"type"`
	Module    string `json:"module"`
	Message   string `json:"message"`
	Traceback string `json:"traceback"`
	Kind      string `json:"kind"`
}

// Identity is what an instance may know of itself.
type Identity struct {
	Instance  string `json:"instance"`
	Workspace string `json:"workspace"`
	App       string `json:"app"`
	Function  string `json:"function"`
	Node      string `json:"node"`
}

// Load tells a fresh runner what to import.
type Load struct {
	Module     string            `json:"module"`
	Qualname   string            `json:"qualname"`
	Serialized bool              `json:"serialized"`
	Env        map[string]string `json:"env"`
	Identity   Identity          `json:"identity"`
}

// Resume tells a restored runner who it is now.
type Resume struct {
	Env      map[string]string `json:"env"`
	Identity Identity          `json:"identity"`
	Seed     string            `json:"seed"` // 64 hexadecimal digits
	TimeNS   int64             `json:"time_ns"`
}

// Call hands over one call; the payload is its pickled arguments.
type Call struct {
	ID         string  `json:"id"`
	DeadlineMS float64 `json:"deadline_ms"`
}

// Park asks the runner to wait for its checkpoint.
type Park struct{}

// Exit asks the runner to end.
type Exit struct{}

// typed adds the type tag that the wire wants.
func typed(name string, v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if len(b) == 2 {
		return []byte(`{"type":"` + name + `"}`), nil
	}
	return append([]byte(`{"type":"`+name+`",`), b[1:]...), nil
}

// MarshalJSON tags the message.
func (m Load) MarshalJSON() ([]byte, error) { type plain Load; return typed("load", plain(m)) }

// MarshalJSON tags the message.
func (m Resume) MarshalJSON() ([]byte, error) { type plain Resume; return typed("resume", plain(m)) }

// MarshalJSON tags the message.
func (m Call) MarshalJSON() ([]byte, error) { type plain Call; return typed("call", plain(m)) }

// MarshalJSON tags the message.
func (m Park) MarshalJSON() ([]byte, error) { type plain Park; return typed("park", plain(m)) }

// MarshalJSON tags the message.
func (m Exit) MarshalJSON() ([]byte, error) { type plain Exit; return typed("exit", plain(m)) }

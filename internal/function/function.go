// Package function says what a function is: the code, the image and the spec
// that its calls run with, and the digest that names all of that together.
//
// Two registrations with the same content are the same function. Whatever could
// make a difference to a warm process is in the digest, the SDK and the runner
// included, so that a snapshot found by a function's digest is never stale.
package function

import (
	"encoding/json"
	"net/netip"
	"regexp"
	"strings"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// Function is one registered function. Its JSON form is the API's and the one on disk.
type Function struct {
	Workspace  string       `json:"workspace"`
	App        string       `json:"app"`
	Name       string       `json:"name"`     // unique in the app
	Module     string       `json:"module"`   // imported inside, from the code
	Qualname   string       `json:"qualname"` // looked up in the module
	Serialized bool         `json:"serialized,omitempty"`
	Code       string       `json:"code"`             // "sha256:HEX" of an uploaded tar
	Pickle     string       `json:"pickle,omitempty"` // "sha256:HEX" of the pickled function, if serialized
	Image      store.Digest `json:"image"`
	SDK        store.Digest `json:"sdk"` // digest of SDK and runner, set by the server
	Spec       Spec         `json:"spec"`
}

// Spec is what a function asks for. Durations are in seconds, Memory is in MiB.
type Spec struct {
	CPU              float64           `json:"cpu,omitempty"`    // cores
	Memory           int64             `json:"memory,omitempty"` // MiB
	Pids             int64             `json:"pids,omitempty"`
	Timeout          float64           `json:"timeout,omitempty"`          // of a call's run
	StartupTimeout   float64           `json:"startup_timeout,omitempty"`  // of starting an instance, import included
	ScaledownWindow  float64           `json:"scaledown_window,omitempty"` // an idle instance stays this long
	MinContainers    int               `json:"min_containers,omitempty"`
	MaxContainers    int               `json:"max_containers,omitempty"`
	BufferContainers int               `json:"buffer_containers,omitempty"`
	Env              map[string]string `json:"env,omitempty"`
	BlockNetwork     bool              `json:"block_network,omitempty"`
	AllowNetworks    []string          `json:"allow_networks,omitempty"` // CIDR prefixes opened beside the public internet
	User             string            `json:"user,omitempty"`           // name or uid[:gid]; default the image's
	Snapshot         bool              `json:"snapshot"`
}

// Defaults of a spec. A function gets one core and 2 GiB unless it asks for
// more, which runs numpy and torch's import; pids leave room for the 3-4 threads
// a core that numeric libraries start.
const (
	DefaultCPU             = 1.0
	DefaultMemory          = 2048 // MiB
	DefaultPids            = 512
	DefaultTimeout         = 300.0
	DefaultStartupTimeout  = 300.0
	DefaultScaledownWindow = 60.0
	DefaultMaxContainers   = 8
)

// EnsureDefaults fills in what was left out.
func (s *Spec) EnsureDefaults() {
	def := func(p *float64, v float64) {
		if *p == 0 {
			*p = v
		}
	}
	def(&s.CPU, DefaultCPU)
	def(&s.Timeout, DefaultTimeout)
	def(&s.StartupTimeout, DefaultStartupTimeout)
	def(&s.ScaledownWindow, DefaultScaledownWindow)
	if s.Memory == 0 {
		s.Memory = DefaultMemory
	}
	if s.Pids == 0 {
		s.Pids = DefaultPids
	}
	if s.MaxContainers == 0 {
		s.MaxContainers = max(DefaultMaxContainers, s.MinContainers)
	}
}

// Validate says, in the words of the SDK, what is wrong with a spec.
func (s *Spec) Validate() error {
	bad := func(format string, args ...any) error { return fault.New(fault.Invalid, format, args...) }
	switch {
	case s.CPU < 0.05 || s.CPU > 1024:
		return bad("cpu=%v: want 0.05 to 1024 cores", s.CPU)
	case s.Memory < 64 || s.Memory > 4<<20:
		return bad("memory=%d: want 64 to %d MiB", s.Memory, 4<<20)
	case s.Pids < 16 || s.Pids > 1<<20:
		return bad("pids=%d: want 16 to %d", s.Pids, 1<<20)
	case s.Timeout < 0.1 || s.Timeout > 7*24*3600:
		return bad("timeout=%v: want 0.1 seconds to 7 days", s.Timeout)
	case s.StartupTimeout < 1 || s.StartupTimeout > 24*3600:
		return bad("startup_timeout=%v: want 1 second to 1 day", s.StartupTimeout)
	case s.ScaledownWindow < 0.1 || s.ScaledownWindow > 24*3600:
		return bad("scaledown_window=%v: want 0.1 seconds to 1 day", s.ScaledownWindow)
	case s.MinContainers < 0 || s.BufferContainers < 0 || s.MaxContainers < 1 || s.MaxContainers < s.MinContainers:
		return bad("containers: want 0 <= min_containers (%d) <= max_containers (%d) and buffer_containers (%d) >= 0", s.MinContainers, s.MaxContainers, s.BufferContainers)
	case s.BlockNetwork && len(s.AllowNetworks) > 0:
		return bad("allow_networks with block_network=True contradict each other")
	}
	for k, v := range s.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.Contains(v, "\x00") {
			return bad("env: %q is not a usable name or value", k)
		}
	}
	_, err := s.Networks()
	return err
}

// Networks parses AllowNetworks.
func (s *Spec) Networks() ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, a := range s.AllowNetworks {
		p, err := netip.ParsePrefix(a)
		if err != nil {
			return nil, fault.New(fault.Invalid, "allow_networks: %q is not a CIDR prefix such as 10.1.0.0/16", a)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// Seconds turns a spec's seconds into a duration.
func Seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

var (
	namePattern   = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.<>-]{0,127}$`)
	modulePattern = regexp.MustCompile(`^[A-Za-z_][\w]*(\.[A-Za-z_][\w]*)*$`)
	blobPattern   = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// Validate checks a whole definition, after EnsureDefaults of its spec.
func (f *Function) Validate() error {
	bad := func(format string, args ...any) error { return fault.New(fault.Invalid, format, args...) }
	switch {
	case !namePattern.MatchString(f.App):
		return bad("app name %q: want 1 to 128 letters, digits, '_', '-', '.'", f.App)
	case !namePattern.MatchString(f.Name):
		return bad("function name %q: want 1 to 128 letters, digits, '_', '-', '.'", f.Name)
	case !f.Serialized && !modulePattern.MatchString(f.Module):
		return bad("module %q of function %s: want a dotted Python name", f.Module, f.Name)
	case !f.Serialized && f.Qualname == "":
		return bad("function %s has no qualified name", f.Name)
	case f.Code != "" && !blobPattern.MatchString(f.Code):
		return bad("code %q of function %s: want sha256:HEX", f.Code, f.Name)
	case f.Serialized && !blobPattern.MatchString(f.Pickle):
		return bad("pickle %q of function %s: want sha256:HEX", f.Pickle, f.Name)
	case f.Image.IsZero():
		return bad("function %s has no image", f.Name)
	}
	return f.Spec.Validate()
}

// Digest names the function by everything that a warm process of it depends on.
// Spec fields that only steer the scheduler are part of it too: simpler, and a
// change of them is rare.
func (f *Function) Digest() store.Digest {
	b, err := json.Marshal(f) // struct fields in order, map keys sorted: canonical
	if err != nil {
		panic("function: a Function always has a JSON form: " + err.Error())
	}
	return store.Sum(append([]byte("brisk function v1\n"), b...))
}

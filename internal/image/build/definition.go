package build

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image/registry"
)

// Definition says how an image is made: from a base, by steps in order. Its JSON
// form is the API's and the SDK's.
type Definition struct {
	Base  Base          `json:"base"`
	Steps []Instruction `json:"steps,omitempty"`
}

// Base is what an image begins with.
type Base struct {
	Kind          BaseKind `json:"kind"`
	Suite         string   `json:"suite,omitempty"`          // of debian_slim: bookworm, ...
	PythonVersion string   `json:"python_version,omitempty"` // of debian_slim: "3.11"; "" is the suite's
	Name          string   `json:"name,omitempty"`           // of image: a name or digest in the workspace
	Ref           string   `json:"ref,omitempty"`            // of registry: as docker takes it

	// Of registry. Auth is part of no digest, and kept nowhere.
	Insecure bool           `json:"insecure,omitempty"`
	Auth     *registry.Auth `json:"auth,omitempty"`

	Dockerfile string            `json:"dockerfile,omitempty"` // of dockerfile: its text
	Context    string            `json:"context,omitempty"`    // of dockerfile: "sha256:HEX" of a tar of the directory that it copies from; "" is an empty one
	BuildArgs  map[string]string `json:"build_args,omitempty"` // of dockerfile: for its ARGs
}

// BaseKind tells bases apart.
type BaseKind string

// The kinds of bases.
const (
	DebianSlim BaseKind = "debian_slim" // a Debian with Python and pip, and little else
	FromImage  BaseKind = "image"       // an image of the workspace

	FromRegistry   BaseKind = "registry"   // a container image of a registry
	FromDockerfile BaseKind = "dockerfile" // what a Dockerfile makes
)

// Instruction is one step of a definition. Only the fields of its kind are set.
type Instruction struct {
	Kind     Kind              `json:"kind"`
	Packages []string          `json:"packages,omitempty"` // of apt_install, pip_install
	Options  []string          `json:"options,omitempty"`  // of pip_install: arguments of pip install
	Commands []string          `json:"commands,omitempty"` // of run
	Vars     map[string]string `json:"vars,omitempty"`     // of env
	Path     string            `json:"path,omitempty"`     // of workdir
	Blob     string            `json:"blob,omitempty"`     // of add: "sha256:HEX" of a tar whose paths are relative to /
	Text     string            `json:"text,omitempty"`     // of add: what it is, for people
}

// Kind tells instructions apart.
type Kind string

// The kinds of instructions.
const (
	AptInstall Kind = "apt_install"
	PipInstall Kind = "pip_install"
	Run        Kind = "run"
	Env        Kind = "env"
	Workdir    Kind = "workdir"
	Add        Kind = "add"
)

// instructionFields lists what each kind of step has beside its kind. A field with true may be missing.
var instructionFields = map[Kind]map[string]bool{
	AptInstall: {"packages": false},
	PipInstall: {"packages": true, "options": true},
	Run:        {"commands": false},
	Env:        {"vars": false},
	Workdir:    {"path": false},
	Add:        {"blob": false, "text": true},
}

var baseFields = map[BaseKind]map[string]bool{
	DebianSlim: {"suite": true, "python_version": true},
	FromImage:  {"name": false},

	FromRegistry:   {"ref": false, "insecure": true, "auth": true},
	FromDockerfile: {"dockerfile": false, "context": true, "build_args": true},
}

// Bounds of a definition: far beyond what people write, and small enough to be handled in one piece.
const (
	maxSteps      = 1000
	maxWords      = 10000   // packages, options or commands of a step
	maxWordLength = 1 << 20 // bytes
	maxCommandLen = 100_000 // bytes of one run command: below the kernel's limit for one argument
)

// ParseDefinition reads the JSON form. It accepts no unknown kind and no field
// that a kind does not have, for a typing error must not build another image.
// The result is Validated.
func ParseDefinition(r io.Reader) (Definition, error) {
	var raw struct {
		Base  map[string]json.RawMessage   `json:"base"`
		Steps []map[string]json.RawMessage `json:"steps"`
	}
	if err := decodeStrict(r, &raw); err != nil {
		return Definition{}, invalid("the image definition", err)
	}
	var d Definition
	if raw.Base == nil {
		return d, fault.New(fault.Invalid, "the image definition has no base")
	}
	kind, err := checkFields(raw.Base, baseFields, &d.Base)
	if err != nil {
		return d, invalid("the base"+ofKind(kind), err)
	}
	d.Steps = make([]Instruction, len(raw.Steps))
	for i, s := range raw.Steps {
		if kind, err := checkFields(s, instructionFields, &d.Steps[i]); err != nil {
			return d, invalid(fmt.Sprintf("step %d%s", i+1, ofKind(kind)), err)
		}
	}
	return d, d.Validate()
}

func ofKind(kind string) string {
	if kind == "" {
		return ""
	}
	return " (" + kind + ")"
}

func invalid(where string, err error) error {
	return fault.New(fault.Invalid, "%s: %s", where, err).WithHint("%s", fault.HintOf(err))
}

func decodeStrict(r io.Reader, to any) error {
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return plainJSON(err)
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("there is something behind the JSON object")
	}
	return nil
}

// plainJSON puts the decoder's errors into the words of the definition.
func plainJSON(err error) error {
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind):
		return fmt.Errorf("%s cannot be a JSON %s", cmp.Or(kind.Field, "it"), kind.Value)
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the JSON ends too early")
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}

// checkFields decodes one object after it has been seen to have exactly the fields of its kind.
func checkFields[K ~string](raw map[string]json.RawMessage, kinds map[K]map[string]bool, to any) (string, error) {
	var kind string
	if err := json.Unmarshal(raw["kind"], &kind); err != nil || kind == "" {
		return "", errors.New("it has no kind")
	}
	fields, known := kinds[K(kind)]
	if !known {
		var all []string
		for k := range kinds {
			all = append(all, string(k))
		}
		slices.Sort(all)
		return "", fmt.Errorf("the kind %q is not known; there are %s", kind, strings.Join(all, ", "))
	}
	var names []string
	for name := range raw {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if _, ok := fields[name]; !ok && name != "kind" {
			return kind, fmt.Errorf("it has no field %q", name)
		}
	}
	for name, optional := range fields {
		if _, there := raw[name]; !there && !optional {
			return kind, fmt.Errorf("its field %q is missing", name)
		}
	}
	b, err := json.Marshal(raw)
	if err != nil {
		return kind, err
	}
	return kind, decodeStrict(bytes.NewReader(b), to)
}

var (
	// A package of Debian's, with what apt-get install understands behind it: an
	// architecture, and a version or a release.
	aptPackage = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+(:[a-z0-9-]+)?([=/][A-Za-z0-9.+:~-]+)?$`)
	envName    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	blobName   = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// Validate says what is wrong with a definition, of class Invalid, or nil.
func (d Definition) Validate() error {
	if err := d.Base.validate(); err != nil {
		return invalid("the base"+ofKind(string(d.Base.Kind)), err)
	}
	if len(d.Steps) > maxSteps {
		return fault.New(fault.Invalid, "the image has %d steps; %d are the most", len(d.Steps), maxSteps)
	}
	for i, s := range d.Steps {
		if err := s.validate(); err != nil {
			return invalid(fmt.Sprintf("step %d%s", i+1, ofKind(string(s.Kind))), err)
		}
	}
	return nil
}

func (b Base) validate() error {
	switch b.Kind {
	case DebianSlim:
		if b.Name != "" {
			return errors.New(`it has no field "name"`)
		}
		_, err := b.release()
		return err
	case FromImage:
		if b.Name == "" {
			return errors.New("the image's name is empty")
		}
		return nil
	case FromRegistry:
		_, err := registry.ParseRef(b.Ref, false)
		return err
	case FromDockerfile:
		return b.validateDockerfile()
	}
	return fmt.Errorf("the kind %q is not known", b.Kind)
}

func (b Base) validateDockerfile() error {
	switch {
	case strings.TrimSpace(b.Dockerfile) == "":
		return errors.New("the Dockerfile is empty")
	case len(b.Dockerfile) > maxWordLength:
		return fmt.Errorf("the Dockerfile has %d bytes; %d are the most", len(b.Dockerfile), maxWordLength)
	case b.Context != "" && !blobName.MatchString(b.Context):
		return fmt.Errorf("the context %q is not sha256: and 64 hexadecimal digits", b.Context)
	}
	return variables(b.BuildArgs)
}

// variables checks names and values of an environment.
func variables(vars map[string]string) error {
	for _, name := range sortedKeys(vars) {
		if !envName.MatchString(name) {
			return fmt.Errorf("%q is not a name for an environment variable: letters, digits and '_', no digit first", name)
		}
		if strings.ContainsRune(vars[name], 0) || len(vars[name]) > maxCommandLen {
			return fmt.Errorf("the value of %s holds a NUL or is longer than %d bytes", name, maxCommandLen)
		}
	}
	return nil
}

func (s Instruction) validate() error {
	switch s.Kind {
	case AptInstall:
		return words("packages", s.Packages, false, func(p string) error {
			if !aptPackage.MatchString(p) {
				return fmt.Errorf("%q is not the name of a Debian package, as in curl or curl=7.88.1-10", p)
			}
			return nil
		})
	case PipInstall:
		if len(s.Packages) == 0 && len(s.Options) == 0 {
			return errors.New("packages and options are both empty")
		}
		if err := words("packages", s.Packages, true, pipRequirement); err != nil {
			return err
		}
		return words("options", s.Options, true, func(string) error { return nil })
	case Run:
		return words("commands", s.Commands, false, func(c string) error {
			if len(c) > maxCommandLen {
				return fmt.Errorf("a command has %d bytes; %d are the most", len(c), maxCommandLen)
			}
			return nil
		})
	case Env:
		if len(s.Vars) == 0 {
			return errors.New("vars is empty")
		}
		return variables(s.Vars)
	case Workdir:
		switch {
		case !strings.HasPrefix(s.Path, "/"):
			return fmt.Errorf("the path %q is not absolute", s.Path)
		case path.Clean(s.Path) != s.Path, strings.ContainsRune(s.Path, 0), len(s.Path) > 4000:
			return fmt.Errorf("the path %q is not a plain path: want %q", s.Path, path.Clean(s.Path))
		}
		return nil
	case Add:
		if !blobName.MatchString(s.Blob) {
			return fmt.Errorf("the blob %q is not sha256: and 64 hexadecimal digits", s.Blob)
		}
		return nil
	}
	return fmt.Errorf("the kind %q is not known", s.Kind)
}

// words checks a list of non-empty strings.
func words(what string, list []string, mayBeEmpty bool, check func(string) error) error {
	if len(list) == 0 && !mayBeEmpty {
		return fmt.Errorf("%s is empty", what)
	}
	if len(list) > maxWords {
		return fmt.Errorf("%s has %d entries; %d are the most", what, len(list), maxWords)
	}
	for i, w := range list {
		switch {
		case strings.TrimSpace(w) == "":
			return fmt.Errorf("%s: entry %d is empty", what, i+1)
		case strings.ContainsRune(w, 0):
			return fmt.Errorf("%s: entry %d holds a NUL", what, i+1)
		case len(w) > maxWordLength:
			return fmt.Errorf("%s: entry %d has %d bytes; %d are the most", what, i+1, len(w), maxWordLength)
		}
		if err := check(w); err != nil {
			return err
		}
	}
	return nil
}

// pipRequirement checks what stands for a package: the rest is pip's business,
// but an option in the place of a package is a mistake.
func pipRequirement(p string) error {
	if strings.HasPrefix(p, "-") {
		return fmt.Errorf("%q is an option, not a package: it belongs into options", p)
	}
	if strings.ContainsAny(p, "\n\r") {
		return fmt.Errorf("%q has more than one line", p)
	}
	return nil
}

// Summary is the step in one line, for people.
func (s Instruction) Summary() string {
	switch s.Kind {
	case AptInstall:
		return "apt install " + strings.Join(s.Packages, " ")
	case PipInstall:
		return "pip install " + strings.Join(append(slices.Clone(s.Options), s.Packages...), " ")
	case Run:
		return "run " + strings.Join(s.Commands, " && ")
	case Env:
		return "env " + strings.Join(sortedKeys(s.Vars), " ") // values may be long, or secret
	case Workdir:
		return "workdir " + s.Path
	case Add:
		if s.Text != "" {
			return "add " + s.Text
		}
		return "add " + s.Blob[:min(len(s.Blob), 19)]
	}
	return string(s.Kind)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

package build

import (
	"fmt"
	"strings"
	"time"
)

// release is one Debian that images can be based on.
type release struct {
	suite  string
	python string    // version of its python3
	date   time.Time // of the first release: the time given to files that are made while an image is built
}

// releases are those that have a Python which is still maintained, oldest first.
var releases = []release{
	{"bullseye", "3.9", time.Date(2021, 8, 14, 0, 0, 0, 0, time.UTC)},
	{"bookworm", "3.11", time.Date(2023, 6, 10, 0, 0, 0, 0, time.UTC)},
	{"trixie", "3.13", time.Date(2025, 8, 9, 0, 0, 0, 0, time.UTC)},
}

// defaultSuite is what a base without a suite and a Python version gets.
const defaultSuite = "bookworm"

// release finds the Debian that a base asks for. Without a suite it is the one
// that has the Python version.
func (b Base) release() (release, error) {
	suite := b.Suite
	if suite == "" && b.PythonVersion == "" {
		suite = defaultSuite
	}
	for _, r := range releases {
		if r.suite == suite && (b.PythonVersion == "" || b.PythonVersion == r.python) || suite == "" && r.python == b.PythonVersion {
			return r, nil
		}
	}
	var has, other string
	var known []string
	for _, r := range releases {
		known = append(known, fmt.Sprintf("%s (Python %s)", r.suite, r.python))
		if r.suite == suite {
			has = r.python
		}
		if r.python == b.PythonVersion {
			other = r.suite
		}
	}
	switch {
	case has == "" && suite != "":
		return release{}, fmt.Errorf("the suite %q is not known; there are %s", suite, strings.Join(known, ", "))
	case other != "":
		return release{}, fmt.Errorf("%s has Python %s; Python %s is in %s", suite, has, b.PythonVersion, other)
	case has != "":
		return release{}, fmt.Errorf("%s has Python %s, and no suite has Python %q; there are %s", suite, has, b.PythonVersion, strings.Join(known, ", "))
	}
	return release{}, fmt.Errorf("no suite has Python %q; there are %s", b.PythonVersion, strings.Join(known, ", "))
}

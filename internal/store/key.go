package store

import (
	"strings"

	"brisk.dev/brisk/internal/fault"
)

// CheckKey reports what is wrong with an object's key, as fault.Invalid. Every Origin
// has the same rules: relative, slash-separated, components that do not begin with a dot,
// printable ASCII without a backslash.
func CheckKey(key string) error {
	if len(key) > 1024 {
		return fault.New(fault.Invalid, "key of %d bytes: at most 1024", len(key))
	}
	for part := range strings.SplitSeq(key, "/") {
		if part == "" || part[0] == '.' || len(part) > 255 {
			return fault.New(fault.Invalid, "key %q: component %q is empty, too long or begins with a dot", key, part)
		}
		for i := range len(part) {
			if part[i] <= ' ' || part[i] > '~' || part[i] == '\\' {
				return fault.New(fault.Invalid, "key %q: character %q", key, part[i])
			}
		}
	}
	return nil
}

package store

import (
	"context"
	"regexp"
	"strings"

	"brisk.dev/brisk/internal/fault"
)

// The object that says what an origin is (docs/format/origin.md).
const (
	originVersionKey = "VERSION"
	originVersion    = "brisk store 1\n"
)

var versionForm = regexp.MustCompile(`^brisk store [0-9]+\n$`)

// CheckVersion makes sure that an origin has a format that this Brisk knows, and
// marks a new one. Another is fault.Machine.
func CheckVersion(ctx context.Context, o Origin) error {
	have, err := mark(ctx, o, originVersionKey, originVersion)
	if err != nil {
		return fault.Wrap(err, "open", "origin")
	}
	return known(have)
}

// ReadVersion is CheckVersion that changes nothing: a new origin is fault.NotFound.
func ReadVersion(ctx context.Context, o Origin) error {
	have, _, err := o.Get(ctx, originVersionKey, 4096)
	if err != nil {
		return fault.Wrap(err, "open", "origin")
	}
	return known(string(have))
}

func known(version string) error {
	if !versionForm.MatchString(version) {
		return fault.New(fault.Machine, "the object %s at the origin is none of Brisk's, or damaged: it says %.40q", originVersionKey, version).
			WithHint("Take another bucket or prefix. If the store is yours, remove the object: Brisk writes it anew.")
	}
	if version != originVersion {
		return fault.New(fault.Machine, "the origin has the format %q, this Brisk knows %q", strings.TrimSpace(version), strings.TrimSpace(originVersion)).
			WithHint("Use the version of Brisk that made it, or another bucket or directory.")
	}
	return nil
}

// mark gives the content of a small object that is written once, and writes it if it is not there.
func mark(ctx context.Context, o Origin, key, content string) (string, error) {
	for range recordTries {
		b, _, err := o.Get(ctx, key, 4096)
		if !fault.Is(err, fault.NotFound) {
			return string(b), err
		}
		if _, err = o.Swap(ctx, key, "", []byte(content)); !fault.Is(err, fault.Exists) {
			return content, err
		}
	}
	return "", fault.New(fault.Unavailable, "%s comes and goes", key)
}

package doctor

import (
	"context"
	"fmt"
	"strings"
)

func (m *machine) runsc(ctx context.Context, o Options) Result {
	const name, fix = "runsc", "make runsc builds the pinned one, as bin/runsc."
	if o.Runsc == "" {
		return fail(name, fix, "not found")
	}
	out, err := m.command(ctx, o.Runsc, "--version")
	if err != nil {
		return fail(name, fix, "%s does not run: %s", o.Runsc, oneLine(err))
	}
	first, _, _ := strings.Cut(out, "\n")
	version, is := strings.CutPrefix(first, "runsc version ")
	if !is {
		return fail(name, fix, "%s is something else: it calls itself %q", o.Runsc, first)
	}
	return ok(name, "%s (%s)", version, o.Runsc)
}

func (m *machine) python(ctx context.Context, _ Options) Result {
	const name, fix = "python3", "apt-get install python3 (3.9 or newer): brisk run FILE starts your file with it."
	out, err := m.command(ctx, "python3", "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])")
	if err != nil {
		return fail(name, fix, "does not run: %s", oneLine(err))
	}
	var v version
	// Anything that is not a version reads as 0.0, which is too old.
	_, _ = fmt.Sscanf(out, "%d.%d", &v[0], &v[1])
	if v.before(version{3, 9}) {
		return fail(name, fix, "%s is too old", out)
	}
	return ok(name, "%s", out)
}

// debianKeys is where mmdebstrap finds what Debian signs its suites with.
const debianKeys = "usr/share/keyrings/debian-archive-keyring.gpg"

func (m *machine) mmdebstrap(context.Context, Options) Result {
	const name, fix = "mmdebstrap", "apt-get install mmdebstrap debian-archive-keyring: Image.debian_slim() is made with it."
	path, err := m.lookPath("mmdebstrap")
	if err != nil {
		return warn(name, fix, "not installed")
	}
	if !m.exists(debianKeys) {
		return warn(name, fix, "%s, but Debian's keys are not installed", path)
	}
	return ok(name, "%s", path)
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", ": ") }

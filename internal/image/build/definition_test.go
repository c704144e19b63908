package build

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/fault"
)

func TestParseDefinition(t *testing.T) {
	d, err := ParseDefinition(strings.NewReader(`{
		"base": {"kind": "debian_slim", "suite": "bookworm", "python_version": null},
		"steps": [
			{"kind": "apt_install", "packages": ["git", "libc6:amd64", "curl=7.88.1-10+deb12u5", "xz-utils/bookworm-backports"]},
			{"kind": "pip_install", "packages": ["numpy>=2; python_version > '3'", "git+https://example.com/x"], "options": ["--pre"]},
			{"kind": "run", "commands": ["echo hi", "ls"]},
			{"kind": "env", "vars": {"A": "b"}},
			{"kind": "workdir", "path": "/srv/app"},
			{"kind": "add", "blob": "sha256:0000000000000000000000000000000000000000000000000000000000000000", "text": "app.py"}
		]}`))
	require.NoError(t, err)
	require.Equal(t, Base{Kind: DebianSlim, Suite: "bookworm"}, d.Base)
	var lines []string
	for _, s := range d.Steps {
		lines = append(lines, s.Summary())
	}
	require.Equal(t, []string{
		"apt install git libc6:amd64 curl=7.88.1-10+deb12u5 xz-utils/bookworm-backports",
		"pip install --pre numpy>=2; python_version > '3' git+https://example.com/x",
		"run echo hi && ls", "env A", "workdir /srv/app", "add app.py",
	}, lines)
}

func TestDefinitionsThatAreWrong(t *testing.T) {
	const base = `{"base": {"kind": "image", "name": "x"}, "steps": [`
	for definition, want := range map[string]string{
		``:                               "the image definition: the JSON ends too early",
		`{"base"`:                        "the image definition: the JSON ends too early",
		`[]`:                             "the image definition: it cannot be a JSON array",
		`{}`:                             "the image definition has no base",
		`{"base": {}}`:                   "the base: it has no kind",
		`{"base": {"kind": 1}}`:          "the base: it has no kind",
		`{"base": {"kind": "x"}}`:        `the base: the kind "x" is not known; there are debian_slim, dockerfile, image, registry`,
		`{"bass": {}}`:                   `the image definition: unknown field "bass"`,
		base + `]} {}`:                   "the image definition: there is something behind the JSON object",
		`{"base": {"kind": "registry"}}`: `the base (registry): its field "ref" is missing`,
		`{"base": {"kind": "registry", "ref": "No Ref"}}`:                                      `the base (registry): "No Ref" is not the name of an image in a registry`,
		`{"base": {"kind": "dockerfile", "dockerfile": " "}}`:                                  "the base (dockerfile): the Dockerfile is empty",
		`{"base": {"kind": "dockerfile", "dockerfile": "FROM x", "context": "x"}}`:             `the base (dockerfile): the context "x" is not sha256: and 64 hexadecimal digits`,
		`{"base": {"kind": "dockerfile", "dockerfile": "FROM x", "build_args": {"A B": "1"}}}`: `the base (dockerfile): "A B" is not a name for an environment variable: letters, digits and '_', no digit first`,
		`{"base": {"kind": "image"}}`:                                                          `the base (image): its field "name" is missing`,
		`{"base": {"kind": "image", "name": ""}}`:                                              "the base (image): the image's name is empty",
		`{"base": {"kind": "image", "name": "x", "suite": "bookworm"}}`:                        `the base (image): it has no field "suite"`,
		`{"base": {"kind": "debian_slim", "suite": "potato"}}`:                                 `the base (debian_slim): the suite "potato" is not known; there are bullseye (Python 3.9), bookworm (Python 3.11), trixie (Python 3.13)`,
		`{"base": {"kind": "debian_slim", "suite": "bookworm", "python_version": "3.13"}}`:     "the base (debian_slim): bookworm has Python 3.11; Python 3.13 is in trixie",
		`{"base": {"kind": "debian_slim", "suite": "bookworm", "python_version": "3.12"}}`:     `the base (debian_slim): bookworm has Python 3.11, and no suite has Python "3.12"; there are bullseye (Python 3.9), bookworm (Python 3.11), trixie (Python 3.13)`,
		`{"base": {"kind": "debian_slim", "python_version": "2.7"}}`:                           `the base (debian_slim): no suite has Python "2.7"; there are bullseye (Python 3.9), bookworm (Python 3.11), trixie (Python 3.13)`,

		base + `{"packages": ["x"]}]}`:                                                  "step 1: it has no kind",
		base + `{"kind": "apt", "packages": ["x"]}]}`:                                   `step 1: the kind "apt" is not known; there are add, apt_install, env, pip_install, run, workdir`,
		base + `{"kind": "apt_install", "package": ["x"]}]}`:                            `step 1 (apt_install): it has no field "package"`,
		base + `{"kind": "apt_install"}]}`:                                              `step 1 (apt_install): its field "packages" is missing`,
		base + `{"kind": "apt_install", "packages": "x"}]}`:                             "step 1 (apt_install): packages cannot be a JSON string",
		base + `{"kind": "apt_install", "packages": []}]}`:                              "step 1 (apt_install): packages is empty",
		base + `{"kind": "apt_install", "packages": ["--yes"]}]}`:                       `step 1 (apt_install): "--yes" is not the name of a Debian package, as in curl or curl=7.88.1-10`,
		base + `{"kind": "apt_install", "packages": ["Git"]}]}`:                         `step 1 (apt_install): "Git" is not the name`,
		base + `{"kind": "apt_install", "packages": ["a; rm -rf /"]}]}`:                 `step 1 (apt_install): "a; rm -rf /" is not the name`,
		base + `{"kind": "apt_install", "packages": ["git", " "]}]}`:                    "step 1 (apt_install): packages: entry 2 is empty",
		base + `{"kind": "pip_install"}]}`:                                              "step 1 (pip_install): packages and options are both empty",
		base + `{"kind": "pip_install", "packages": ["-r"]}]}`:                          `step 1 (pip_install): "-r" is an option, not a package: it belongs into options`,
		base + `{"kind": "pip_install", "packages": ["a\nb"]}]}`:                        `step 1 (pip_install): "a\nb" has more than one line`,
		base + `{"kind": "run", "commands": ["a\u0000"]}]}`:                             "step 1 (run): commands: entry 1 holds a NUL",
		base + `{"kind": "run", "commands": []}]}`:                                      "step 1 (run): commands is empty",
		base + `{"kind": "env", "vars": {}}]}`:                                          "step 1 (env): vars is empty",
		base + `{"kind": "env", "vars": {"1A": ""}}]}`:                                  `step 1 (env): "1A" is not a name for an environment variable`,
		base + `{"kind": "env", "vars": {"A=B": ""}}]}`:                                 `step 1 (env): "A=B" is not a name`,
		base + `{"kind": "env", "vars": {"A": 1}}]}`:                                    "step 1 (env): vars cannot be a JSON number",
		base + `{"kind": "workdir", "path": "app"}]}`:                                   `step 1 (workdir): the path "app" is not absolute`,
		base + `{"kind": "workdir", "path": "/a/../b"}]}`:                               `step 1 (workdir): the path "/a/../b" is not a plain path: want "/b"`,
		base + `{"kind": "workdir", "path": "/a/"}]}`:                                   `step 1 (workdir): the path "/a/" is not a plain path: want "/a"`,
		base + `{"kind": "add", "blob": "sha256:xyz"}]}`:                                `step 1 (add): the blob "sha256:xyz" is not sha256: and 64 hexadecimal digits`,
		base + `{"kind": "env", "vars": {"A": "b"}}, {"kind": "workdir"}]}`:             `step 2 (workdir): its field "path" is missing`,
		base + `{"kind": "run", "commands": ["` + strings.Repeat("x", 100001) + `"]}]}`: "step 1 (run): a command has 100001 bytes; 100000 are the most",
	} {
		_, err := ParseDefinition(strings.NewReader(definition))
		require.Error(t, err, definition)
		require.Equal(t, fault.Invalid, fault.ClassOf(err), definition)
		require.ErrorContains(t, err, want, definition)
		require.NotContains(t, err.Error(), "json:", definition)
		require.NotContains(t, err.Error(), "Go struct", definition)
	}
}

func TestReleaseOfABase(t *testing.T) {
	for _, c := range []struct{ suite, python, want string }{
		{"", "", "bookworm"}, {"", "3.11", "bookworm"}, {"", "3.13", "trixie"}, {"", "3.9", "bullseye"},
		{"trixie", "", "trixie"}, {"trixie", "3.13", "trixie"},
	} {
		r, err := Base{Kind: DebianSlim, Suite: c.suite, PythonVersion: c.python}.release()
		require.NoError(t, err)
		require.Equal(t, c.want, r.suite)
	}
}

// FuzzParseDefinition: whatever parses is valid, and says the same when written and read again.
func FuzzParseDefinition(f *testing.F) {
	f.Add(`{"base": {"kind": "image", "name": "x"}, "steps": [{"kind": "run", "commands": ["x"]}]}`)
	f.Add(`{"base": {"kind": "debian_slim"}}`)
	f.Add(`{"base": {"kind": null}, "steps": [null]}`)
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDefinition(strings.NewReader(s))
		if err != nil {
			require.Equal(t, fault.Invalid, fault.ClassOf(err))
			return
		}
		for _, step := range d.Steps {
			require.NotEmpty(t, step.Summary())
		}
		require.NoError(t, d.Validate())
	})
}

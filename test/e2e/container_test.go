package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// debian is the digest of the seed's only image.
func (s *site) debian(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(seedDir, "images", "default", "manifests", "*.json"))
	require.NoError(t, err)
	require.Len(t, found, 1)
	return strings.TrimSuffix(filepath.Base(found[0]), ".json")
}

// in runs a command in a container on the seed's image, without network.
func (s *site) in(t *testing.T, args ...string) result {
	t.Helper()
	return s.brisk(t, append([]string{"run", "--image", s.debian(t), "--block-network", "--"}, args...)...)
}

func TestContainerStreamsAndExitCodes(t *testing.T) {
	t.Parallel()
	s := shared(t)
	image := s.debian(t)
	tests := []struct {
		name     string
		args     []string
		input    string
		code     int
		out, err string
	}{
		{"both streams", []string{"--", "sh", "-c", "echo out; echo err >&2"}, "", 0, "out\n", "err\n"},
		{"its own code", []string{"--", "sh", "-c", "exit 42"}, "", 42, "", ""},
		{"a code that is one of brisk's", []string{"--", "sh", "-c", "exit 70"}, "", 70, "", ""},
		{"killed by a signal", []string{"--", "sh", "-c", "kill -TERM $$"}, "", 143, "", ""},
		{"input", []string{"--", "cat"}, "what goes in\ncomes out", 0, "what goes in\ncomes out", ""},
		{"no input", []string{"--", "cat"}, "", 0, "", ""},
		{"arguments as they are", []string{"--", "printf", "%s|", "a b", "", "$HOME", "*"}, "", 0, "a b||$HOME|*|", ""},
		{"variables", []string{"--env", "A=1", "-e", "B=two words", "--", "sh", "-c", `echo "$A,$B,$HOME"`}, "", 0, "1,two words,/root\n", ""},
		{"directory", []string{"--workdir", "/usr/lib", "--", "pwd"}, "", 0, "/usr/lib\n", ""},
		{"user by number", []string{"--user", "1234:5678", "--", "sh", "-c", "id -u; id -g"}, "", 0, "1234\n5678\n", ""},
		{"user by name", []string{"--user", "nobody", "--", "sh", "-c", "id -un; id -gn"}, "", 0, "nobody\nnogroup\n", ""},
		{"root without a user", []string{"--", "id", "-u"}, "", 0, "0\n", ""},
		{"the image's own command", []string{}, "print(6 * 7)", 0, "42\n", ""},
		{"a page boundary of output", []string{"--", "python3", "-c", "print('x' * 3_000_000)"}, "", 0, strings.Repeat("x", 3_000_000) + "\n", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := s.fed(t, tt.input, append([]string{"run", "--image", image, "--block-network"}, tt.args...)...)
			require.Equal(t, tt.code, r.code, "%s", r)
			require.Equal(t, tt.out, r.out)
			require.Equal(t, tt.err, r.err)
		})
	}
}

func TestContainerThatCannotStart(t *testing.T) {
	t.Parallel()
	s := newSite(t) // the hint about images depends on which there are
	image := s.debian(t)
	tests := []struct {
		name string
		args []string
		code int
		want complaint
	}{
		{"no such image", []string{"--image", "nope", "--", "true"}, 3,
			complaint{"not_found", `there is no image "nope"`, "No image has a name yet: make one with `brisk image import PATH --name NAME`, or let a function's Image be built."}},
		{"no such program", []string{"--image", image, "--block-network", "--", "nope"}, 3,
			complaint{"not_found", "there is no program nope in the image", ""}},
		{"no such file", []string{"--image", image, "--block-network", "--", "/nope"}, 3,
			complaint{"not_found", "there is no program /nope in the image", ""}},
		{"a directory", []string{"--image", image, "--block-network", "--", "/etc"}, 2,
			complaint{"invalid", "/etc is no program that could be run in the image", ""}},
		{"a file that is no program", []string{"--image", image, "--block-network", "--", "/etc/passwd"}, 2,
			complaint{"invalid", "/etc/passwd is no program that could be run in the image", ""}},
		{"no such user", []string{"--image", image, "--block-network", "--user", "nope", "--", "true"}, 2,
			complaint{"invalid", `user "nope" is not in the image's /etc/passwd`, ""}},
		{"a relative directory", []string{"--image", image, "--block-network", "--workdir", "usr", "--", "true"}, 2,
			complaint{"invalid", `workdir "usr": want an absolute path`, ""}},
		{"no such directory", []string{"--image", image, "--block-network", "--workdir", "/nope", "--", "true"}, 2,
			complaint{"invalid", "there is no directory /nope in the image", ""}},
		{"a network that is none", []string{"--image", image, "--allow-network", "10.0.0.0/99", "--", "true"}, 2,
			complaint{"invalid", `allow_networks: "10.0.0.0/99" is not a CIDR prefix such as 10.1.0.0/16`, ""}},
		{"a flag of containers without one", []string{"--memory", "5", "x.py"}, 2,
			complaint{"invalid", "--memory is for containers", "A function says in its decorator what it needs; options of the file come after its name."}},
		{"nothing", nil, 2,
			complaint{"invalid", "run wants a file, or --image", "`brisk help run` has examples."}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, s.refused(t, tt.code, append([]string{"run"}, tt.args...)...))
		})
	}
}

// Ctrl-C, a timeout and the death of the client all end the container.
func TestContainerEndsWithItsClient(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	image := s.debian(t)
	begin := func(t *testing.T, args ...string) *process {
		args = append([]string{"run", "--image", image, "--block-network"}, args...)
		p := s.begin(t, append(args, "--", "sh", "-c", "echo here; exec sleep 1000")...)
		p.waitLine(t, "here")
		return p
	}
	gone := func(t *testing.T) {
		eventually(t, "no container is left", func() bool {
			var all []instance
			s.ask(t, &all, "ps")
			return len(all) == 0
		})
	}
	t.Run("interrupt", func(t *testing.T) {
		p := begin(t)
		p.signal(t, syscall.SIGINT)
		require.Equal(t, 130, p.wait(t).code)
		gone(t)
	})
	t.Run("kill", func(t *testing.T) {
		p := begin(t)
		p.signal(t, syscall.SIGKILL)
		gone(t)
	})
	t.Run("timeout", func(t *testing.T) {
		p := begin(t, "--timeout", "1")
		r := p.wait(t)
		require.Equal(t, 4, r.code)
		require.Equal(t, "brisk: the container ran longer than its timeout of 1 s\n", r.err)
		gone(t)
	})
	t.Run("a reader of its output that goes", func(t *testing.T) {
		cmd := s.command("run", "--image", image, "--block-network", "--", "yes")
		r, w, err := os.Pipe()
		require.NoError(t, err)
		cmd.Stdout = w
		require.NoError(t, cmd.Start())
		w.Close()
		_, err = r.Read(make([]byte, 10))
		require.NoError(t, err)
		r.Close()
		_ = cmd.Wait()
		gone(t)
	})
}

// What a container writes is its own: neither the image nor the next one has it.
func TestContainerFilesAreItsOwn(t *testing.T) {
	t.Parallel()
	s := shared(t)
	r := s.in(t, "sh", "-ec", `
		echo mine > /etc/mine; echo changed >> /etc/hostname; rm /etc/debian_version
		mkdir -p /srv/deep/er; ln -s /etc/mine /srv/link; cat /srv/link
		echo scratch > /tmp/x; cat /tmp/x; chmod 4755 /etc/mine; mv /srv/deep /srv/moved; ls /srv`)
	require.Equal(t, result{line: r.line, out: "mine\nscratch\nlink\nmoved\n"}, r)
	r = s.in(t, "sh", "-c", "ls /etc/mine /srv /tmp; cat /etc/debian_version")
	require.Equal(t, "/srv:\n", strings.Split(r.out, "\n/tmp:")[0]+"", "%s", r)
	require.Contains(t, r.err, "/etc/mine")
	require.Contains(t, r.out, "\n12.")
}

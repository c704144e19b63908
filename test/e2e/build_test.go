package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// builds makes a file whose function f runs on an image with steps.
func (s *site) builds(t *testing.T, app, steps string) string {
	t.Helper()
	return s.write(t, app+".py", `
import brisk, os
app = brisk.App("`+app+`")
image = brisk.Image.debian_slim()`+steps+`

@app.function(image=image, block_network=True, enable_memory_snapshot=False)
def f(command: str = "true"):
    import subprocess
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout
`)
}

// Steps see the ones before them, are built once, and what is local travels along.
func TestBuildOfEveryStep(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.write(t, "one.txt", "1\n")
	s.write(t, "tree/two.txt", "2\n")
	s.write(t, "tree/sub/three.txt", "3\n")
	s.write(t, "tree/skip.log", "-\n")
	s.write(t, "beside.py", "VALUE = 'from beside'\n")
	steps := `.env({"COLOUR": "blue"}).workdir("/srv/app").add_local_file("one.txt", "/srv/one.txt")` +
		`.add_local_dir("tree", "/srv/tree", ignore=["*.log"]).run_commands("echo $COLOUR > colour", "cat /srv/one.txt /srv/tree/two.txt > both")`
	file := s.builds(t, "steps", steps)
	r := s.brisk(t, "run", file+"::f", "--command", "pwd; cat colour both; ls -A /srv/tree; cat /srv/tree/sub/three.txt; echo $COLOUR")
	require.Equal(t, 0, r.code, "%s", r)
	require.Equal(t, `'/srv/app\nblue\n1\n2\nsub\ntwo.txt\n3\nblue\n'`+"\n", r.out)
	require.Contains(t, r.err, "6/6 run echo $COLOUR > colour")

	again := s.brisk(t, "run", file+"::f")
	require.Equal(t, 0, again.code)
	require.Equal(t, "", again.err, "nothing is built")
	s.write(t, "tree/two.txt", "two\n")
	r = s.brisk(t, "run", file+"::f", "--command", "cat both")
	require.Equal(t, `'1\ntwo\n'`+"\n", r.out, "a changed file is seen")

	// Editing the function builds nothing.
	edited := s.builds(t, "steps", steps+"\nimport beside")
	r = s.brisk(t, "run", edited+"::f", "--command", "echo edited")
	require.Equal(t, "'edited\\n'\n", r.out)
	require.Equal(t, "", r.err)
}

func TestBuildLeavesNothingOfTheHost(t *testing.T) {
	t.Parallel()
	s := shared(t)
	file := s.builds(t, "clean", `.run_commands("cat /etc/resolv.conf > /resolv")`)
	out := s.ok(t, "run", file+"::f", "--command", "test -s /resolv && echo had a resolver; cat /etc/resolv.conf; ls -A /run /tmp /root; ls -A /etc/apt/apt.conf.d; find / -xdev -newermt '1 hour ago' -type f -not -path '/proc/*' -not -path '/sys/*' -not -path '/opt/brisk/*' 2>/dev/null | grep -v '^/resolv\\|^/etc/hosts' | sort | head")
	require.Equal(t, `'had a resolver\n/root:\n.bashrc\n.profile\n\n/run:\nbrisk\n\n/tmp:\n01autoremove\n70debconf\n`+"'", strings.TrimSpace(out))
}

func TestBuildThatFails(t *testing.T) {
	t.Parallel()
	s := shared(t)
	file := s.builds(t, "fails", `.run_commands("echo kept > /kept").run_commands("echo on the way", "echo to stderr >&2; exit 3", "echo never")`)
	r := s.brisk(t, "run", file+"::f")
	require.Equal(t, 5, r.code, "%s", r)
	require.Contains(t, r.err, "on the way\n")
	require.Contains(t, r.err, "to stderr\n")
	require.NotContains(t, r.err, "  | never\n")
	require.Equal(t, 1, strings.Count(r.err, "| on the way\n"))
	require.Contains(t, r.err, "\nbrisk: step 3 of 3, run echo on the way && echo to stderr >&2; exit 3 && echo never: it failed with exit code 3\n")
	e := s.refused(t, 5, "run", file+"::f")
	require.Contains(t, e.Message, "step 3 of 3, run echo on the way")
	require.Contains(t, e.Message, "it failed with exit code 3")

	// What was built so far was not in vain, and the next attempt is as good as the first.
	file = s.builds(t, "fails", `.run_commands("echo kept > /kept").run_commands("cat /kept")`)
	r = s.brisk(t, "run", file+"::f", "--command", "cat /kept")
	require.Equal(t, 0, r.code, "%s", r)
	require.Equal(t, "'kept\\n'\n", r.out)
	require.NotContains(t, r.err, "echo kept", "its first step is there already")

	file = s.builds(t, "missing", `.run_commands("no-such-command")`)
	e = s.refused(t, 5, "run", file+"::f")
	require.Contains(t, e.Message, "no-such-command: not found")
	require.Equal(t, "A command that it needs is not in the image.", e.Hint)
}

func TestBuildOfWhatDoesNotExist(t *testing.T) {
	t.Parallel()
	s := shared(t)
	file := s.write(t, "python.py", `
import brisk
app = brisk.App("python")

@app.function(image=brisk.Image.debian_slim(python_version="3.99"))
def f(): pass
`)
	e := s.refused(t, 2, "run", file+"::f")
	require.Contains(t, e.Message, `bookworm has Python 3.11, and no suite has Python "3.99"; there are bullseye (Python 3.9), bookworm (Python 3.11), trixie (Python 3.13)`)
	file = s.builds(t, "nofile", `.add_local_file("no-such-file", "/x")`)
	e = s.refused(t, 2, "run", file+"::f")
	require.Equal(t, "add_local_file: there is no file "+filepath.Join(s.files, "no-such-file"), e.Message)
	file = s.write(t, "noimage.py", `
import brisk
app = brisk.App("noimage")

@app.function(image=brisk.Image.from_name("no-such-image"))
def f(): pass
`)
	e = s.refused(t, 3, "run", file+"::f")
	require.Contains(t, e.Message, `there is no image "no-such-image"`)

	needOutbound(t)
	file = s.builds(t, "noapt", `.apt_install("no-such-package-of-brisk")`)
	r := s.brisk(t, "run", file+"::f")
	require.Equal(t, 5, r.code, "%s", r)
	require.Contains(t, r.err, "Unable to locate package no-such-package-of-brisk")
	file = s.builds(t, "nopip", `.pip_install("brisk-has-no-such-package==1.2.3.4")`)
	r = s.brisk(t, "run", file+"::f")
	require.Equal(t, 5, r.code, "%s", r)
	require.Contains(t, r.err, "No matching distribution found for brisk-has-no-such-package==1.2.3.4")
}

func TestBuildInstalls(t *testing.T) {
	t.Parallel()
	needOutbound(t)
	s := newSite(t)
	file := s.write(t, "installs.py", `
import brisk, os
app = brisk.App("installs")
image = brisk.Image.debian_slim().apt_install("hello").pip_install("numpy")
with image.imports():
    import numpy

@app.function(image=image, block_network=True, scaledown_window=0.2)
def f():
    return os.popen("hello").read().strip(), int(numpy.arange(10).sum()), float(numpy.random.random()), float(numpy.random.default_rng().random())

@app.local_entrypoint()
def main():
    print(*f.remote(), sep="\n")
`)
	drawn := map[string]bool{}
	for range 4 {
		lines := strings.Split(s.ok(t, "run", file), "\n")
		require.Equal(t, []string{"Hello, world!", "45"}, lines[:2])
		drawn[lines[2]], drawn[lines[3]] = true, true
		s.ready(t, "installs")
		s.cooled(t, "installs")
	}
	require.Len(t, drawn, 8, "clones of a snapshot draw numbers of their own")
	var starts []string
	for _, c := range s.calls(t, "installs") {
		starts = append(starts, c.Start)
	}
	require.Equal(t, []string{"restored", "restored", "restored", "cold"}, starts)
	c := s.calls(t, "installs")[3]
	t.Logf("import numpy read %d bytes of an image of %d", c.Origin.OriginBytes+c.Origin.CacheBytes, c.Origin.ImageBytes)
	require.Less(t, c.Origin.OriginBytes+c.Origin.CacheBytes, c.Origin.ImageBytes/3)
}

// A machine without a network: builds say so, all else works.
func TestBuildWithoutANetwork(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	cmd := exec.Command("unshare", append([]string{"--net", "--"}, s.command("up").Args...)...)
	cmd.Env, cmd.Dir, cmd.SysProcAttr = s.command().Env, s.files, s.command().SysProcAttr
	s.launch(t, cmd, nil)
	s.answering(t)

	file := s.builds(t, "nopip", `.pip_install("six", extra_options="--retries 0")`)
	r := s.brisk(t, "run", file+"::f")
	require.Equal(t, 5, r.code, "%s", r)
	require.Contains(t, r.err, "No matching distribution found for six")

	require.Equal(t, []string{"gaierror"}, s.dial(t, nil, mirror+":80"))
	file = s.builds(t, "offline", `.run_commands("echo built > /built")`)
	require.Equal(t, "'built\\n'\n", s.ok(t, "run", file+"::f", "--command", "cat /built"))
}

package build

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
)

// suites are those of which a real Debian is to be made: a minute and a network each.
func suites(t *testing.T) []string {
	switch v := os.Getenv("BRISK_TEST_DEBIAN"); v {
	case "":
		t.Skip("takes a minute and a network: set BRISK_TEST_DEBIAN=1, or to names of suites with commas between")
		return nil
	case "1":
		return []string{defaultSuite}
	default:
		return strings.Split(v, ",")
	}
}

func TestDebian(t *testing.T) {
	for _, suite := range suites(t) {
		t.Run(suite, func(t *testing.T) {
			b := newBench(t)
			began := time.Now()
			base := Base{Kind: DebianSlim, Suite: suite}
			rel, err := base.release()
			require.NoError(t, err)
			var log strings.Builder
			img, err := b.Build(t.Context(), "default", Definition{Base: base}, func(e Event) { log.Write(e.Log) })
			require.NoError(t, err)
			require.Contains(t, log.String(), "I: success in")
			t.Logf("%d files, %d bytes, %d chunks, %.0f s", img.Manifest.Files, img.Manifest.Bytes, img.Manifest.Chunks.Count, time.Since(began).Seconds())

			tree, err := img.Tree(t.Context())
			require.NoError(t, err)
			python, err := tree.Follow("/usr/bin/python")
			require.NoError(t, err)
			require.Equal(t, "python"+rel.python, python.Name)
			pip, err := tree.Follow("/usr/bin/pip")
			require.NoError(t, err)
			require.True(t, pip.IsRegular())
			for _, name := range []string{"/dev/null", "/etc/apt/apt.conf.d/99mmdebstrap", "/var/lib/apt/lists/lock", "/usr/share/man/man1"} {
				_, err := tree.Lookup(name)
				require.True(t, missing(err), name)
			}
			sources, err := tree.Lookup("/etc/apt/sources.list")
			require.NoError(t, err)
			content, err := img.Content(t.Context(), sources)
			require.NoError(t, err)
			require.Equal(t, strings.ReplaceAll("deb http://deb.debian.org/debian SUITE main\ndeb http://deb.debian.org/debian SUITE-updates main\n"+
				"deb http://deb.debian.org/debian-security SUITE-security main\n", "SUITE", suite), string(content))
			require.NoError(t, tree.Walk(func(p string, n *image.Node) error {
				require.Less(t, n.File().MtimeS, began.Unix()-1, p)
				return nil
			}))
			require.Empty(t, b.leftovers())

			again, err := b.Build(t.Context(), "default", Definition{Base: base}, func(e Event) { require.True(t, e.Cached) })
			require.NoError(t, err)
			require.Same(t, img, again)
		})
	}
}

func TestDebianThatIsCancelled(t *testing.T) {
	suites(t)
	b := newBench(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := b.Build(ctx, "default", Definition{Base: Base{Kind: DebianSlim}}, func(e Event) {
		if bytes.Contains(e.Log, []byte("installing essential")) {
			cancel()
		}
	})
	require.Equal(t, fault.Cancelled, fault.ClassOf(err), "%v", err)
	require.NoError(t, b.Close())
	require.Empty(t, b.leftovers())
	require.Empty(t, processesIn(t, b.dir))
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	require.NotContains(t, string(mounts), b.dir)
}

// processesIn finds processes with their root or working directory below dir.
func processesIn(t *testing.T, dir string) (found []string) {
	all, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	for _, p := range all {
		for _, link := range []string{"/root", "/cwd"} {
			if to, err := os.Readlink(p + link); err == nil && strings.HasPrefix(to, dir) {
				found = append(found, p+link)
			}
		}
	}
	return found
}

func TestDebianNeedsMmdebstrap(t *testing.T) {
	b := newBench(t)
	t.Setenv("PATH", t.TempDir())
	_, err := b.Build(t.Context(), "default", Definition{Base: Base{Kind: DebianSlim}}, nil)
	require.Equal(t, fault.Machine, fault.ClassOf(err))
	require.EqualError(t, err, "step 1 of 1, Debian bookworm with Python 3.11: mmdebstrap is not installed, and it makes the Debian base")
	require.Contains(t, fault.HintOf(err), "apt-get install mmdebstrap")
}

// TestDebianThatFails runs a stand-in for mmdebstrap.
func TestDebianThatFails(t *testing.T) {
	if _, err := os.Stat(debianKeyring); err != nil {
		t.Skip("needs Debian's keyring")
	}
	for _, c := range []struct {
		name, script string
		class        fault.Class
		text, hint   string
	}{
		{"at once", "echo E: mirror does not answer >&2; exit 25", fault.BuildFailed, "it failed with exit code 25; the end of its output:\nE: mirror does not answer", "Its packages come from http"},
		{"half-way", "head -c 2000 /dev/zero | tr '\\0' x; echo E: disk >&2; exit 1", fault.BuildFailed, "E: disk", "Its packages"},
		{"on a full disk", "echo 'E: Write error - write (28: No space left on device)' >&2; exit 25", fault.DiskFull, "it failed with exit code 25; the end of its output:\nE: Write error", "Free space on the filesystem that holds "},
		{"with a tar that is none", "head -c 2000 /dev/zero | tr '\\0' x", fault.Invalid, "not a tar", ""},
		{"without Python", "head -c 2000 /dev/zero", fault.BuildFailed, "Debian bookworm came without Python 3.11", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			bin := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(bin, "mmdebstrap"), []byte("#!/bin/sh\n"+c.script+"\n"), 0o755))
			t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
			before := b.list()
			_, err := b.Build(t.Context(), "default", Definition{Base: Base{Kind: DebianSlim}}, nil)
			require.Equal(t, c.class, fault.ClassOf(err), "%v", err)
			require.ErrorContains(t, err, c.text)
			require.Contains(t, fault.HintOf(err), c.hint)
			require.Equal(t, before, b.list())
			require.Empty(t, b.leftovers())
		})
	}
}

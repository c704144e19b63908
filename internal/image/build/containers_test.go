package build

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/image/registry"
	"brisk.dev/brisk/internal/store"
)

// registries is Containers that know references, and "import" what a fake builder leaves.
type registries struct {
	b    *bench
	refs map[string]string // to the content of /from
	last Remote            // that was pulled
	down bool
	pull int
}

func (r *registries) Pull(_ context.Context, workspace string, from Remote, _ func(done, total int64)) (store.Digest, string, error) {
	r.pull++
	r.last = from
	ref := from.Ref
	content, ok := r.refs[ref]
	switch {
	case r.down:
		return store.Digest{}, "", fault.New(fault.Unavailable, "pull %s: the registry does not answer", ref)
	case !ok:
		return store.Digest{}, "", fault.New(fault.NotFound, "pull %s: the registry does not have it", ref)
	}
	return r.b.write(workspace, "", tarOf("from", content)).Digest, ref + "@sha256:...", nil
}

func (r *registries) Import(_ context.Context, workspace, path string, _ func(done, total int64)) (store.Digest, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return store.Digest{}, err
	}
	return r.b.write(workspace, "", tarOf("from", string(content))).Digest, nil
}

func TestBeginWithARegistry(t *testing.T) {
	b := newBench(t)
	r := &registries{b: b, refs: map[string]string{"python:3": "one"}}
	b.containers = r
	b.open()
	def := Definition{Base: Base{Kind: FromRegistry, Ref: "python:3"}, Steps: []Instruction{{Kind: Env, Vars: map[string]string{"X": "y"}}}}
	img := b.made(def)
	require.Equal(t, "one", b.read(img, "/from"))
	require.Contains(t, img.Config().Env, "X=y")
	require.Contains(t, b.said(), "python:3 is python:3@sha256:...")
	first := img.Digest

	r.refs["python:3"] = "two" // the tag has moved
	img = b.made(def)
	require.Equal(t, "two", b.read(img, "/from"))
	require.NotEqual(t, first, img.Digest)

	known := def
	known.Base.Auth = &registry.Auth{Username: "ada", Password: "engine"}
	require.Equal(t, img.Digest, b.made(known).Digest, "who asks is no part of the image")
	require.Equal(t, Remote{Ref: "python:3", Auth: known.Base.Auth}, r.last)

	r.down = true
	require.Equal(t, img.Digest, b.made(def).Digest)
	require.Contains(t, b.said(), "pull python:3: the registry does not answer\ngoing on with what it was last: image ")

	open := def
	open.Base.Insecure = true
	_, err := b.Build(t.Context(), "default", open, nil)
	require.True(t, fault.Is(err, fault.Unavailable), "what was read safely is not what an unsafe pull had last")
	require.True(t, r.last.Insecure)

	def.Base.Ref = "other:1"
	_, err = b.Build(t.Context(), "default", def, nil)
	require.ErrorContains(t, err, "step 1 of 2: pull other:1: the registry does not answer")
	require.True(t, fault.Is(err, fault.Unavailable))
	r.down = false
	_, err = b.Build(t.Context(), "default", def, nil)
	require.True(t, fault.Is(err, fault.NotFound), err)
}

// fakeBuilder is a docker whose image is a file of what it was given.
const fakeBuilder = `#!/bin/sh
set -e
case $1 in
buildx) exit 1 ;;
build)
	id=$4 file=$6
	shift 6
	for context; do :; done
	echo building
	{
		cat "$file"
		echo "$@" | sed "s,/[^ ]*/context,CONTEXT,"
		cd "$context"
		find . -mindepth 1 -printf "%P %m %Ts\n" | sort
		if test -d data; then cat data/*; fi
	} > "$id.made"
	if grep -q FAIL "$file"; then exit 3; fi
	echo "$id.made" > "$id" ;;
save) cp "$4" "$3" ;;
esac
`

func TestBeginWithADockerfile(t *testing.T) {
	b := newBench(t)
	b.containers = &registries{b: b}
	b.open()
	bin := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(bin, "docker"), []byte(fakeBuilder), 0o755))
	for _, name := range []string{"sh", "cat", "sed", "find", "sort", "cp", "grep", "mount"} {
		require.NoError(t, os.Symlink("/usr/bin/"+name, filepath.Join(bin, name)))
	}
	t.Setenv("PATH", bin)
	id := b.blob(tarOf("data/", "", "data/a", "content of a\n"))
	def := Definition{Base: Base{Kind: FromDockerfile, Dockerfile: "FROM scratch\n", Context: id, BuildArgs: map[string]string{"A": "b"}}}
	img := b.made(def)
	require.Equal(t, "FROM scratch\n--build-arg A=b CONTEXT\ndata 755 0\ndata/a 644 0\ncontent of a\n", b.read(img, "/from"))
	require.Contains(t, b.said(), "building with docker\nbuilding\n")
	require.Equal(t, img.Digest, b.made(def).Digest)
	require.NotContains(t, b.said(), "building", "it is built once")
	require.Empty(t, b.leftovers())

	def.Base.Context = ""
	require.NotContains(t, b.read(b.made(def), "/from"), "data")
	def.Base.Dockerfile = "FROM FAIL\n"
	_, err := b.Build(t.Context(), "default", def, nil)
	require.ErrorContains(t, err, "step 1 of 1, Dockerfile: docker could not build it; the end of its output:\nbuilding with docker\nbuilding")
	require.True(t, fault.Is(err, fault.BuildFailed))
	require.Empty(t, b.leftovers())
	_, err = b.Build(t.Context(), "other", def, nil)
	require.ErrorContains(t, err, "only for the workspace default")
	require.True(t, fault.Is(err, fault.Invalid))
	t.Setenv("PATH", t.TempDir())
	_, err = b.Build(t.Context(), "default", def, nil)
	require.True(t, fault.Is(err, fault.Machine), err)
}

func TestContextsThatAreWrong(t *testing.T) {
	b := newBench(t)
	b.containers = &registries{b: b}
	b.open()
	bin := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(bin, "docker"), []byte("#!/bin/sh\ntest \"$1\" = version\n"), 0o755))
	t.Setenv("PATH", bin)
	for name, c := range map[string]struct {
		tar  []byte
		want string
	}{
		"leads out":     {tarOf("../x", "y"), `the name "../x" leads out of the context`},
		"absolute":      {tarOf("/etc/x", "y"), `the name "/etc/x" leads out of the context`},
		"through links": {linked(t, "/etc"), "path escapes"},
		"twice":         {tarOf("a", "1", "a", "2"), "file exists"},
		"device":        {tarOf("dev", "WHITEOUT"), "dev: it is neither a file, a directory nor a symbolic link"},
		"cut":           {tarOf("a", "1")[:300], "the context is not a readable tar"},
		"other content": {nil, "its content has the digest sha256:"},
	} {
		t.Run(name, func(t *testing.T) {
			sum := sha256.Sum256(c.tar)
			id := "sha256:" + hex.EncodeToString(sum[:])
			if c.tar == nil {
				c.tar = tarOf("a", "1")
			}
			b.blobs["default "+id] = c.tar
			_, err := b.Build(t.Context(), "default", Definition{Base: Base{Kind: FromDockerfile, Dockerfile: "FROM x", Context: id}}, nil)
			require.ErrorContains(t, err, c.want)
			require.Empty(t, b.leftovers())
		})
	}
}

// linked is a tar with a symbolic link and a file through it.
func linked(t *testing.T, target string) []byte {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	require.NoError(t, w.WriteHeader(&tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: target}))
	require.NoError(t, w.WriteHeader(&tar.Header{Name: "l/x", Typeflag: tar.TypeReg}))
	require.NoError(t, w.Close())
	return buf.Bytes()
}

func (b *bench) made(d Definition) *image.Image {
	b.t.Helper()
	img, err := b.define(d)
	require.NoError(b.t, err)
	return img
}

func (b *bench) said() string { return strings.Join(b.events, "") }

func (b *bench) read(img *image.Image, path string) string {
	b.t.Helper()
	tree, err := img.Tree(b.t.Context())
	require.NoError(b.t, err)
	n, err := tree.Lookup(path)
	require.NoError(b.t, err)
	content, err := img.Content(b.t.Context(), n)
	require.NoError(b.t, err)
	return string(content)
}

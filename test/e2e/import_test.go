package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/require"
)

// imported is what `brisk image import --json` says.
type imported struct {
	Digest    string  `json:"digest"`
	Name      string  `json:"name"`
	Files     int     `json:"files"`
	Bytes     int64   `json:"bytes"`
	Chunks    int     `json:"chunks"`
	NewChunks int     `json:"new_chunks"`
	NewBytes  int64   `json:"new_bytes"`
	MS        float64 `json:"ms"`
}

// member is one of a tar.
type member struct {
	tar.Header
	content []byte
}

func dir(name string) member {
	return member{Header: tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}}
}

func file(name string, content string) member {
	return member{Header: tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}, content: []byte(content)}
}

func symlink(name, to string) member {
	return member{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777}}
}

func hardlink(name, to string) member {
	return member{Header: tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to, Mode: 0o644}}
}

// archive is a tar of members.
func archive(t *testing.T, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		require.NoError(t, w.WriteHeader(&m.Header))
		_, err := w.Write(m.content)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

// guest is a static program that can do little: a small image is made of it.
func guest(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "probe")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", path, "brisk.dev/brisk/internal/sandbox/sandboxtest/probe")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// Every form of one image gives the same files, and the second form nothing new to store.
func TestImportOfEveryForm(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	program, err := os.ReadFile(guest(t))
	require.NoError(t, err)
	probe := file("bin/probe", string(program))
	probe.Mode = 0o755
	layer := archive(t, dir("bin/"), probe, dir("etc/"), file("etc/greeting", "hello\n"), symlink("etc/link", "greeting"), hardlink("etc/again", "etc/greeting"))

	forms := map[string]string{}
	forms["tar"] = s.write(t, "root.tar", string(layer))
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err = z.Write(layer)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	forms["tar.gz"] = s.write(t, "root.tar.gz", packed.String())
	forms["directory"] = filepath.Join(s.files, "root")
	require.NoError(t, os.Mkdir(forms["directory"], 0o755))
	require.NoError(t, quietly("", "tar", "-xf", forms["tar"], "-C", forms["directory"]))

	img := ociImage(t, layer, v1.Config{Entrypoint: []string{"/bin/probe"}, Cmd: []string{"echo", "from the image"}, WorkingDir: "/etc", Env: []string{"COLOUR=blue"}})
	forms["docker archive"] = filepath.Join(s.files, "docker.tar")
	tag, err := name.NewTag("example/probe:1")
	require.NoError(t, err)
	require.NoError(t, tarball.WriteToFile(forms["docker archive"], tag, img))
	forms["OCI layout"] = filepath.Join(s.files, "layout")
	l, err := layout.Write(forms["OCI layout"], empty.Index)
	require.NoError(t, err)
	require.NoError(t, l.AppendImage(img))
	forms["OCI archive"] = filepath.Join(s.files, "oci.tar")
	require.NoError(t, quietly("", "tar", "-cf", forms["OCI archive"], "-C", forms["OCI layout"], "."))

	var first imported
	s.ask(t, &first, "image", "import", forms["tar"], "--name", "first")
	require.Equal(t, "first", first.Name)
	require.Len(t, first.Digest, 64)
	require.Equal(t, 6, first.Files, "root, two directories, two files, one of which has two names, a link")
	require.Equal(t, int64(len(program)+len("hello\n")), first.Bytes)
	require.Equal(t, (len(program)+128<<10-1)/(128<<10)+1, first.Chunks)
	require.Equal(t, first.Chunks, first.NewChunks)
	require.Greater(t, first.NewBytes, int64(1<<18))
	require.Greater(t, first.MS, 0.0)

	for form, path := range forms {
		t.Run(form, func(t *testing.T) {
			image := strings.NewReplacer(" ", "-", ".", "-").Replace(strings.ToLower(form))
			var r imported
			s.ask(t, &r, "image", "import", path, "--name", image)
			require.Equal(t, image, r.Name)
			require.Zero(t, r.NewChunks)
			require.Zero(t, r.NewBytes)
			require.Equal(t, first.Bytes, r.Bytes)
			require.Equal(t, "hello\n", s.ok(t, "run", "--image", image, "--block-network", "--", "/bin/probe", "read", "/etc/again"))
			if strings.HasPrefix(form, "tar") {
				require.Equal(t, first.Digest, r.Digest)
			}
			if strings.HasPrefix(form, "OCI") || form == "docker archive" {
				require.Equal(t, "from the image\n", s.ok(t, "run", "--image", image, "--block-network")+"\n")
				var d struct {
					Digest string `json:"digest"`
					Config struct {
						Env        []string `json:"env"`
						Entrypoint []string `json:"entrypoint"`
						Cmd        []string `json:"cmd"`
						Workdir    string   `json:"workdir"`
					} `json:"config"`
				}
				s.ask(t, &d, "image", "inspect", image)
				require.Equal(t, r.Digest, d.Digest)
				require.Equal(t, []string{"COLOUR=blue"}, d.Config.Env)
				require.Equal(t, []string{"/bin/probe"}, d.Config.Entrypoint)
				require.Equal(t, []string{"echo", "from the image"}, d.Config.Cmd)
				require.Equal(t, "/etc", d.Config.Workdir)
			}
		})
	}

	table := s.ok(t, "image", "ls")
	for _, n := range []string{"NAME", "first", "tar-gz", "directory", "docker-archive", "oci-layout", "oci-archive", first.Digest[:12]} {
		require.Contains(t, table, n)
	}
	require.Contains(t, s.ok(t, "image", "inspect", "first"), "mounted     ")
	require.Contains(t, s.ok(t, "image", "inspect", first.Digest[:10]), first.Digest)

	// A name at a time; with the last one the image goes, and only that.
	s.ok(t, "image", "rm", "first", "tar")
	require.Equal(t, "hello\n", s.ok(t, "run", "--image", "tar-gz", "--block-network", "--", "/bin/probe", "read", "/etc/greeting"))
	s.ok(t, "image", "rm", "tar-gz")
	s.fails(t, 3, "image", "inspect", first.Digest)
	s.fails(t, 3, "image", "rm", "first")
	require.Equal(t, "hello\n", s.ok(t, "run", "--image", "oci-layout", "--block-network", "--", "/bin/probe", "read", "/etc/greeting"))

	p := s.begin(t, "run", "--image", "directory", "--block-network", "--", "/bin/probe", "sleep")
	eventually(t, "the container runs", func() bool {
		var all []instance
		s.ask(t, &all, "ps")
		return len(all) == 1
	})
	e := s.refused(t, 2, "image", "rm", "directory")
	require.Equal(t, complaint{"exists", "remove image directory: the image is in use", "Wait until nothing runs on it, or stop what does; `brisk ps` shows it."}, e)
	require.NoError(t, p.cmd.Process.Kill())
	eventually(t, "the container is gone", func() bool {
		var all []instance
		s.ask(t, &all, "ps")
		return len(all) == 0
	})
	s.ok(t, "image", "rm", "directory")
}

func ociImage(t *testing.T, layer []byte, config v1.Config) v1.Image {
	t.Helper()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer)), nil })
	require.NoError(t, err)
	img, err := mutate.AppendLayers(empty.Image, l)
	require.NoError(t, err)
	img, err = mutate.ConfigFile(img, &v1.ConfigFile{Architecture: "amd64", OS: "linux", Config: config, RootFS: rootFS(t, img)})
	require.NoError(t, err)
	return img
}

func rootFS(t *testing.T, img v1.Image) v1.RootFS {
	t.Helper()
	c, err := img.ConfigFile()
	require.NoError(t, err)
	return c.RootFS
}

package e2e

import (
	"archive/tar"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sparseBomb is a tar with one file that pretends to have many GiB of zeros: a
// PAX sparse file of format 1.0, whose map says that all is a hole.
func sparseBomb(t *testing.T, size string) []byte {
	t.Helper()
	sparseMap := make([]byte, 512)
	copy(sparseMap, "1\n"+size+"\n0\n")
	records := ""
	for _, r := range []string{"GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=bomb", "GNU.sparse.realsize=" + size} {
		records += paxRecord(r)
	}
	pax := make([]byte, 512)
	copy(pax, records)
	require.LessOrEqual(t, len(records), len(pax))
	header := func(name string, kind byte, size int) []byte {
		b := make([]byte, 512)
		copy(b, name)
		copy(b[100:], "0000644\x000000000\x000000000\x00")
		copy(b[124:], octal(size, 11))
		copy(b[136:], octal(0, 11))
		copy(b[148:], "        ")
		b[156] = kind
		copy(b[257:], "ustar\x0000")
		sum := 0
		for _, c := range b {
			sum += int(c)
		}
		copy(b[148:], octal(sum, 6)+"\x00 ")
		return b
	}
	out := append(header("PaxHeaders/bomb", 'x', len(records)), pax...)
	out = append(out, header("GNUSparseFile.0/bomb", '0', len(sparseMap))...)
	out = append(out, sparseMap...)
	return append(out, make([]byte, 1024)...)
}

func paxRecord(s string) string {
	for n := len(s) + 3; ; n++ {
		if r := strconv.Itoa(n) + " " + s + "\n"; len(r) == n {
			return r
		}
	}
}

func octal(n, digits int) string {
	s := ""
	for range digits {
		s = string(rune('0'+n&7)) + s
		n >>= 3
	}
	return s
}

func TestImportOfBadArchives(t *testing.T) {
	t.Parallel()
	s := shared(t)
	outside := filepath.Join(s.files, "outside")
	require.NoError(t, os.WriteFile(outside, []byte("secret"), 0o644))
	good := archive(t, dir("d/"), file("d/f", strings.Repeat("content ", 50_000)), file("d/g", "x"))
	device := member{Header: tar.Header{Typeflag: tar.TypeBlock, Name: "sda", Devmajor: 8, Devminor: 0, Mode: 0o666}}

	// What is refused, each with one message.
	refused := []struct {
		name    string
		content []byte
		code    int
		class   string
		message string
	}{
		{"a name that leads out", archive(t, file("a", "1"), file("../../evil", "2")), 2, "invalid", `entry "../../evil": the name leads outside of the image`},
		{"a hard link to outside", archive(t, hardlink("link", "../"+outside)), 2, "invalid", "the name leads outside of the image"},
		{"a hard link to nothing", archive(t, hardlink("link", "nothing")), 2, "invalid", `hard link to "nothing": there is no such file`},
		{"cut off in a file", good[:200_000], 2, "invalid", "the tar archive ends too early: it is truncated"},
		{"cut off in a header", good[:700], 2, "invalid", "the tar archive ends too early: it is truncated"},
		{"empty", nil, 2, "invalid", "the file is empty"},
		{"no archive", []byte(strings.Repeat("hello world\n", 1000)), 2, "invalid", "it is neither a tar archive nor a directory"},
		{"half a gzip", []byte("\x1f\x8b\x08\x00\x00\x00"), 2, "invalid", "truncated"},
	}
	for _, tt := range refused {
		t.Run(tt.name, func(t *testing.T) {
			path := s.write(t, "bad.tar", string(tt.content))
			e := s.refused(t, tt.code, "image", "import", path, "--name", "bad")
			require.Equal(t, tt.class, e.Class)
			require.Contains(t, e.Message, tt.message)
			require.Contains(t, e.Message, "import "+path)
			require.NotContains(t, e.Message, "\n")
			s.fails(t, 3, "image", "inspect", "bad")
		})
	}

	// What looks dangerous and is harmless inside.
	t.Run("links to outside", func(t *testing.T) {
		path := s.write(t, "links.tar", string(archive(t, file("real", "r\n"), symlink("abs", outside), symlink("up", "../../../.."+outside), symlink("loop", "loop"), symlink("root", "/real"), symlink("dir", "/"), file("dir/through", "t\n"))))
		var r imported
		s.ask(t, &r, "image", "import", path, "--name", "links")
		layered := s.write(t, "layered.tar", string(archive(t, file("x", "x"))))
		s.ok(t, "image", "import", layered, "--name", "layered")
		require.NoFileExists(t, "/through")
		require.NoFileExists(t, "/real")
	})
	t.Run("devices", func(t *testing.T) {
		path := s.write(t, "devices.tar", string(archive(t, device, file("a", "1"))))
		s.ok(t, "image", "import", path, "--name", "devices")
	})
	t.Run("absolute names", func(t *testing.T) {
		path := s.write(t, "absolute.tar", string(archive(t, file("/brisk-e2e-absolute", "1"))))
		s.ok(t, "image", "import", path, "--name", "absolute")
		require.NoFileExists(t, "/brisk-e2e-absolute")
	})
	t.Run("10 GB of zeros", func(t *testing.T) {
		var before, after struct {
			OriginBytes int64 `json:"origin_bytes"`
		}
		s.ask(t, &before, "store", "stats")
		path := s.write(t, "bomb.tar", string(sparseBomb(t, "10000000000")))
		var r imported
		s.ask(t, &r, "image", "import", path, "--name", "bomb")
		require.Equal(t, int64(10_000_000_000), r.Bytes)
		require.Zero(t, r.NewChunks, "zeros are holes")
		s.ask(t, &after, "store", "stats")
		require.Less(t, after.OriginBytes-before.OriginBytes, int64(1<<20))
	})
	t.Run("a bomb of the wrong kind", func(t *testing.T) {
		path := s.write(t, "bomb.tar", string(sparseBomb(t, "20000000000000000")))
		e := s.refused(t, 2, "image", "import", path, "--name", "bad")
		require.Equal(t, "invalid", e.Class)
		require.Contains(t, e.Message, "exceed")
	})

	require.Equal(t, complaint{"not_found", "import " + filepath.Join(s.files, "nope.tar") + ": no such file or directory", ""},
		s.refused(t, 3, "image", "import", filepath.Join(s.files, "nope.tar"), "--name", "bad"))
	path := s.write(t, "good.tar", string(good))
	require.Equal(t, complaint{"invalid", "import " + path + `: "/etc/../x" cannot be an image's name`, "Names are up to 200 letters, digits and ._:/@+- and begin with a letter or digit."},
		s.refused(t, 2, "image", "import", path, "--name", "/etc/../x"))
	require.Equal(t, "brisk: import wants --name NAME\n", s.fails(t, 2, "image", "import", path))
	s.ok(t, "image", "import", path, "--name", "good")
	require.Equal(t, "x\n", s.in(t, "echo", "x").out, "the server is well")
}

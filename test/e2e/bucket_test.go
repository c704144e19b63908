package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/store/s3/s3test"
)

// Images in a bucket: what is on the machine starts whatever becomes of the bucket and of the
// credentials; what is not is an error that says why; and nothing has to be mended when they are back.
func TestImagesInABucket(t *testing.T) {
	t.Parallel()
	bucket := s3test.Start(t)
	keys := []string{"AWS_ACCESS_KEY_ID=" + s3test.AccessKey, "AWS_SECRET_ACCESS_KEY=" + s3test.SecretKey, "AWS_EC2_METADATA_DISABLED=true"}
	place := bucket.URL("team")
	s := &site{data: filepath.Join(t.TempDir(), "data"), files: t.TempDir(), env: append(keys, "BRISK_STORE="+place)}
	t.Cleanup(func() { s.close(t) })

	program, err := os.ReadFile(guest(t))
	require.NoError(t, err)
	probe := file("probe", string(program))
	probe.Mode = 0o755
	s.ok(t, "image", "import", s.write(t, "image.tar", string(archive(t, probe, file("data", "content\n")))), "--name", "image")
	run := []string{"run", "--image", "image", "--block-network", "--", "/probe", "read", "/data"}
	require.Equal(t, "content\n", s.ok(t, run...))
	require.Contains(t, s.ok(t, "store", "stats"), "packs in s3://bucket/team?endpoint="+bucket.Endpoint())
	doctor := s.brisk(t, "doctor")
	require.Contains(t, doctor.out, "s3://bucket/team?endpoint="+bucket.Endpoint())

	// What lies in the bucket says nothing about what is in the image.
	sealed := 0
	require.NoError(t, filepath.WalkDir(filepath.Join(bucket.Dir, "data"), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		require.NotContains(t, string(b), "content\n")
		require.NotContains(t, path, "image")
		sealed++
		return err
	}))
	require.Greater(t, sealed, 4)

	// The bucket is gone, while the server runs and when it starts; where the store is, it knows.
	bucket.Kill()
	require.Equal(t, "content\n", s.ok(t, run...))
	require.Contains(t, s.ok(t, "store", "stats"), "does not answer")
	s.ok(t, "down")
	s.env = keys
	require.Equal(t, "content\n", s.ok(t, run...))
	e := s.refused(t, 7, "image", "import", filepath.Join(s.files, "image.tar"), "--name", "other")
	require.Equal(t, "unavailable", e.Class)
	require.Contains(t, e.Hint, bucket.Addr)

	// The machine has lost its cache: now the bucket is needed, and the error says so.
	empty := func() {
		s.ok(t, "down")
		require.NoError(t, os.RemoveAll(filepath.Join(s.data, "cache")))
	}
	empty()
	r := s.brisk(t, run...)
	require.NotEqual(t, 0, r.code, "%s", r)
	require.NotContains(t, r.out, "content")
	require.Contains(t, r.err, bucket.Addr, "%s", r)
	require.NoError(t, bucket.Restart(t.Context()))
	s.ok(t, "down") // what found the bucket gone tries again within seconds; a new server at once
	require.Equal(t, "content\n", s.ok(t, run...))

	// Wrong credentials: the same, with another reason.
	s.ok(t, "down")
	s.env = append(keys[:1:1], "AWS_SECRET_ACCESS_KEY=expired", keys[2])
	require.Equal(t, "content\n", s.ok(t, run...))
	empty()
	r = s.brisk(t, run...)
	require.NotEqual(t, 0, r.code, "%s", r)
	require.Contains(t, r.err, "credentials", "%s", r)
	require.NotContains(t, r.err, s3test.SecretKey)

	// Another place is no place for this data directory.
	s.ok(t, "down")
	s.env = append(keys, "BRISK_STORE=s3://other")
	require.Contains(t, s.fails(t, 2, "image", "ls"), "not s3://other")
	s.env = keys
	require.Equal(t, "content\n", s.ok(t, run...))
	require.Equal(t, 1, strings.Count(s.ok(t, "image", "ls"), "image "))
}

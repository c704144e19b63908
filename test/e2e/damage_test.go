package e2e

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/blake3"
)

// victim is a site with an image of its own, "victim", whose file /data is 400 KiB
// of random bytes: three whole chunks and a part, stored as they are.
type victim struct {
	*site
	image   imported
	content []byte
}

func newVictim(t *testing.T, env ...string) *victim {
	t.Helper()
	v := &victim{site: newSite(t, env...), content: make([]byte, 400<<10)}
	_, _ = rand.Read(v.content)
	program, err := os.ReadFile(guest(t))
	require.NoError(t, err)
	probe := file("probe", string(program))
	probe.Mode = 0o755
	path := v.write(t, "victim.tar", string(archive(t, probe, file("data", string(v.content)))))
	v.ask(t, &v.image, "image", "import", path, "--name", "victim")
	return v
}

// read reads /data in a container on the image.
func (v *victim) read(t *testing.T) result {
	t.Helper()
	return v.brisk(t, "run", "--image", "victim", "--block-network", "--", "/probe", "read", "/data")
}

// chunk is a piece of /data that a search for in a file can find.
func (v *victim) chunk(n int) []byte { return v.content[n<<17 : n<<17+4096] }

// spoil changes the bytes of a file where some content is; it tells whether it is there.
func spoil(t *testing.T, path string, content []byte) bool {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	at := bytes.Index(b, content)
	if at >= 0 {
		flip(t, path, int64(at+100))
	}
	return at >= 0
}

func (v *victim) wellOtherwise(t *testing.T) {
	t.Helper()
	require.Equal(t, "well\n", v.in(t, "echo", "well").out, "other images work")
}

// What rots in the slab while nobody runs is found by a check, even where a
// natively mounted image would read it, and fetched again.
func TestDamagedSlab(t *testing.T) {
	t.Parallel()
	v := newVictim(t)
	require.Equal(t, string(v.content), v.read(t).out)
	v.ok(t, "down")
	require.True(t, spoil(t, filepath.Join(v.data, "cache", "slab"), v.chunk(1)))
	var check struct {
		Cache struct {
			Damaged  int      `json:"damaged"`
			Problems []string `json:"problems"`
		} `json:"cache"`
		Damaged []string `json:"damaged"`
	}
	v.ask(t, &check, "store", "fsck")
	require.Equal(t, 1, check.Cache.Damaged)
	require.Empty(t, check.Cache.Problems)
	require.Empty(t, check.Damaged, "no image has lost anything")
	r := v.read(t)
	require.Equal(t, 0, r.code, "%s", r.err)
	require.Equal(t, string(v.content), r.out)
	v.ask(t, &check, "store", "fsck")
	require.Zero(t, check.Cache.Damaged)
	v.wellOtherwise(t)

	// The index, or the slab's very header: all is fetched again.
	for _, name := range []string{"slab.idx", "slab"} {
		v.ok(t, "down")
		flip(t, filepath.Join(v.data, "cache", name), 9)
		r = v.read(t)
		require.Equal(t, string(v.content), r.out, name)
	}
}

// What rots below a native mount that is in use is what its containers read, until a
// check finds it. Then the page cache forgets it as well, without a new mount.
func TestDamageUnderANativeMount(t *testing.T) {
	t.Parallel()
	v := newVictim(t)
	require.Equal(t, string(v.content), v.read(t).out)
	const native = "brisk_mounted_images kind=native"
	require.Eventually(t, func() bool { return readMetrics(t, v.ok(t, "metrics"))[native] == 1 }, patience, 50*time.Millisecond)
	require.True(t, spoil(t, filepath.Join(v.data, "cache", "slab"), v.chunk(1)))
	bad := v.read(t)
	require.Len(t, bad.out, len(v.content))
	require.NotEqual(t, string(v.content), bad.out, "the kernel reads the slab, and asks nobody")

	var check struct {
		Cache struct {
			Damaged  int      `json:"damaged"`
			Mounted  int      `json:"mounted"`
			Problems []string `json:"problems"`
		} `json:"cache"`
	}
	v.ask(t, &check, "store", "fsck")
	require.Equal(t, 1, check.Cache.Damaged)
	require.Equal(t, 1, check.Cache.Mounted)
	require.Empty(t, check.Cache.Problems)
	require.Equal(t, string(v.content), v.read(t).out)
	n := readMetrics(t, v.ok(t, "metrics"))
	require.EqualValues(t, 1, n[native], "it is the same mount")
	require.EqualValues(t, 1, n["brisk_scrub_mended_chunks_total"])
}

// A chunk whose only copy is damaged fails the read, never gives other bytes, and
// says what is the matter; everything else goes on.
func TestDamagedPack(t *testing.T) {
	t.Parallel()
	v := newVictim(t)
	v.ok(t, "down")
	hit := 0
	for _, pack := range below(filepath.Join(v.data, "store", "default", "packs")) {
		if isFile(pack) && spoil(t, pack, v.chunk(2)) {
			hit++
		}
	}
	require.Equal(t, 1, hit)
	require.NoError(t, os.RemoveAll(filepath.Join(v.data, "cache")))
	r := v.read(t)
	require.NotEqual(t, 0, r.code)
	require.Contains(t, r.err, "input/output error")
	require.LessOrEqual(t, len(r.out), 2<<17)
	require.True(t, bytes.HasPrefix(v.content, []byte(r.out)), "no wrong byte gets out")
	v.wellOtherwise(t)

	// Importing the same again mends it.
	var again imported
	v.ask(t, &again, "image", "import", filepath.Join(v.files, "victim.tar"), "--name", "mended")
	require.Equal(t, v.image.Digest, again.Digest)
	r = v.read(t)
	require.Equal(t, 0, r.code, "%s", r.err)
	require.Equal(t, string(v.content), r.out)
}

func TestDamagedManifest(t *testing.T) {
	t.Parallel()
	v := newVictim(t)
	v.ok(t, "down")
	local := filepath.Join(v.data, "images", "default", "manifests", v.image.Digest+".json")
	origin := filepath.Join(v.data, "store", "default", "records", "manifests", v.image.Digest)
	require.FileExists(t, origin)

	// The copy here: the origin has another.
	flip(t, local, 30)
	require.Equal(t, string(v.content), v.read(t).out)
	v.ok(t, "down")

	// Both.
	flip(t, local, 30)
	flip(t, origin, 30)
	e := v.refused(t, 70, "run", "--image", "victim", "--block-network", "--", "/probe", "echo", "x")
	require.Equal(t, "corrupt", e.Class)
	require.Contains(t, e.Message, "manifest")
	require.NotEmpty(t, e.Hint)
	require.Contains(t, v.ok(t, "image", "ls", "--all"), v.debian(t)[:12], "the others are listed")
	v.wellOtherwise(t)

	var again imported
	v.ask(t, &again, "image", "import", filepath.Join(v.files, "victim.tar"), "--name", "victim")
	require.Equal(t, v.image.Digest, again.Digest)
	require.Equal(t, string(v.content), v.read(t).out)
}

// The metadata that the kernel mounts is checked before it is.
func TestDamagedMetadata(t *testing.T) {
	t.Parallel()
	v := newVictim(t)
	v.ok(t, "down")
	spoiled := 0
	for _, path := range below(filepath.Join(v.data, "images", "default", "meta")) {
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		if sum := blake3.Sum256(b); len(b) < 1<<20 && hex.EncodeToString(sum[:]) == filepath.Base(path) {
			flip(t, path, int64(len(b)-1))
			spoiled++
		}
	}
	require.GreaterOrEqual(t, spoiled, 1)
	require.Equal(t, string(v.content), v.read(t).out, "it is taken from the origin again")
}

package cluster

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// dataSize is what each image has besides its program: many chunks, which do not
// compress, so that bytes on the wire are bytes of chunks.
const dataSize = 6 << 20

// image imports an image of new content, and gives what reading it prints.
func (m *machine) image(name string) (want string) {
	t := m.lab.t
	t.Helper()
	root := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "srv"), 0o755))
	b, err := os.ReadFile(readerBin)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(root, "srv", "reader"), b, 0o755))
	data := make([]byte, dataSize)
	_, _ = rand.Read(data)
	require.NoError(t, os.WriteFile(filepath.Join(root, "srv", "data"), data, 0o644))
	m.brisk("image", "import", root, "--name", name)
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// read runs the image's program, which reads all of it.
func (m *machine) read(image string) string {
	m.lab.t.Helper()
	return strings.TrimSpace(m.brisk("run", "--image", image, "--block-network", "--", "/srv/reader", "/srv/data"))
}

// TestThreeMachines is the life of a cluster.
func TestThreeMachines(t *testing.T) {
	l := newLab(t)
	c, a, b := l.machine(1, "c"), l.machine(2, "a"), l.machine(3, "b")
	c.up("--store", l.url)
	one := c.image("one")
	require.Equal(t, one, c.read("one"))

	// Joining: one token for each machine, once.
	token := strings.TrimSpace(c.brisk("node", "token"))
	a.brisk("node", "join", "--node", "a", token)
	code, _, errs := b.try("node", "join", "--node", "b", token)
	require.Equal(t, 2, code)
	require.Contains(t, errs, "this token has been used by another machine")
	b.brisk("node", "join", "--node", "b", strings.TrimSpace(c.brisk("node", "token")))
	a.up()
	b.up()
	for m, others := range map[*machine][]string{a: {"b", "c"}, b: {"a", "c"}, c: {"a", "b"}} {
		m.waitPeers(others...)
	}

	// What another machine has does not come from the origin.
	fromOrigin := a.fromOrigin(func() { require.Equal(t, one, a.read("one")) })
	require.Less(t, fromOrigin, int64(dataSize/4))
	require.GreaterOrEqual(t, a.nodes().Peers.Hits, int64(dataSize/(128<<10)))

	// A machine that swallows all that is sent to it: the other one answers.
	c.cut()
	fromOrigin = b.fromOrigin(func() { require.Equal(t, one, b.read("one")) })
	require.Less(t, fromOrigin, int64(dataSize/2))
	c.mend()
	b.waitPeers("a", "c")

	// A machine that dies.
	two := c.image("two")
	require.Equal(t, two, c.read("two"))
	a.kill()
	require.Equal(t, two, b.read("two"))
	require.Eventually(t, func() bool {
		for _, m := range c.nodes().Members {
			if m.Name == "a" {
				return !m.Alive
			}
		}
		return false
	}, soon, 50*time.Millisecond, "all know that it is dead")
	b.waitPeers("c")

	// Nobody else there: the origin.
	c.kill()
	three := "three"
	fromOrigin = b.fromOrigin(func() { three = b.image("three"); require.Equal(t, three, b.read("three")) })
	require.Positive(t, fromOrigin)
	c.up()
	b.waitPeers("c")

	// A machine that lies: nothing of it is believed, and it is found out.
	self, err := os.Executable()
	require.NoError(t, err)
	liar := a.command(self)
	liar.Env = append(liar.Env, liarVariable+"="+filepath.Join(a.data, "cluster"))
	liar.Stderr = os.Stderr
	require.NoError(t, liar.Start())
	defer func() { _ = liar.Process.Kill(); _ = liar.Wait() }()
	c.waitPeers("a", "b")
	require.Equal(t, three, c.read("three"))
	for _, p := range c.nodes().Peers.Peers {
		if p.Name == "a" {
			require.Equal(t, "convicted", p.State, "%+v", p)
			require.Positive(t, p.Lies)
			require.Zero(t, p.Reads)
		}
	}
	require.Contains(t, c.brisk("node", "ls"), "convicted")

	// A machine that is removed is a member for nobody.
	c.brisk("node", "rm", "a")
	require.Eventually(t, func() bool { return len(b.nodes().Members) == 2 }, soon, 50*time.Millisecond)
	require.Len(t, c.nodes().Members, 2)
	code, _, errs = c.try("node", "rm", "a")
	require.Equal(t, 3, code)
	require.Contains(t, errs, `the cluster has no node "a"`)
}

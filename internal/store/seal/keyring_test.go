package seal

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/fault"
)

func open(t *testing.T, dir string) *Keyring {
	t.Helper()
	r, err := OpenKeyring(dir)
	require.NoError(t, err)
	return r
}

func TestKeyring(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	r := open(t, dir)
	_, err := r.Find("default")
	require.True(t, fault.Is(err, fault.NotFound), err)
	k, err := r.Keys("default")
	require.NoError(t, err)
	again, err := r.Keys("default")
	require.NoError(t, err)
	require.Same(t, k, again)
	require.Equal(t, "default", k.Workspace())
	for path, mode := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, "default.key"): 0o600} {
		st, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, mode, st.Mode().Perm(), path)
	}
	reopened, err := open(t, dir).Keys("default")
	require.NoError(t, err)
	require.Equal(t, k.ID(), reopened.ID())
	other, err := r.Keys("other")
	require.NoError(t, err)
	require.NotEqual(t, k.ID(), other.ID())
	l, err := r.Workspaces()
	require.NoError(t, err)
	require.Equal(t, []string{"default", "other"}, l)
	for _, bad := range []string{"", "../x", "A", "a/b", ".hidden", strings.Repeat("a", 64), "-a"} {
		_, err := r.Keys(bad)
		require.True(t, fault.Is(err, fault.Invalid), "%q: %v", bad, err)
	}
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 2, "nothing temporary is left")
}

// TestKeyringTogether lets many make the first key at once, over several keyrings
// as several processes would: there is one.
func TestKeyringTogether(t *testing.T) {
	dir := t.TempDir()
	ids := make([]ID, 16)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			r, err := OpenKeyring(dir) // which sweeps, while others write
			if err != nil {
				t.Error(err)
				return
			}
			k, err := r.Keys("default")
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = k.ID()
		})
	}
	wg.Wait()
	for _, id := range ids {
		require.Equal(t, ids[0], id)
	}
}

func TestKeyringTravels(t *testing.T) {
	a, b := open(t, t.TempDir()), open(t, t.TempDir())
	ka, err := a.Keys("default")
	require.NoError(t, err)
	line, err := a.Export("default")
	require.NoError(t, err)
	require.Len(t, strings.Fields(line), 5)
	for range 2 {
		w, err := b.Import("  " + line + "\n")
		require.NoError(t, err)
		require.Equal(t, "default", w)
	}
	kb, err := b.Keys("default")
	require.NoError(t, err)
	require.Equal(t, ka.ID(), kb.ID())

	c := open(t, t.TempDir())
	kc, err := c.Keys("default")
	require.NoError(t, err)
	_, err = c.Import(line)
	require.True(t, fault.Is(err, fault.Exists), err)
	require.ErrorContains(t, err, kc.ID().String()+", not "+ka.ID().String())
	still, err := open(t, c.dir).Keys("default")
	require.NoError(t, err)
	require.Equal(t, kc.ID(), still.ID())

	_, err = a.Export("nobody")
	require.True(t, fault.Is(err, fault.NotFound), err)
	for _, bad := range []string{"", "hello", line[:len(line)-3], strings.Replace(line, "default", "defauld", 1), strings.Replace(line, "key 1", "key 2", 1)} {
		_, err := b.Import(bad)
		require.True(t, fault.Is(err, fault.Invalid), "%q: %v", bad, err)
		require.NotEmpty(t, fault.HintOf(err))
	}
}

// TestKeyringDamage never makes a new key in place of one that cannot be read.
func TestKeyringDamage(t *testing.T) {
	line := formatKey("default", [32]byte{1})
	for name, text := range map[string]string{
		"empty": "", "cut": line[:40], "flipped": strings.Replace(line, "0100", "0200", 1),
		"of another": formatKey("other", [32]byte{1}), "newer": strings.Replace(line, "key 1", "key 2", 1),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "default.key")
			require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			_, err := open(t, dir).Keys("default")
			require.True(t, fault.Is(err, fault.Corrupt), err)
			require.Contains(t, fault.HintOf(err), "backup")
			b, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, text, string(b))
		})
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "default.key")
	require.NoError(t, os.WriteFile(path, []byte(line), 0o644))
	_, err := open(t, dir).Keys("default")
	require.True(t, fault.Is(err, fault.Machine), err)
	require.Contains(t, fault.HintOf(err), "chmod 600 "+path)
	require.NoError(t, os.Chmod(path, 0o600))
	_, err = open(t, dir).Keys("default")
	require.NoError(t, err)
}

// TestKeyringSweeps removes what a process that died was writing.
func TestKeyringSweeps(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, tempPrefix+"1"), []byte("half"), 0o600))
	open(t, dir)
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, files)
}

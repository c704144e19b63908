package memo

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/store"
)

var work, made = store.Sum([]byte("work")), store.Sum([]byte("made"))

func TestMemoSurvivesReopening(t *testing.T) {
	dir := t.TempDir()
	m, err := Open(dir)
	require.NoError(t, err)
	_, known, err := m.Get(work)
	require.NoError(t, err)
	require.False(t, known)
	require.NoError(t, m.Put(work, store.Sum([]byte("old"))))
	require.NoError(t, m.Put(work, made))

	m, err = Open(dir)
	require.NoError(t, err)
	got, known, err := m.Get(work)
	require.NoError(t, err)
	require.True(t, known)
	require.Equal(t, made, got)

	require.NoError(t, m.Drop(work))
	require.NoError(t, m.Drop(work))
	_, known, err = m.Get(work)
	require.NoError(t, err)
	require.False(t, known)
}

func TestDamageCountsAsUnknown(t *testing.T) {
	good := string(encode(work, made))
	for name, content := range map[string]string{
		"empty":        "",
		"cut off":      good[:len(good)-1],
		"other work":   string(encode(made, made)),
		"other image":  good[:80] + "0" + good[81:],
		"next version": "brisk-memo 2" + good[12:],
		"longer":       good + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			m, err := Open(dir)
			require.NoError(t, err)
			file := filepath.Join(dir, work.String())
			require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
			_, known, err := m.Get(work)
			require.NoError(t, err)
			require.False(t, known)
			require.NoFileExists(t, file)
		})
	}
}

func TestOpenSweepsUnfinishedWrites(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".new-123"), []byte("half"), 0o600))
	_, err := Open(dir)
	require.NoError(t, err)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

func FuzzDecode(f *testing.F) {
	f.Add(encode(work, made))
	f.Add([]byte("brisk-memo 1 "))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decode(work, b)
		if err == nil && string(encode(work, got)) != string(b) {
			t.Fatalf("decode took %q for the memo of %s", b, got)
		}
	})
}

func TestSweepForgetsWhatIsGone(t *testing.T) {
	dir := t.TempDir()
	m, err := Open(dir)
	require.NoError(t, err)
	gone, damaged := store.Sum([]byte("gone")), store.Sum([]byte("damaged"))
	require.NoError(t, m.Put(work, made))
	require.NoError(t, m.Put(gone, gone))
	require.NoError(t, os.WriteFile(filepath.Join(dir, damaged.String()), []byte("x"), 0o600))
	for _, dry := range []bool{true, false} {
		n, err := m.Sweep(func(d store.Digest) bool { return d == made }, dry)
		require.NoError(t, err)
		require.Equal(t, 2, n)
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.Equal(t, work.String(), left[0].Name())
}

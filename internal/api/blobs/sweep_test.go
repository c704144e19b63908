package blobs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const worldRef = "sha256:486ea46224d1bb4fb680f34f7c9ad96a8f24ec88be73ea8e5a6c65260e9cb8a7" // of "world"

func TestSweep(t *testing.T) {
	s, root := open(t)
	put := func(workspace, ref, text string) {
		require.NoError(t, s.Put(t.Context(), workspace, ref, strings.NewReader(text)))
	}
	put("default", helloRef, "hello")
	put("default", worldRef, "world")
	put("other", helloRef, "hello")
	keep := func(workspace, ref string) bool { return workspace == "default" && ref == helloRef }

	n, _, err := s.Sweep(time.Now().Add(-time.Hour), keep, false)
	require.NoError(t, err)
	require.Zero(t, n, "all are young")

	old := time.Now().Add(-2 * time.Hour)
	for _, f := range files(t, root) {
		require.NoError(t, os.Chtimes(filepath.Join(root, f), old, old))
	}
	has, err := s.Has("default", worldRef) // somebody relies on it now
	require.NoError(t, err)
	require.True(t, has)
	before := time.Now().Add(-time.Hour)
	for _, dry := range []bool{true, false} {
		n, bytes, err := s.Sweep(before, keep, dry)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.EqualValues(t, 5, bytes)
	}
	has, err = s.Has("other", helloRef)
	require.NoError(t, err)
	require.False(t, has)
	require.Len(t, files(t, root), 2)

	n, _, err = s.Sweep(time.Now().Add(time.Hour), func(string, string) bool { return false }, false)
	require.NoError(t, err)
	require.Equal(t, 2, n)
}

package claims

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFigures fails when a document's figures are not those of the results.
func TestFigures(t *testing.T) {
	root := filepath.Join("..", "..")
	tables, err := Tables(filepath.Join(root, "bench", "results"))
	require.NoError(t, err)
	for name, table := range tables {
		path := filepath.Join(root, name)
		have, err := os.ReadFile(path)
		require.NoError(t, err)
		want, err := Insert(string(have), table)
		require.NoError(t, err, name)
		if os.Getenv("UPDATE_DOCS") != "" {
			require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
			continue
		}
		require.Equal(t, want, string(have), "%s has other figures than bench/results: UPDATE_DOCS=1 go test ./bench/claims", name)
	}
}

func TestInsert(t *testing.T) {
	got, err := Insert("a\n"+begin+"old\n"+end+"b\n", "| new |\n")
	require.NoError(t, err)
	require.Equal(t, "a\n"+begin+"\n| new |\n\n"+end+"b\n", got)
	again, err := Insert(got, "| new |\n")
	require.NoError(t, err)
	require.Equal(t, got, again)
	_, err = Insert("nothing", "x")
	require.ErrorContains(t, err, "no markers")
}

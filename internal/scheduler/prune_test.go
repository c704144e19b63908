package scheduler

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/function"
	"brisk.dev/brisk/internal/store"
)

func TestPrune(t *testing.T) {
	dir, n := t.TempDir(), &fakeNode{}
	before := open(t, dir, n)
	names := map[string]store.Digest{}
	for _, q := range []string{"called", "young", "old", "useless"} {
		names[q] = register(t, before, q, function.Spec{})
	}
	path := func(q string) string { return filepath.Join(dir, "functions", names[q].String()+".json") }
	require.NoError(t, os.WriteFile(filepath.Join(dir, "functions", store.Sum(nil).String()+".json"), []byte("{"), 0o600))
	ago := time.Now().Add(-48 * time.Hour)
	require.NoError(t, os.Chtimes(path("called"), ago, ago))
	require.NoError(t, os.Chtimes(path("old"), ago, ago))

	s := open(t, dir, n) // the next server, as if the first were gone
	_, rec, _ := call(s, names["called"], "x")
	require.Equal(t, CallSucceeded, rec.State)
	st, err := os.Stat(path("called"))
	require.NoError(t, err)
	require.Less(t, time.Since(st.ModTime()), time.Hour, "the use is noted")

	usable := func(f *function.Function) bool { return f.Qualname != "useless" }
	for _, dry := range []bool{true, false} {
		kept, removed, err := s.Prune(time.Now().Add(-24*time.Hour), usable, dry)
		require.NoError(t, err)
		require.Equal(t, 3, removed, "the old, the useless and the damaged one")
		var got []string
		for _, k := range kept {
			require.False(t, k.Retired)
			got = append(got, k.Qualname)
		}
		slices.Sort(got)
		require.Equal(t, []string{"called", "young"}, got)
	}
	require.FileExists(t, path("called"))
	require.FileExists(t, path("young"))
	require.NoFileExists(t, path("old"))
	require.NoFileExists(t, path("useless"))
	_, err = s.pool("default", names["old"])
	require.EqualError(t, err, "no function "+names["old"].Short()+" is registered")
}

func TestPruneTellsWhatIsRetired(t *testing.T) {
	s, _, old := setup(t, function.Spec{})
	now := register(t, s, "median", function.Spec{})
	kept, removed, err := s.Prune(time.Now().Add(time.Hour), func(*function.Function) bool { return false }, false)
	require.NoError(t, err)
	require.Zero(t, removed, "both have been registered with this server")
	got := map[store.Digest]bool{}
	for _, k := range kept {
		got[k.Digest()] = k.Retired
	}
	require.Equal(t, map[store.Digest]bool{old: true, now: false}, got)
}

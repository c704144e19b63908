package image

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDiff(t *testing.T) {
	w := newWorld(t)
	changed := file("etc/conf", "two")
	changed.Mode, changed.Uid = 0o600, 5
	a := w.must("a", dirEntry("etc"), file("etc/conf", "one"), file("gone", "g"), file("same", "s"), dirEntry("becomes"), file("becomes/x", "x"),
		file("linked", "l"), hardlink("again", "linked"), symlink("soft", "same"))
	b := w.must("b", dirEntry("etc"), changed, file("etc/new", "new!"), file("same", "s"), file("becomes", "file"),
		file("linked", "l"), symlink("soft", "gone"))
	d, err := Diff(t.Context(), a, b)
	require.NoError(t, err)
	require.Equal(t, []Change{
		{Path: "/again", Kind: Removed, Size: 1},
		{Path: "/becomes", Kind: Changed, What: []string{"kind", "content", "mode"}, Size: 4},
		{Path: "/becomes/x", Kind: Removed, Size: 1},
		{Path: "/etc/conf", Kind: Changed, What: []string{"content", "mode", "owner"}, Size: 3},
		{Path: "/etc/new", Kind: Added, Size: 4},
		{Path: "/gone", Kind: Removed, Size: 1},
		{Path: "/linked", Kind: Changed, What: []string{"names"}, Size: 1},
		{Path: "/soft", Kind: Changed, What: []string{"link"}},
	}, d.Changes)
	require.EqualValues(t, len("s")+len("l"), d.SharedBytes)
	require.EqualValues(t, len("one")+len("g")+len("x"), d.OwnBytesA)
	require.EqualValues(t, len("two")+len("new!")+len("file"), d.OwnBytesB)

	same, err := Diff(t.Context(), a, a)
	require.NoError(t, err)
	require.Empty(t, same.Changes)
	require.NotNil(t, same.Changes)
}

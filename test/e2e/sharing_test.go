package e2e

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// What an image has alone is known while others come and go.
func TestImagesSayWhatTheyShare(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for name, members := range map[string][]member{
		"left":  {file("both", "12345"), file("left", "1234567")},
		"right": {file("both", "12345"), file("right", "1")},
	} {
		s.ok(t, "image", "import", s.write(t, name+".tar", string(archive(t, members...))), "--name", name)
	}
	type shares struct {
		Name        string `json:"name"`
		OwnBytes    *int64 `json:"own_bytes"`
		SharedBytes *int64 `json:"shared_bytes"`
	}
	own := func() map[string][2]int64 {
		var l []shares
		require.NoError(t, json.Unmarshal([]byte(s.ok(t, "image", "ls", "--json")), &l))
		found := map[string][2]int64{}
		for _, i := range l {
			if i.Name == "left" || i.Name == "right" {
				found[i.Name] = [2]int64{*i.OwnBytes, *i.SharedBytes}
			}
		}
		return found
	}
	require.Equal(t, map[string][2]int64{"left": {7, 5}, "right": {1, 5}}, own())
	var one shares
	s.ask(t, &one, "image", "inspect", "left")
	require.Equal(t, [2]int64{7, 5}, [2]int64{*one.OwnBytes, *one.SharedBytes})
	s.ok(t, "image", "rm", "right")
	require.Equal(t, map[string][2]int64{"left": {12, 0}}, own())
	require.Contains(t, s.ok(t, "image", "inspect", "left"), "12 B that no other image has")
}

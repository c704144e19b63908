package cluster

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/fault"
)

func FuzzToken(f *testing.F) {
	f.Add(newToken(Fingerprint{7}, []string{"10.0.0.1:7720", "[fd00::1]:1"}).String())
	f.Add("brisk1_")
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		tok, err := ParseToken(s)
		if err != nil {
			require.Equal(t, fault.Invalid, fault.ClassOf(err))
			return
		}
		again, err := ParseToken(tok.String())
		require.NoError(t, err)
		require.Equal(t, tok, again)
	})
}

// FuzzMessages reads bytes as each of the messages. What is accepted is within
// bounds, and is the same after another journey.
func FuzzMessages(f *testing.F) {
	for _, m := range []any{
		joinRequest{Version: 1, Token: "0123456789abcdef", Secret: make([]byte, 32), Name: "a", Request: []byte{1}},
		joinAnswer{Version: 1, Certificate: []byte{1}, Control: []string{"a:1"}, Origin: "s3://b", Keys: map[string]string{"w": "k"}},
		beatRequest{Version: 1, Incarnation: "x", Address: "a:1", Brisk: "v1"},
		beatAnswer{Version: 1, Time: time.Unix(1, 0).UTC(), Beat: 2000, Members: []Member{{Name: "a", Address: "a:1"}}, Control: []string{"a:1"}},
		keysRequest{Version: 1, Workspace: "shared"},
		keysAnswer{Version: 1, Keys: map[string]string{"w": "k"}},
		map[string]int{"version": 2},
	} {
		b, err := json.Marshal(m)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, kind := range []func() message{
			func() message { return &joinRequest{} }, func() message { return &joinAnswer{} },
			func() message { return &beatRequest{} }, func() message { return &beatAnswer{} },
			func() message { return &keysRequest{} }, func() message { return &keysAnswer{} },
		} {
			m := kind()
			if err := decode(bytes.NewReader(b), maxRequest, m); err != nil {
				require.Equal(t, fault.Invalid, fault.ClassOf(err))
				continue
			}
			first, err := json.Marshal(m)
			require.NoError(t, err)
			again := kind()
			require.NoError(t, decode(bytes.NewReader(first), maxAnswer, again))
			second, err := json.Marshal(again)
			require.NoError(t, err)
			require.Equal(t, string(first), string(second))
			if r, is := m.(*joinRequest); is {
				require.True(t, ValidName(r.Name))
				require.Len(t, r.Secret, 32)
			}
		}
	})
}

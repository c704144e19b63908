package api_test

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/fault"
)

func TestFrameReader(t *testing.T) {
	r := api.NewFrameReader(strings.NewReader(
		`{"type":"log","stream":"stdout","len":3}` + "\na\nb" +
			`{"type":"log","stream":"stderr","len":4}` + "\nskip" +
			`{"type":"exit","code":7,"oom":true}` + "\n"))
	f, err := r.Next()
	require.NoError(t, err)
	require.Equal(t, "stdout", f.Stream)
	b, err := io.ReadAll(r.Payload())
	require.NoError(t, err)
	require.Equal(t, "a\nb", string(b))
	f, err = r.Next()
	require.NoError(t, err)
	require.Equal(t, "stderr", f.Stream)
	require.False(t, f.Last())
	f, err = r.Next()
	require.NoError(t, err)
	require.Equal(t, 7, f.Code)
	require.True(t, f.OOM)
	require.True(t, f.Last())
	_, err = r.Next()
	require.Equal(t, io.EOF, err)
}

func TestFrameReaderRefuses(t *testing.T) {
	tests := []struct {
		name, in string
		class    fault.Class
		err      error
	}{
		{"half a header", `{"type":"log"`, fault.Internal, io.ErrUnexpectedEOF},
		{"half a payload", `{"type":"log","len":5}` + "\nab", fault.Internal, io.ErrUnexpectedEOF},
		{"no JSON", "hello\n", fault.Corrupt, nil},
		{"no type", "{}\n", fault.Corrupt, nil},
		{"negative length", `{"type":"log","len":-1}` + "\n", fault.Corrupt, nil},
		{"endless header", strings.Repeat("x", 9<<20), fault.Corrupt, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := api.NewFrameReader(strings.NewReader(tt.in))
			var err error
			for err == nil {
				_, err = r.Next()
			}
			require.Equal(t, tt.class, fault.ClassOf(err))
			if tt.err != nil {
				require.Equal(t, tt.err, err)
			}
		})
	}
}

func TestPayloadThatEndsEarly(t *testing.T) {
	r := api.NewFrameReader(strings.NewReader(`{"type":"log","len":5}` + "\nab"))
	_, err := r.Next()
	require.NoError(t, err)
	b, err := io.ReadAll(r.Payload())
	require.Equal(t, "ab", string(b))
	require.Equal(t, io.ErrUnexpectedEOF, err)
}

// FuzzFrameReader reads anything to its end: no panic, no endless loop, no
// payload longer than its header says.
func FuzzFrameReader(f *testing.F) {
	f.Add(`{"type":"log","stream":"stdout","len":3}` + "\nabc" + `{"type":"result","call":"c","ms":1,"len":0}` + "\n")
	f.Add(`{"type":"error","error":{"class":"invalid","message":"m"}}` + "\n")
	f.Add(`{"type":"log","len":9223372036854775807}` + "\nabc")
	f.Add("\n\n{}")
	f.Fuzz(func(t *testing.T, in string) {
		r := api.NewFrameReader(strings.NewReader(in))
		for range len(in) + 1 {
			fr, err := r.Next()
			if err != nil {
				return
			}
			if fr.Error != nil {
				_ = fr.Fault()
				_, _ = fr.Exception()
			}
			b, err := io.ReadAll(r.Payload())
			if int64(len(b)) > fr.Len || (err == nil && int64(len(b)) != fr.Len) {
				t.Fatalf("%d bytes of %d, %v", len(b), fr.Len, err)
			}
		}
		t.Fatal("more frames than bytes")
	})
}

package node

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDrainHandsOnAllThatWasWritten(t *testing.T) {
	o, err := newOutput()
	require.NoError(t, err)
	defer o.Close()
	stdout, stderr := o.ends()
	for range 50 { // the pumps compete with Drain for the same bytes
		got := map[string]*bytes.Buffer{"stdout": {}, "stderr": {}}
		o.Attach(func(stream string, p []byte) { got[stream].Write(p) })
		_, err := io.WriteString(stdout, strings.Repeat("o", 70_000))
		require.NoError(t, err)
		_, err = io.WriteString(stderr, "e")
		require.NoError(t, err)
		o.Drain()
		o.Attach(nil)
		require.Equal(t, 70_000, got["stdout"].Len())
		require.Equal(t, "e", got["stderr"].String())
	}
}

func TestNobodyAttachedLosesNothingButKeepsTheTail(t *testing.T) {
	o, err := newOutput()
	require.NoError(t, err)
	defer o.Close()
	stdout, _ := o.ends()
	_, err = io.WriteString(stdout, strings.Repeat("x", 100_000)+"the end")
	require.NoError(t, err)
	o.Drain()
	tail := o.Tail()
	require.Len(t, tail, tailSize)
	require.True(t, strings.HasSuffix(tail, "the end"))
	o.Attach(nil)
	require.Empty(t, o.Tail(), "what was printed for one call does not explain the next")
}

func TestASlowSinkHoldsTheWriterBack(t *testing.T) {
	o, err := newOutput()
	require.NoError(t, err)
	defer o.Close()
	stdout, _ := o.ends()
	entered, proceed := make(chan struct{}, 1), make(chan struct{})
	o.Attach(func(string, []byte) {
		select {
		case entered <- struct{}{}:
		default:
		}
		<-proceed
	})
	wrote := make(chan error, 1)
	go func() {
		_, err := stdout.Write(make([]byte, 4<<20)) // more than a pipe holds
		wrote <- err
	}()
	<-entered
	select {
	case <-wrote:
		t.Fatal("4 MiB were written while the sink took nothing")
	default:
	}
	close(proceed)
	require.NoError(t, <-wrote)
}

func TestWriterThatEnds(t *testing.T) {
	o, err := newOutput()
	require.NoError(t, err)
	o.closeEnds()
	o.Wait()
	o.Close()
}

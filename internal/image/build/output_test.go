package build

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSlowReaderMissesTheBeginningAndNothingElse(t *testing.T) {
	o := newOutput()
	piece := bytes.Repeat([]byte("x"), 1<<20)
	for range 6 {
		o.Write(piece)
	}
	o.Write([]byte("end"))
	p, next, more := o.from(0)
	require.EqualValues(t, 6<<20+3, next)
	require.NotNil(t, more)
	require.True(t, strings.HasPrefix(string(p), "... ("), "%.40q", p)
	require.True(t, bytes.HasSuffix(p, []byte("xend")))
	require.LessOrEqual(t, len(p), maxOutput+100)

	p, next, more = o.from(next)
	require.Empty(t, p)
	select {
	case <-more:
		t.Fatal("there is nothing more yet")
	default:
	}
	o.Write([]byte("!"))
	<-more
	p, next, _ = o.from(next)
	require.Equal(t, "!", string(p))
	o.end()
	_, _, more = o.from(next)
	require.Nil(t, more)
}

func TestTailIsWhatATerminalWouldShow(t *testing.T) {
	o := newOutput()
	require.Empty(t, o.tail(3))
	o.Write([]byte("one\ntwo\r\n10%\r50%\r100%\nlong " + strings.Repeat("x", 3000) + "\n\n\n"))
	require.Equal(t, "two\n100%\nlong "+strings.Repeat("x", 1995)+"...", o.tail(3))
}

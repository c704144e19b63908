package api

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/fault"
)

func TestAServerThatHangsIsAnError(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "api.sock")
	l, err := net.Listen("unix", socket) // takes connections, and never answers
	require.NoError(t, err)
	defer l.Close()
	c := Dial(socket, "default")
	defer c.Close()
	c.lookup = 20 * time.Millisecond
	_, err = c.Instances(context.Background())
	require.Equal(t, fault.Timeout, fault.ClassOf(err))
	require.EqualError(t, err, "the server has not answered for 20ms")
	require.Equal(t, "`brisk down` ends a server that hangs.", fault.HintOf(err))
}

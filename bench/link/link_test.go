package link

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The link's delay is at least what was asked for, and its rate at most: a loaded
// machine can only be slower.
func TestDelayAndRate(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	const roundTrip, rate = 20 * time.Millisecond, 50e6
	l, err := Open(t.TempDir(), roundTrip, rate)
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	go serve(listener, func(c net.Conn) { _, _ = c.Write([]byte("far")) })
	address, err := l.Forward(listener.Addr().String())
	require.NoError(t, err)
	began := time.Now()
	c, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer c.Close()
	assert.GreaterOrEqual(t, time.Since(began), roundTrip)
	said := make([]byte, 3)
	_, err = c.Read(said)
	require.NoError(t, err)
	assert.Equal(t, "far", string(said))

	speed, err := l.Throughput(2 << 20)
	require.NoError(t, err)
	assert.Less(t, speed, rate/8)
	assert.Greater(t, l.Passed(), int64(2<<20))
}

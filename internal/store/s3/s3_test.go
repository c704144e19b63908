package s3_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/s3"
	"brisk.dev/brisk/internal/store/s3/s3test"
	"brisk.dev/brisk/internal/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open gives the origin of a URL, closed when the test ends.
func open(t *testing.T, url string) *s3.Origin {
	t.Helper()
	c, err := s3.ParseURL(url, os.Getenv)
	require.NoError(t, err)
	o, err := s3.New(c)
	require.NoError(t, err)
	t.Cleanup(func() { o.Close() })
	return o
}

func TestOrigin(t *testing.T) {
	s3test.Setenv(t)
	server := s3test.Start(t)
	n := 0
	t.Run("Bucket", func(t *testing.T) {
		storetest.TestOrigin(t, func(t *testing.T) store.Origin {
			n++
			return open(t, server.URL(fmt.Sprintf("stores/%d", n)))
		})
	})
	t.Run("Unconditional", func(t *testing.T) {
		storetest.TestOrigin(t, func(t *testing.T) store.Origin {
			n++
			o := open(t, server.URL(fmt.Sprintf("stores/%d", n))+"&conditional=off")
			return o
		})
	})
	t.Run("WholeBucket", func(t *testing.T) {
		storetest.TestOrigin(t, func(t *testing.T) store.Origin {
			n++
			require.NoError(t, os.Mkdir(filepath.Join(server.Dir, "data", fmt.Sprintf("bucket-%d", n)), 0o700))
			return open(t, fmt.Sprintf("s3://bucket-%d?endpoint=%s", n, server.Endpoint()))
		})
	})
}

// Large objects go up in parts, from files and from streams, and are whole or not there.
func TestMultipart(t *testing.T) {
	s3test.Setenv(t)
	server := s3test.Start(t)
	o := open(t, server.URL("w"))
	data := storetest.Data(1, 18<<20+5)
	path := filepath.Join(t.TempDir(), "pack")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	for name, r := range map[string]io.Reader{"file": file, "bytes": bytes.NewReader(data), "stream": io.MultiReader(bytes.NewReader(data))} {
		key := "packs/ab/" + name
		require.NoError(t, o.Put(t.Context(), key, r))
		got, err := o.Open(t.Context(), key, 0)
		require.NoError(t, err)
		b, err := io.ReadAll(got)
		require.NoError(t, err)
		got.Close()
		require.True(t, bytes.Equal(b, data), name)
		part := make([]byte, 1000)
		require.NoError(t, o.ReadAt(t.Context(), key, part, 16<<20-500))
		require.True(t, bytes.Equal(part, data[16<<20-500:][:1000]), name)
		// Again: nothing is sent.
		require.NoError(t, o.Put(t.Context(), key, failing{}))
	}
	// A stream that breaks leaves nothing, also not a part.
	broken := io.MultiReader(bytes.NewReader(data), failing{})
	err = o.Put(t.Context(), "packs/ab/broken", broken)
	require.Equal(t, fault.Internal, fault.ClassOf(err), "%v", err)
	_, err = o.Size(t.Context(), "packs/ab/broken")
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	aborted, err := o.Sweep(t.Context(), 0)
	require.NoError(t, err)
	require.Zero(t, aborted)
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("a bad disk") }

// The server is killed while a large object goes up: nothing is half there, the
// same origin goes on when the server is back, and the leftover is swept.
func TestServerKilledWhilePutting(t *testing.T) {
	s3test.Setenv(t)
	server := s3test.Start(t)
	o := open(t, server.URL("w"))
	require.NoError(t, o.Put(t.Context(), "packs/ab/before", bytes.NewReader(storetest.Data(1, 1000))))
	data := storetest.Data(2, 24<<20)
	err := o.Put(t.Context(), "packs/ab/big", &killing{Reader: bytes.NewReader(data), after: 20 << 20, kill: server.Kill})
	require.Equal(t, fault.Unavailable, fault.ClassOf(err), "%v", err)
	require.NotEmpty(t, fault.HintOf(err))
	err = o.ReadAt(t.Context(), "packs/ab/before", make([]byte, 10), 0)
	require.Equal(t, fault.Unavailable, fault.ClassOf(err), "%v", err)
	require.ErrorIs(t, err, store.ErrRefused)
	require.Contains(t, fault.HintOf(err), server.Addr)

	require.NoError(t, server.Restart(t.Context()))
	_, err = o.Size(t.Context(), "packs/ab/big")
	require.Equal(t, fault.NotFound, fault.ClassOf(err), "%v", err)
	aborted, err := o.Sweep(t.Context(), time.Hour)
	require.NoError(t, err)
	require.Zero(t, aborted, "an upload that may be in progress")
	aborted, err = o.Sweep(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, 1, aborted)
	require.NoError(t, o.Put(t.Context(), "packs/ab/big", bytes.NewReader(data)))
	got := make([]byte, len(data))
	require.NoError(t, o.ReadAt(t.Context(), "packs/ab/big", got, 0))
	require.True(t, bytes.Equal(got, data))
	require.NoError(t, o.ReadAt(t.Context(), "packs/ab/before", make([]byte, 1000), 0))
}

// killing kills after so many bytes were read. It cannot be sought in.
type killing struct {
	io.Reader
	after int
	kill  func()
}

func (k *killing) Read(p []byte) (int, error) {
	n, err := k.Reader.Read(p)
	if k.after -= n; k.after < 0 && k.kill != nil {
		k.kill()
		k.kill = nil
	}
	return n, err
}

// Two servers of Brisk: many goroutines of each count together in one object.
func TestSwapRace(t *testing.T) {
	s3test.Setenv(t)
	server := s3test.Start(t)
	origins := []*s3.Origin{open(t, server.URL("w")), open(t, server.URL("w"))}
	var wg sync.WaitGroup
	for i := range 16 {
		o := origins[i%2]
		wg.Go(func() {
			for done := 0; done < 5; {
				b, v, err := o.Get(t.Context(), "records/counter", 1000)
				if err != nil && !fault.Is(err, fault.NotFound) {
					t.Error(err)
					return
				}
				if _, err = o.Swap(t.Context(), "records/counter", v, append(b, 'x')); err == nil {
					done++
				} else if !fault.Is(err, fault.Exists) {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	size, err := origins[0].Size(t.Context(), "records/counter")
	require.NoError(t, err)
	require.EqualValues(t, 80, size)
}

// What a real server refuses, and what is said about it.
func TestRefused(t *testing.T) {
	s3test.Setenv(t)
	server := s3test.Start(t)
	tests := []struct {
		name  string
		env   map[string]string
		url   string
		class fault.Class
		text  string // in the error
		hint  string // in the hint
	}{
		{"wrong secret", map[string]string{"AWS_SECRET_ACCESS_KEY": "wrong"}, server.URL("w"), fault.Machine, "SignatureDoesNotMatch", "does not know these credentials"},
		{"unknown key", map[string]string{"AWS_ACCESS_KEY_ID": "nobody"}, server.URL("w"), fault.Machine, "the server answers", "does not know these credentials"},
		{"no credentials", map[string]string{"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, server.URL("w"), fault.Machine, "no credentials", "~/.aws/credentials"},
		{"no such profile", nil, server.URL("w") + "&profile=nobody", fault.Machine, "no credentials", "~/.aws/credentials"},
		{"anonymous", nil, server.URL("w") + "&anonymous=true", fault.Machine, "AccessDenied", "s3:GetObject"},
		{"no such bucket", nil, "s3://nowhere?endpoint=" + server.Endpoint(), fault.Invalid, "there is no bucket nowhere", "Create bucket nowhere on"},
		{"wrong region", nil, server.URL("w") + "&region=mars-1", fault.Invalid, "", "region="},
		{"nobody listens", nil, "s3://bucket?endpoint=http://127.0.0.1:1", fault.Unavailable, "connection refused", "127.0.0.1:1"},
		{"no such host", nil, "s3://bucket?endpoint=http://brisk.invalid", fault.Unavailable, "", "endpoint"},
		{"TLS to a plain server", nil, "s3://bucket?endpoint=https://" + server.Addr, fault.Unavailable, "", "http://"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for name, value := range test.env {
				t.Setenv(name, value)
			}
			o := open(t, test.url)
			_, _, getErr := o.Get(t.Context(), "VERSION", 100)
			listErr := o.List(t.Context(), "", func(store.Object) error { return nil })
			putErr := o.Put(t.Context(), "key", bytes.NewReader([]byte("x")))
			_, swapErr := o.Swap(t.Context(), "key", "", []byte("x"))
			for op, err := range map[string]error{"get": getErr, "list": listErr, "put": putErr, "swap": swapErr} {
				require.Equal(t, test.class, fault.ClassOf(err), "%s: %v", op, err)
				require.ErrorContains(t, err, test.text, op)
				require.Contains(t, fault.HintOf(err), test.hint, "%s: %v", op, err)
			}
		})
	}
}

// Keys that are replaced in the shared file are used without a restart.
func TestRenewedCredentials(t *testing.T) {
	s3test.Setenv(t)
	server := s3test.Start(t)
	file := filepath.Join(t.TempDir(), "credentials")
	write := func(secret string) {
		require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "[team]\naws_access_key_id = %s\naws_secret_access_key = %s\n", s3test.AccessKey, secret), 0o600))
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
	write("expired")
	o := open(t, server.URL("w")+"&profile=team")
	err := o.Put(t.Context(), "key", bytes.NewReader([]byte("x")))
	require.Equal(t, fault.Machine, fault.ClassOf(err), "%v", err)
	write(s3test.SecretKey)
	require.NoError(t, o.Put(t.Context(), "key", bytes.NewReader([]byte("x"))))
}

func TestCancelled(t *testing.T) {
	s3test.Setenv(t)
	o := open(t, "s3://bucket?endpoint=http://127.0.0.1:1")
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	_, err := o.Size(ctx, "key")
	require.Equal(t, fault.Timeout, fault.ClassOf(err), "%v", err)
}

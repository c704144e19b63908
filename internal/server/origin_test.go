package server

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store/s3/s3test"
)

func TestFindPlace(t *testing.T) {
	s3test.Setenv(t)
	p := Paths{Data: t.TempDir()}
	find := func(given string) Place {
		t.Helper()
		l, err := FindPlace(p, given)
		require.NoError(t, err)
		return l
	}
	require.Equal(t, Place{URL: filepath.Join(p.Data, "store"), Own: true}, find(""))
	require.True(t, find(filepath.Join(p.Data, "store")).Own)
	require.Equal(t, "/srv/images", find("/srv/images").URL)

	t.Setenv("AWS_REGION", "eu-west-1")
	l := find("s3://team/brisk")
	require.Equal(t, "s3://team/brisk?region=eu-west-1", l.URL)
	require.NoError(t, l.remember(p))

	// A restart needs neither the name nor the environment; what was said before is the same place.
	t.Setenv("AWS_REGION", "")
	for _, given := range []string{"", "s3://team/brisk", "s3://team/brisk?region=eu-west-1"} {
		l := find(given)
		require.Equal(t, "s3://team/brisk?region=eu-west-1", l.URL, given)
		require.Equal(t, "eu-west-1", l.Bucket.Region)
		require.False(t, l.Own)
	}
	for _, given := range []string{"s3://other", "s3://team/brisk?region=us-east-1", "/srv/images"} {
		_, err := FindPlace(p, given)
		require.Equal(t, fault.Invalid, fault.ClassOf(err))
		require.ErrorContains(t, err, "the store of "+p.Data+" is s3://team/brisk?region=eu-west-1, not ")
		require.Contains(t, fault.HintOf(err), "--data")
	}
	require.NoError(t, os.WriteFile(placeFile(p), []byte(`{"version":2}`), 0o600))
	_, err := FindPlace(p, "")
	require.Equal(t, fault.Corrupt, fault.ClassOf(err))
}

// Images that are in the data directory are not lost sight of.
func TestFindPlaceKeepsWhatIsThere(t *testing.T) {
	p := Paths{Data: t.TempDir()}
	require.NoError(t, os.MkdirAll(filepath.Join(p.Data, "store", "packs"), 0o700))
	_, err := FindPlace(p, "/srv/images")
	require.Equal(t, fault.Invalid, fault.ClassOf(err))
	require.ErrorContains(t, err, "has images in a store of its own")
}

func TestOpenBucket(t *testing.T) {
	s3test.Setenv(t)
	log := slog.New(slog.DiscardHandler)
	server := s3test.Start(t)
	p := Paths{Data: t.TempDir()}
	o, err := openOrigin(t.Context(), p, server.URL("team"), log)
	require.NoError(t, err)
	require.NoError(t, o.Put(t.Context(), "key", strings.NewReader("x")))
	s := o.state(nil)
	require.True(t, s.Up)
	require.Contains(t, s.URL, "s3://bucket/team?endpoint=http://127.0.0.1:")
	require.NotContains(t, s.URL, s3test.SecretKey)
	require.Positive(t, s.Requests)
	o.close()

	// Another machine, with the same bucket.
	place, err := FindPlace(Paths{Data: t.TempDir()}, server.URL("team"))
	require.NoError(t, err)
	require.NoError(t, CheckPlace(t.Context(), place))

	// Down at the restart: it starts, and says so when it is asked.
	server.Kill()
	o, err = openOrigin(t.Context(), p, "", log)
	require.NoError(t, err)
	_, err = o.Size(t.Context(), "key")
	require.Equal(t, fault.Unavailable, fault.ClassOf(err), "%v", err)
	s = o.state(err)
	require.False(t, s.Up)
	require.Contains(t, s.Error, "connection refused")
	require.Contains(t, s.Hint, server.Addr)
	// Down at the first start: nothing is begun.
	fresh := Paths{Data: t.TempDir()}
	_, err = openOrigin(t.Context(), fresh, server.URL("team"), log)
	require.Equal(t, fault.Unavailable, fault.ClassOf(err), "%v", err)
	require.NoFileExists(t, placeFile(fresh))
	require.Error(t, CheckPlace(t.Context(), place))
	// Up again: what was there is there.
	require.NoError(t, server.Restart(t.Context()))
	require.Eventually(t, func() bool { // it is asked again when it has been left alone for a while
		size, err := o.Size(t.Context(), "key")
		return err == nil && size == 1
	}, time.Minute, 50*time.Millisecond)
	o.close()

	// A bucket of another version of Brisk, and credentials that are wrong from the start.
	require.NoError(t, os.WriteFile(filepath.Join(server.Dir, "data", "bucket", "team", "VERSION"), []byte("brisk store 9\n"), 0o600))
	_, err = openOrigin(t.Context(), fresh, server.URL("team"), log)
	require.Equal(t, fault.Machine, fault.ClassOf(err), "%v", err)
	require.ErrorContains(t, err, `the origin has the format "brisk store 9", this Brisk knows "brisk store 1"`)
	require.ErrorContains(t, CheckPlace(t.Context(), place), "brisk store 9")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "wrong")
	_, err = openOrigin(t.Context(), fresh, server.URL("team"), log)
	require.Equal(t, fault.Machine, fault.ClassOf(err), "%v", err)
	require.Contains(t, fault.HintOf(err), "does not know these credentials")
	require.NoFileExists(t, placeFile(fresh))
}

// Two servers, each with data of its own, are told when they are given one directory.
func TestOpenDirectoryOfAnother(t *testing.T) {
	log, dir := slog.New(slog.DiscardHandler), t.TempDir()
	a, err := openOrigin(t.Context(), Paths{Data: t.TempDir()}, dir, log)
	require.NoError(t, err)
	b := Paths{Data: t.TempDir()}
	_, err = openOrigin(t.Context(), b, dir, log)
	require.Equal(t, fault.Invalid, fault.ClassOf(err), "%v", err)
	require.ErrorContains(t, err, "another server uses the store in "+dir)
	require.Contains(t, fault.HintOf(err), "s3://")
	a.close()
	o, err := openOrigin(t.Context(), b, dir, log)
	require.NoError(t, err)
	o.close()
}

package s3_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/s3/s3test"
)

// answer is what a server says to whatever it is asked.
type answer struct {
	status int
	header map[string]string
	body   string
}

func (a answer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("ETag", `"5d41402abc4b2a76b9719d911017c592"`)
	w.Header().Set("Last-Modified", "Tue, 01 Dec 2026 00:00:00 GMT")
	for name, value := range a.header {
		w.Header().Set(name, value)
	}
	w.WriteHeader(a.status)
	if r.Method != http.MethodHead {
		_, _ = io.WriteString(w, a.body)
	}
	if w.Header().Get("Content-Length") != "" && r.Method != http.MethodHead && w.Header().Get("Content-Length") != fmt.Sprint(len(a.body)) {
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler) // cuts the connection
	}
}

// s3Error is an answer with an error.
func s3Error(status int, code string) answer {
	return answer{status: status, header: map[string]string{"Content-Type": "application/xml"},
		body: "<Error><Code>" + code + "</Code><Message>So it is.</Message></Error>"}
}

// serve gives the URL of a store at a server that answers with get and head.
func serve(t *testing.T, get, head http.Handler) string {
	t.Helper()
	s3test.Setenv(t)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			head.ServeHTTP(w, r)
			return
		}
		get.ServeHTTP(w, r)
	}))
	server.Start()
	t.Cleanup(server.Close)
	return "s3://bucket?endpoint=" + server.URL
}

// Answers to "bytes 100 to 109" of an object of 1000 bytes that are not what was asked
// for: never data, and Corrupt only if the object itself is too short.
func TestAnswersToRanges(t *testing.T) {
	part := func(contentRange, length, body string) answer {
		h := map[string]string{"Content-Range": contentRange}
		if length != "" {
			h["Content-Length"] = length
		}
		return answer{http.StatusPartialContent, h, body}
	}
	whole := answer{status: 200, header: map[string]string{"Content-Length": "1000"}, body: strings.Repeat("x", 1000)}
	tests := []struct {
		name string
		get  answer
		size string // of the object, as HEAD says
		want fault.Class
	}{
		{"right", part("bytes 100-109/1000", "", "0123456789"), "1000", ""},
		{"right, total unknown to us", part("bytes 100-109/1000", "10", "0123456789"), "1000", ""},
		{"another range", part("bytes 200-209/1000", "", "0123456789"), "1000", fault.Unavailable},
		{"a range from the beginning", part("bytes 0-9/1000", "", "0123456789"), "1000", fault.Unavailable},
		{"fewer bytes", part("bytes 100-104/1000", "", "01234"), "1000", fault.Unavailable},
		{"more bytes", part("bytes 100-119/1000", "", "01234567890123456789"), "1000", fault.Unavailable},
		{"cut off", part("bytes 100-109/1000", "10", "01234"), "1000", fault.Unavailable},
		{"cut off at once", part("bytes 100-109/1000", "10", ""), "1000", fault.Unavailable},
		{"no sense", part("bytes in the middle", "", "0123456789"), "1000", fault.Unavailable},
		{"all of it", whole, "1000", fault.Unavailable},
		{"empty body, status 200", answer{status: 200}, "1000", fault.Unavailable},
		{"empty object, status 200", answer{status: 200}, "0", fault.Corrupt},
		{"the object ends in it", part("bytes 100-104/105", "", "01234"), "105", fault.Corrupt},
		{"the object ends before it", s3Error(416, "InvalidRange"), "50", fault.Corrupt},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			o := open(t, serve(t, test.get, answer{status: 200, header: map[string]string{"Content-Length": test.size}}))
			p := make([]byte, 10)
			err := o.ReadAt(t.Context(), "key", p, 100)
			require.Equal(t, test.want, fault.ClassOf(err), "%v", err)
			if test.want == "" {
				require.Equal(t, "0123456789", string(p))
			}
		})
	}
}

// The same for whole objects and streams.
func TestAnswersToWhole(t *testing.T) {
	tests := []struct {
		name string
		get  answer
		size string
		want fault.Class
	}{
		{"right", answer{200, map[string]string{"Content-Length": "5"}, "hello"}, "5", ""},
		{"cut off", answer{200, map[string]string{"Content-Length": "5"}, "hel"}, "5", fault.Unavailable},
		{"empty body, status 200", answer{status: 200}, "5", fault.Unavailable},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			o := open(t, serve(t, test.get, answer{status: 200, header: map[string]string{"Content-Length": test.size}}))
			b, v, err := o.Get(t.Context(), "key", 100)
			require.Equal(t, test.want, fault.ClassOf(err), "%v", err)
			if test.want == "" {
				require.Equal(t, "hello", string(b))
				require.EqualValues(t, "5d41402abc4b2a76b9719d911017c592", v)
			}
			if test.name == "empty body, status 200" {
				return // a stream of nothing is for whoever knows how much there is to be
			}
			r, err := o.Open(t.Context(), "key", 0)
			require.NoError(t, err)
			defer r.Close()
			_, err = io.ReadAll(r)
			require.Equal(t, test.want, fault.ClassOf(err), "%v", err)
		})
	}
	o := open(t, serve(t, answer{206, map[string]string{"Content-Range": "bytes 0-4/5"}, "hello"}, answer{status: 200}))
	_, err := o.Open(t.Context(), "key", 3)
	require.Equal(t, fault.Unavailable, fault.ClassOf(err), "%v", err)
}

// What servers answer, what it counts as, and what is said to do about it.
func TestErrorAnswers(t *testing.T) {
	tests := []struct {
		answer  answer
		want    fault.Class
		refused bool // nothing was done
		hint    string
	}{
		{s3Error(404, "NoSuchKey"), fault.NotFound, false, ""},
		{s3Error(404, "NoSuchBucket"), fault.Invalid, false, "Create bucket bucket on"},
		{s3Error(404, "WhoKnows"), fault.Invalid, false, "an S3 server?"},
		{s3Error(403, "AccessDenied"), fault.Machine, false, "s3:PutObject"},
		{s3Error(400, "ExpiredToken"), fault.Machine, false, "have expired"},
		{s3Error(403, "InvalidAccessKeyId"), fault.Machine, false, "does not know"},
		{s3Error(403, "SignatureDoesNotMatch"), fault.Machine, false, "does not know"},
		{s3Error(403, "RequestTimeTooSkewed"), fault.Machine, false, "timedatectl"},
		{answer{status: 403}, fault.Machine, false, "These credentials may not"},
		{s3Error(301, "PermanentRedirect"), fault.Invalid, false, "region="},
		{s3Error(400, "AuthorizationHeaderMalformed"), fault.Invalid, false, "region="},
		{s3Error(500, "InternalError"), fault.Unavailable, false, ""},
		{s3Error(503, "SlowDown"), fault.Unavailable, true, "too much to do"},
		{answer{status: 503}, fault.Unavailable, true, ""},
		{answer{status: 429}, fault.Unavailable, true, ""},
		{answer{status: 502, body: "<html>Bad Gateway</html>"}, fault.Unavailable, false, ""},
		{s3Error(400, "BadDigest"), fault.Unavailable, false, ""},
		{s3Error(400, "IncompleteBody"), fault.Unavailable, false, ""},
		{s3Error(507, "XMinioStorageFull"), fault.DiskFull, false, "make room"},
		{answer{status: 507}, fault.DiskFull, false, "make room"},
		{answer{status: 418}, fault.Invalid, false, "an S3 server?"},
	}
	for _, test := range tests {
		t.Run(fmt.Sprintf("%d %s", test.answer.status, test.answer.body), func(t *testing.T) {
			o := open(t, serve(t, test.answer, test.answer)+"&conditional=off")
			_, _, err := o.Get(t.Context(), "key", 100)
			require.Equal(t, test.want, fault.ClassOf(err), "%v", err)
			require.Contains(t, fault.HintOf(err), test.hint)
			require.Equal(t, test.refused, errors.Is(err, store.ErrRefused), "%v", err)
			require.Contains(t, err.Error(), "s3://bucket/key")
			require.Equal(t, test.want == fault.Machine, errors.Is(err, store.ErrDenied), "%v", err)
			if test.want == fault.NotFound {
				return
			}
			err = o.Put(t.Context(), "key", bytes.NewReader(make([]byte, 10)))
			require.Error(t, err)
			err = o.List(t.Context(), "", func(store.Object) error { return nil })
			require.Equal(t, test.want, fault.ClassOf(err), "list: %v", err)
		})
	}
}

// A server that ignores conditions, or says that it has none, is not trusted with names.
func TestServersWithoutConditions(t *testing.T) {
	for name, put := range map[string]answer{"ignored": {status: 200}, "refused": s3Error(501, "NotImplemented")} {
		t.Run(name, func(t *testing.T) {
			url := serve(t, put, s3Error(404, "NoSuchKey"))
			_, err := open(t, url).Swap(t.Context(), "names/a", "", []byte("x"))
			require.Equal(t, fault.Machine, fault.ClassOf(err), "%v", err)
			require.ErrorContains(t, err, "overwrite each other's changes")
			require.Contains(t, fault.HintOf(err), "conditional=off")
			if name == "ignored" {
				_, err = open(t, url+"&conditional=off").Swap(t.Context(), "names/a", "", []byte("x"))
				require.NoError(t, err)
			}
		})
	}
}

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/scheduler"
	"brisk.dev/brisk/internal/store"
)

// Client talks to one server about one workspace. Its errors are those of the
// server, of class Unavailable where no server answers, and Cancelled or Timeout
// when ctx ends first. Safe for concurrent use.
type Client struct {
	socket    string
	workspace string
	http      *http.Client
	lookup    time.Duration // how long a query may take
}

// Dial makes a client of the server at a unix socket. It does not connect yet.
func Dial(socket, workspace string) *Client {
	return &Client{socket: socket, workspace: workspace, lookup: lookupTimeout, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
		DisableCompression: true,
		IdleConnTimeout:    30 * time.Second,
		ReadBufferSize:     64 << 10,
		WriteBufferSize:    64 << 10,
	}}}
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Info asks the server about itself.
func (c *Client) Info(ctx context.Context) (i Info, err error) {
	err = c.ask(ctx, http.MethodGet, "/v1/info", nil, &i)
	return i, err
}

// Shutdown asks the server to stop. It returns before the server has.
func (c *Client) Shutdown(ctx context.Context) error {
	return c.ask(ctx, http.MethodPost, "/v1/shutdown", nil, nil)
}

// StoreStats measures the store.
func (c *Client) StoreStats(ctx context.Context) (s StoreStats, err error) {
	err = c.ask(ctx, http.MethodGet, "/v1/store", nil, &s)
	return s, err
}

// Metrics reads the machine's numbers, in the text format of Prometheus.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.lookup)
	defer cancel()
	res, err := c.do(ctx, http.MethodGet, "/v1/metrics", nil, nil)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return b, fault.Wrap(err, "read", "the metrics")
}

// HasBlob reports whether the server has the content named by ref, "sha256:HEX".
func (c *Client) HasBlob(ctx context.Context, ref string) (bool, error) {
	err := c.ask(ctx, http.MethodHead, c.in("blobs", ref), nil, nil)
	if fault.Is(err, fault.NotFound) {
		return false, nil
	}
	return err == nil, err
}

// PutBlob uploads the content named by ref.
func (c *Client) PutBlob(ctx context.Context, ref string, r io.Reader) error {
	res, err := c.do(ctx, http.MethodPut, c.in("blobs", ref), r, nil)
	if err == nil {
		res.Body.Close()
	}
	return err
}

// Images lists the workspace's images.
func (c *Client) Images(ctx context.Context) (l []ImageInfo, err error) {
	err = c.ask(ctx, http.MethodGet, c.in("images"), nil, &l)
	return l, err
}

// Image describes one image.
func (c *Client) Image(ctx context.Context, ref string) (d ImageDetail, err error) {
	err = c.ask(ctx, http.MethodGet, c.in("images", ref), nil, &d)
	return d, err
}

// RemoveImage removes an image, or, if ref is a name, that name.
func (c *Client) RemoveImage(ctx context.Context, ref string) error {
	return c.ask(ctx, http.MethodDelete, c.in("images", ref), nil, nil)
}

// Import imports a path of the server's machine. progress (bytes; total is 0
// while it is unknown) may be nil.
func (c *Client) Import(ctx context.Context, q ImportRequest, progress func(done, total int64)) (ImportResult, error) {
	f, err := c.follow(ctx, c.in("images", "import"), q, func(f *Frame, _ io.Reader) error {
		if f.Type == "progress" && progress != nil {
			progress(f.Done, f.Total)
		}
		return nil
	})
	switch {
	case err != nil:
		return ImportResult{}, err
	case f.Import == nil:
		return ImportResult{}, unexpected(f)
	}
	return *f.Import, nil
}

// Build makes an image of a definition (see docs/design/architecture.md).
func (c *Client) Build(ctx context.Context, definition json.RawMessage, sink BuildSink) (store.Digest, error) {
	f, err := c.follow(ctx, c.in("images", "build"), definition, func(f *Frame, payload io.Reader) error {
		switch f.Type {
		case "step":
			return sink.Step(f.Index, int(f.Total), f.Text, f.Cached)
		case "log":
			return eachPiece(payload, sink.Log)
		case "progress":
			return sink.Progress(f.Text)
		}
		return nil
	})
	if err != nil {
		return store.Digest{}, err
	}
	return f.Digest, nil
}

// Register registers a function.
func (c *Client) Register(ctx context.Context, f any) (store.Digest, error) {
	var r registered
	err := c.ask(ctx, http.MethodPost, c.in("functions"), f, &r)
	return r.Function, err
}

// Call calls a function. Its failure is in the outcome, whatever the reason.
func (c *Client) Call(ctx context.Context, function store.Digest, app string, in []byte, sink scheduler.Sink) scheduler.Outcome {
	o, err := c.call(ctx, function, app, in, sink)
	if err != nil {
		return scheduler.Outcome{Kind: scheduler.Failed, Err: err}
	}
	return o
}

func (c *Client) call(ctx context.Context, function store.Digest, app string, in []byte, sink scheduler.Sink) (o scheduler.Outcome, err error) {
	path := c.in("functions", function.String(), "call")
	res, err := c.do(ctx, http.MethodPost, path, bytes.NewReader(in), http.Header{"Brisk-App": {app}}) //nolint:bodyclose // drain closes it
	if err != nil {
		return o, err
	}
	f, err := drain(ctx, res.Body, func(f *Frame, payload io.Reader) error {
		switch f.Type {
		case "accepted":
			return sink.Accepted(f.Call)
		case "log":
			return eachPiece(payload, func(p []byte) error { return sink.Log(f.Stream, p) })
		case "result", "exception":
			o.Payload = make([]byte, f.Len)
			_, err := io.ReadFull(payload, o.Payload)
			return err
		}
		return nil
	})
	if err != nil {
		return o, err
	}
	o.MS = f.MS
	switch f.Type {
	case "result":
		o.Kind = scheduler.Returned
	case "exception":
		e, err := f.Exception()
		if err != nil {
			return o, err
		}
		o.Kind, o.Exception = scheduler.Raised, &e
	default:
		return o, unexpected(f)
	}
	return o, nil
}

// Calls lists the newest calls, newest first; limit 0 leaves it to the server.
func (c *Client) Calls(ctx context.Context, limit int) (l []scheduler.CallRecord, err error) {
	err = c.ask(ctx, http.MethodGet, c.in("calls")+query(map[string]string{"limit": number(limit)}), nil, &l)
	return l, err
}

// CallByID finds a call by its ID or a unique prefix.
func (c *Client) CallByID(ctx context.Context, id string) (r scheduler.CallRecord, err error) {
	err = c.ask(ctx, http.MethodGet, c.in("calls", id), nil, &r)
	return r, err
}

// Instances lists what runs.
func (c *Client) Instances(ctx context.Context) (l []scheduler.InstanceRecord, err error) {
	err = c.ask(ctx, http.MethodGet, c.in("instances"), nil, &l)
	return l, err
}

// Logs gives kept output, oldest first.
func (c *Client) Logs(ctx context.Context, f scheduler.LogFilter) (l []scheduler.LogLine, err error) {
	q := query(map[string]string{"call": f.Call, "function": f.Function, "limit": number(f.Limit)})
	err = c.ask(ctx, http.MethodGet, c.in("logs")+q, nil, &l)
	return l, err
}

// in makes a path in the workspace; each part is one segment of it.
func (c *Client) in(parts ...string) string {
	segments := []string{"/v1/w", url.PathEscape(c.workspace)}
	for _, part := range parts {
		segments = append(segments, url.PathEscape(part))
	}
	return strings.Join(segments, "/")
}

// query makes a query, leaving out what has no value.
func query(parameters map[string]string) string {
	v := url.Values{}
	for name, value := range parameters {
		if value != "" {
			v.Set(name, value)
		}
	}
	if len(v) == 0 {
		return ""
	}
	return "?" + v.Encode()
}

func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// How long a server may take to answer: what it only has to look up takes some
// milliseconds, and a removal deletes files.
const (
	lookupTimeout = 15 * time.Second
	changeTimeout = 5 * time.Minute
)

// ask sends v as JSON, if it is not nil, and reads the answer into out, if that is
// not nil. A server that does not answer is a Timeout.
func (c *Client) ask(ctx context.Context, method, path string, v, out any) error {
	limit := changeTimeout
	if method == http.MethodGet {
		limit = c.lookup
	}
	silent := fault.New(fault.Timeout, "the server has not answered for %v", limit).WithHint("`brisk down` ends a server that hangs.")
	ctx, cancel := context.WithTimeoutCause(ctx, limit, silent)
	defer cancel()
	err := c.exchange(ctx, method, path, v, out)
	if err != nil && errors.Is(context.Cause(ctx), silent) {
		return silent
	}
	return err
}

func (c *Client) exchange(ctx context.Context, method, path string, v, out any) error {
	body, err := jsonBody(v)
	if err != nil {
		return err
	}
	res, err := c.do(ctx, method, path, body, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(res.Body).Decode(out); err != nil {
		return c.broken(ctx, err)
	}
	_, _ = io.Copy(io.Discard, res.Body) // to the end, so that the connection is used again
	return nil
}

func jsonBody(v any) (io.Reader, error) {
	if v == nil {
		return nil, nil
	}
	b, err := json.Marshal(v)
	return bytes.NewReader(b), err
}

// do sends a request; any response that is not a success becomes an error.
func (c *Client) do(ctx context.Context, method, path string, body io.Reader, h http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://brisk"+path, body)
	if err != nil {
		return nil, &fault.Error{Class: fault.Invalid, Err: err}
	}
	maps.Copy(req.Header, h)
	res, err := c.http.Do(req)
	if err != nil {
		return nil, c.broken(ctx, err)
	}
	return checked(res)
}

// checked turns an error response into an error.
func checked(res *http.Response) (*http.Response, error) {
	if res.StatusCode < 300 {
		return res, nil
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(res.Body, maxHeader))
	var e errorBody
	if err := json.Unmarshal(b, &e); err == nil && e.Error.Class != "" {
		return nil, faultOf(e.Error)
	}
	if res.StatusCode == http.StatusNotFound { // HEAD has no body
		return nil, fault.New(fault.NotFound, "not there")
	}
	return nil, fault.New(fault.Internal, "the server answered %s: %.200s", res.Status, b)
}

// follow posts v and reads the stream that comes back to its end.
func (c *Client) follow(ctx context.Context, path string, v any, each func(f *Frame, payload io.Reader) error) (*Frame, error) {
	body, err := jsonBody(v)
	if err != nil {
		return nil, err
	}
	res, err := c.do(ctx, http.MethodPost, path, body, nil) //nolint:bodyclose // drain closes it
	if err != nil {
		return nil, err
	}
	return drain(ctx, res.Body, each)
}

// drain reads a stream, passes each frame to each, and closes body. It returns
// the last frame, or the error that it carries.
func drain(ctx context.Context, body io.ReadCloser, each func(f *Frame, payload io.Reader) error) (*Frame, error) {
	defer body.Close()
	r := NewFrameReader(body)
	for {
		f, err := r.Next()
		if err != nil {
			return nil, lost(ctx, err)
		}
		if f.Type == "error" || f.Type == "failed" {
			return nil, f.Fault()
		}
		if err := each(f, r.Payload()); err != nil {
			return nil, lost(ctx, err)
		}
		if f.Last() {
			_, _ = io.Copy(io.Discard, body) // the end of the response, for the connection's reuse
			return f, nil
		}
	}
}

// eachPiece reads a payload in pieces of at most 64 KiB.
func eachPiece(payload io.Reader, fn func([]byte) error) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := payload.Read(buf)
		if n > 0 {
			if err := fn(buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// lost says what it means that a stream broke off.
func lost(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ended(ctx)
	}
	if _, known := errors.AsType[*fault.Error](err); known {
		return err
	}
	return &fault.Error{Class: fault.Interrupted, Op: "read the server's answer", Err: err,
		Hint: "The server may have died: its log is in the data directory, in log/."}
}

// broken says what it means that a request failed without an answer.
func (c *Client) broken(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ended(ctx)
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) {
		return fault.New(fault.Unavailable, "no server answers at %s", c.socket).
			WithHint("`brisk up` starts one.")
	}
	if errors.Is(err, syscall.EACCES) {
		return fault.New(fault.Machine, "no permission to talk to the server at %s", c.socket).
			WithHint("Brisk is for root: use sudo.")
	}
	return &fault.Error{Class: fault.Unavailable, Op: "ask the server at", Object: c.socket, Err: err}
}

func ended(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &fault.Error{Class: fault.Timeout, Op: "wait for the server", Err: ctx.Err()}
	}
	return fault.New(fault.Cancelled, "cancelled")
}

func unexpected(f *Frame) error {
	return fault.New(fault.Internal, "the server ended its answer with %q", f.Type)
}

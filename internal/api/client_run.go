package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httputil"

	"brisk.dev/brisk/internal/scheduler"
)

// Run runs a container with stdin as its standard input (nil: none) until it has
// ended. A read of stdin may still be waiting when Run returns.
//
// It has a connection of its own: net/http gives up a response when it cannot
// send the rest of the request, and a container that ends need not have read all
// of its input.
func (c *Client) Run(ctx context.Context, q scheduler.ContainerRequest, stdin io.Reader, sink scheduler.Sink) (scheduler.ContainerExit, error) {
	var none scheduler.ContainerExit
	head, err := json.Marshal(q)
	if err != nil {
		return none, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", c.socket)
	if err != nil {
		return none, c.broken(ctx, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()

	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://brisk"+c.in("run"), bytes.NewReader(head))
	if err != nil {
		return none, err
	}
	if stdin == nil {
		if err := req.Write(conn); err != nil {
			return none, c.broken(ctx, err)
		}
	} else {
		var b bytes.Buffer
		req.Body, req.ContentLength, req.TransferEncoding = http.NoBody, 0, nil
		b.WriteString("POST " + req.URL.RequestURI() + " HTTP/1.1\r\nHost: brisk\r\nTransfer-Encoding: chunked\r\n\r\n")
		body := httputil.NewChunkedWriter(&b)
		_, _ = body.Write(append(head, '\n'))
		if _, err := conn.Write(b.Bytes()); err != nil {
			return none, c.broken(ctx, err)
		}
		go sendInput(conn, stdin)
	}
	res, err := http.ReadResponse(bufio.NewReaderSize(conn, 64<<10), req)
	if err != nil {
		return none, c.broken(ctx, err)
	}
	if res, err = checked(res); err != nil { //nolint:bodyclose // drain closes it
		return none, err
	}
	f, err := drain(ctx, res.Body, func(f *Frame, payload io.Reader) error {
		if f.Type == "log" {
			return eachPiece(payload, func(p []byte) error { return sink.Log(f.Stream, p) })
		}
		return nil
	})
	if err != nil {
		return none, err
	}
	return scheduler.ContainerExit{Code: f.Code, OOM: f.OOM}, nil
}

// sendInput sends stdin in chunks until it ends or nobody takes it any more.
func sendInput(conn net.Conn, stdin io.Reader) {
	body := httputil.NewChunkedWriter(conn)
	if _, err := io.Copy(body, stdin); err == nil {
		_ = body.Close()
		_, _ = io.WriteString(conn, "\r\n") // no trailers
	}
}

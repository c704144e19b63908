package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// stagger is how long one address has before the next is tried beside it.
const stagger = 100 * time.Millisecond

// dialAny connects to the first of some addresses of one machine that answers as config wants.
func dialAny(ctx context.Context, addresses []string, config *tls.Config) (*tls.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type outcome struct {
		conn *tls.Conn
		err  error
	}
	outcomes := make(chan outcome, len(addresses))
	for i, a := range addresses {
		go func() {
			select {
			case <-time.After(time.Duration(i) * stagger):
			case <-ctx.Done():
				outcomes <- outcome{err: ctx.Err()}
				return
			}
			conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", a)
			if err != nil {
				outcomes <- outcome{err: reached(err, a)}
				return
			}
			outcomes <- outcome{conn: conn.(*tls.Conn)} // as the dialer promises
		}()
	}
	var first *tls.Conn
	var errs []error
	for range addresses {
		o := <-outcomes
		switch {
		case o.err != nil:
			if !errors.Is(o.err, context.Canceled) {
				errs = append(errs, o.err)
			}
		case first == nil:
			first = o.conn
			cancel()
		default:
			_ = o.conn.Close()
		}
	}
	switch {
	case first != nil:
		return first, nil
	case len(errs) == 0:
		return nil, fault.Wrap(context.Cause(ctx), "connect to", strings.Join(addresses, ", "))
	}
	for _, err := range errs {
		if fault.Is(err, fault.Invalid) { // it answered, and is not the one
			return nil, err
		}
	}
	return nil, errs[0]
}

// reached says what it means that a connection did not come about: a certificate
// that we refused is an error as it is, everything else is unavailable.
func reached(err error, address string) error {
	if f, is := errors.AsType[*fault.Error](err); is {
		return &fault.Error{Class: f.Class, Op: "connect to", Object: address, Err: err}
	}
	if alert, is := errors.AsType[tls.AlertError](err); is {
		return &fault.Error{Class: fault.Invalid, Op: "connect to", Object: address, Err: alert,
			Hint: "It refuses this machine's certificate: has the machine been removed from the cluster?"}
	}
	return &fault.Error{Class: fault.Unavailable, Op: "connect to", Object: address, Err: err}
}

// clientConfig is TLS towards a member. verify decides over what the other side
// shows; our own certificate is shown if there is one.
func clientConfig(own func() (*tls.Certificate, error), verify func(chain []*x509.Certificate) error) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		NextProtos:         []string{"h2"},
		InsecureSkipVerify: true, //nolint:gosec // names are the cluster's own: VerifyConnection checks authority, role and name
		VerifyConnection:   func(s tls.ConnectionState) error { return verify(s.PeerCertificates) },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if own == nil {
				return &tls.Certificate{}, nil
			}
			return own()
		},
	}
}

// line is one connection to the control node.
type line struct {
	raw  *tls.Conn
	http *http.ClientConn
}

func openLine(ctx context.Context, addresses []string, config *tls.Config) (*line, error) {
	raw, err := dialAny(ctx, addresses, config)
	if err != nil {
		return nil, err
	}
	h, err := overHTTP(ctx, raw)
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	return &line{raw: raw, http: h}, nil
}

// overHTTP speaks HTTP/2 over a connection.
func overHTTP(ctx context.Context, conn *tls.Conn) (*http.ClientConn, error) {
	var only http.Protocols
	only.SetHTTP2(true)
	t := &http.Transport{
		Protocols:          &only,
		DisableCompression: true,
		DialTLSContext:     func(context.Context, string, string) (net.Conn, error) { return conn, nil },
	}
	h, err := t.NewClientConn(ctx, "https", "control:443")
	if err != nil {
		return nil, &fault.Error{Class: fault.Unavailable, Op: "speak HTTP/2 with", Object: conn.RemoteAddr().String(), Err: err}
	}
	return h, nil
}

func (l *line) close() {
	_ = l.http.Close()
	_ = l.raw.Close()
}

// exchange sends a message and reads the answer.
func (l *line) exchange(ctx context.Context, path string, q any, a message) error {
	b, err := json.Marshal(q)
	if err != nil {
		return fault.Wrap(err, "write", "message for "+path)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://control"+path, bytes.NewReader(b))
	if err != nil {
		return fault.Wrap(err, "write", "message for "+path)
	}
	res, err := l.http.RoundTrip(req)
	if err != nil {
		if ctx.Err() != nil {
			return fault.Wrap(ctx.Err(), "ask", "control node at "+l.raw.RemoteAddr().String())
		}
		return &fault.Error{Class: fault.Unavailable, Op: "ask", Object: "control node at " + l.raw.RemoteAddr().String(), Err: err}
	}
	return readAnswer(res, a)
}

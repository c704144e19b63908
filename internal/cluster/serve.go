package cluster

import (
	"crypto/tls"
	"net/http"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// Handler answers a member's request. The name is the member's.
type Handler func(w http.ResponseWriter, r *http.Request, from string)

// Handle has requests of a pattern (as of http.ServeMux) answered by h, for
// members only. It comes before Start.
func (c *Cluster) Handle(pattern string, h Handler) {
	c.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		id, err := c.caller(r)
		if err != nil {
			writeProblem(w, err)
			return
		}
		h(w, r, id.name)
	})
}

// serve is the door of all requests.
func (c *Cluster) serve(w http.ResponseWriter, r *http.Request) {
	c.busy.Lock()
	if c.busy.closed {
		c.busy.Unlock()
		writeProblem(w, fault.New(fault.Unavailable, "this machine's server is shutting down"))
		return
	}
	c.busy.Add(1)
	c.busy.Unlock()
	defer c.busy.Done()
	c.mux.ServeHTTP(w, r)
}

// serverConfig is TLS on our port. Only the control node lets strangers in, who
// want to join; every member proves who it is before its first request.
func (c *Cluster) serverConfig() *tls.Config {
	auth := tls.RequireAnyClientCert
	if c.control != nil {
		auth = tls.RequestClientCert
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, SessionTicketsDisabled: true,
		ClientAuth:     auth,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.certificate() },
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 && c.control != nil {
				return nil
			}
			_, err := identify(c.authority, s.PeerCertificates, c.deadline())
			return err
		},
	}
}

// deadline is the time that dates of members' certificates count at: never on the
// control node, which knows its members' keys, and renews what has expired.
func (c *Cluster) deadline() time.Time {
	if c.control != nil {
		return time.Time{}
	}
	return c.clock.now()
}

// caller finds out which member asks. Its dates were checked when it connected;
// whether it is a member is checked now.
func (c *Cluster) caller(r *http.Request) (identity, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return identity{}, refusal{fault.New(fault.Invalid, "that is for members of the cluster only")}
	}
	id, err := identify(c.authority, r.TLS.PeerCertificates, time.Time{})
	if err != nil {
		return identity{}, refusal{err}
	}
	list := c.roster.Load()
	if list == nil || c.member != nil && time.Since(list.made) > c.opts.ListFor {
		return identity{}, fault.New(fault.Unavailable, "%s does not know the cluster's members now", c.self.name)
	}
	if !list.admits(id) {
		return identity{}, refusal{fault.New(fault.Invalid, "%s is no member of the cluster", id.name).
			WithHint("It was removed, or another machine has its name now. `brisk node join` with a new token makes it a member again.")}
	}
	return id, nil
}

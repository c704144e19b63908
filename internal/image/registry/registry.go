// Package registry speaks to container registries: it reads manifests and blobs
// of a repository, and writes them.
//
// # Names and schemes
//
// A Ref is what docker takes: "debian:12", "ghcr.io/org/app@sha256:...". Registries
// are spoken to over https; localhost, addresses of loopback and names in .local over http
// too, and any other only if the Ref was parsed as insecure, which also accepts a
// certificate that nobody signed.
//
// # Credentials
//
// They are given, or found as docker, podman and helm find them: in
// ~/.docker/config.json, $DOCKER_CONFIG, $REGISTRY_AUTH_FILE, or by the credential helpers that
// those name. Basic and bearer authentication work; tokens are renewed while a
// transfer lasts. Credentials are sent to the registry and to its token server, and to no host that
// it redirects to.
//
// # Faults
//
// A blob's reader survives connections that break: it asks for the rest, up to
// maxAttempts times without a byte of progress, and gives up on a connection that
// is silent for Stall. What it gives is as long as was promised or ends in an error; its
// digest is checked by whoever reads it. Errors are of class NotFound, Invalid
// (the registry refuses), Unavailable (it does not answer, or too late) or Corrupt
// (its answers contradict each other).
package registry

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"brisk.dev/brisk/internal/fault"
)

// Ref names an image in a registry.
type Ref struct {
	name.Reference
	insecure bool
}

// ParseRef reads a reference. One without a registry is Docker Hub's, one without
// a tag or digest is "latest".
func ParseRef(ref string, insecure bool) (Ref, error) {
	var opts []name.Option
	if insecure {
		opts = append(opts, name.Insecure)
	}
	r, err := name.ParseReference(ref, opts...)
	if err != nil {
		return Ref{}, fault.New(fault.Invalid, "%q is not the name of an image in a registry", ref).
			WithHint("Names look like python:3.12, ghcr.io/org/app:1.2 or localhost:5000/app@sha256:...")
	}
	return Ref{r, insecure}, nil
}

// String is the whole name, as short as docker shows it.
func (r Ref) String() string {
	return strings.TrimPrefix(strings.TrimPrefix(r.Name(), name.DefaultRegistry+"/"), "library/")
}

// Auth are credentials for one registry; all empty means none are given.
type Auth struct {
	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	IdentityToken string `json:"identity_token,omitempty"` // to get access tokens with (OAuth2)
	RegistryToken string `json:"registry_token,omitempty"` // an access token
}

// FindAuth looks credentials for a reference up where docker keeps them, for the
// user whose HOME the environment names. None are no error.
func FindAuth(r Ref) (Auth, error) {
	found, err := authn.DefaultKeychain.Resolve(r.Context())
	if err == nil {
		var c *authn.AuthConfig
		if c, err = found.Authorization(); err == nil {
			return Auth{c.Username, c.Password, c.IdentityToken, c.RegistryToken}, nil
		}
	}
	return Auth{}, (&fault.Error{Class: fault.Invalid, Op: "find credentials for", Object: r.Context().RegistryStr(), Err: err}).
		WithHint("Look at ~/.docker/config.json and the credential helper that it names, or log in again.")
}

// Client says how registries are spoken to. The zero value is ready for use.
type Client struct {
	Stall time.Duration // after which a connection that says nothing is given up; 0 is 30 s
	Pause time.Duration // before a second attempt, about; 0 is 200 ms. It doubles.

	transport http.RoundTripper // for tests
}

func (c Client) stall() time.Duration {
	if c.Stall > 0 {
		return c.Stall
	}
	return 30 * time.Second
}

// Repo is a repository that has let us in. Safe for concurrent use. Close it.
type Repo struct {
	client Client
	ref    Ref
	auth   authn.Authenticator
	base   http.RoundTripper
	http   *http.Client
	root   url.URL
}

// Actions on a repository.
const (
	Pull = transport.PullScope
	Push = transport.PushScope
)

// Open speaks to the registry of a reference for the first time.
func (c Client) Open(ctx context.Context, r Ref, a Auth, action string) (*Repo, error) {
	base := c.transport
	if base == nil {
		base = c.newTransport(r.insecure)
	}
	p := &Repo{client: c, ref: r, auth: authn.Anonymous, base: base}
	if a != (Auth{}) {
		p.auth = authn.FromConfig(authn.AuthConfig{Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken})
	}
	reg := r.Context().Registry
	ctx, cancel := context.WithTimeout(ctx, 2*c.stall())
	defer cancel()
	t, err := transport.NewWithContext(ctx, reg, p.auth, base, []string{r.Scope(action)})
	if err != nil {
		p.Close()
		return nil, p.wrap(err, "speak to")
	}
	// The scheme is set by the transport, which has found out which one it is.
	p.http = &http.Client{Transport: t}
	p.root = url.URL{Scheme: reg.Scheme(), Host: reg.RegistryStr(), Path: "/v2/" + r.Context().RepositoryStr()}
	return p, nil
}

// newTransport makes connections of its own, so that closing them reaches nobody else's.
func (c Client) newTransport(insecure bool) *http.Transport {
	t := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: c.stall(), KeepAlive: 30 * time.Second}).DialContext,
		ForceAttemptHTTP2:     true,
		MaxIdleConnsPerHost:   8,
		IdleConnTimeout:       time.Minute,
		TLSHandshakeTimeout:   c.stall(),
		ResponseHeaderTimeout: c.stall(),
		DisableCompression:    true, // lengths and ranges have to mean the stored bytes
	}
	if insecure {
		t.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // what the user asked for
	}
	return t
}

// Close closes the connections.
func (p *Repo) Close() {
	if t, ok := p.base.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

// wrap gives an error of the registry's or of the network's a class.
func (p *Repo) wrap(err error, doing string) error {
	if err == nil {
		return nil
	}
	host := p.ref.Context().RegistryStr()
	e := &fault.Error{Class: fault.Unavailable, Op: doing, Object: "registry " + host, Err: err}
	var classed *fault.Error
	var answer *transport.Error
	var network *url.Error
	var unknown *net.DNSError
	switch {
	case errors.As(err, &classed):
		e.Class = classed.Class
	case errors.Is(err, context.Canceled):
		e.Class = fault.Cancelled
	case errors.As(err, &answer):
		e.Class, e.Hint = p.refusal(answer.StatusCode)
		e.Err = fault.New(e.Class, "%s", answerText(answer))
	case errors.As(err, &unknown):
		e.Hint = "Is the name of the registry right, and does this machine reach it?"
	case errors.As(err, &network):
		e.Err = network.Err
		if strings.Contains(network.Err.Error(), "server gave HTTP response to HTTPS client") {
			e.Class, e.Hint = fault.Invalid, "The registry speaks plain http: allow that with --insecure, or insecure=True in a program."
		} else if strings.Contains(network.Err.Error(), "x509:") || strings.Contains(network.Err.Error(), "tls:") {
			e.Class, e.Hint = fault.Invalid, "Its certificate is not trusted here: add its authority to the system's, or allow it with --insecure, or insecure=True in a program."
		}
	}
	return e
}

// refusal is what a status means.
func (p *Repo) refusal(status int) (fault.Class, string) {
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return fault.Invalid, "Log in with `docker login " + p.ref.Context().RegistryStr() + "` (or podman, or buildah), or check that the repository exists and may be used."
	case status == http.StatusNotFound:
		return fault.NotFound, "Check the name and the tag."
	case status == http.StatusRequestEntityTooLarge:
		return fault.Invalid, "The registry, or a proxy before it, takes no upload of this size: raise its limit (of nginx, client_max_body_size)."
	case status == http.StatusTooManyRequests:
		return fault.Unavailable, "The registry limits how often it may be asked: wait, or log in."
	case status >= 500:
		return fault.Unavailable, "The registry has a fault; try again later."
	}
	return fault.Invalid, ""
}

// answerText is what the registry said, in one line.
func answerText(e *transport.Error) string {
	var l []string
	for _, d := range e.Errors {
		text := strings.ToLower(strings.ReplaceAll(string(d.Code), "_", " "))
		if d.Message != "" && !strings.EqualFold(d.Message, text) {
			text += ": " + d.Message
		}
		l = append(l, text)
	}
	if len(l) == 0 {
		l = append(l, http.StatusText(e.StatusCode))
	}
	text := strings.Join(strings.Fields(strings.Join(l, "; ")), " ")
	if len(text) > 500 {
		text = text[:500] + "..."
	}
	return "it answers " + text
}

package api

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"brisk.dev/brisk/internal/cluster"
	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store/peer"
)

// Nodes is the cluster that the machine is in. All fail with fault.NotFound if it is in none.
type Nodes interface {
	Nodes(ctx context.Context) (NodeList, error)
	NodeToken(ctx context.Context, q NodeTokenRequest) (NodeToken, error)
	RemoveNode(ctx context.Context, name string) (NodeRemoval, error)
}

// NodeList is the cluster as this machine knows it.
type NodeList struct {
	cluster.Status
	Peers peer.Stats `json:"peers"` // what this machine has exchanged with others
}

// NodeTokenRequest says what a token is to be good for.
type NodeTokenRequest struct {
	Expires  time.Duration `json:"expires_ns"` // from now; 0 = an hour
	Reusable bool          `json:"reusable"`
}

// NodeToken lets a machine join.
type NodeToken struct {
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
}

// NodeRemoval says what a removal has done besides.
type NodeRemoval struct {
	WithdrawnTokens int `json:"withdrawn_tokens"` // that were for any number of machines
}

func (s *Server) nodes(w http.ResponseWriter, r *http.Request) error {
	return answer(w)(s.backend.Nodes.Nodes(r.Context()))
}

func (s *Server) nodeToken(w http.ResponseWriter, r *http.Request) error {
	var q NodeTokenRequest
	if err := decode(w, r, &q); err != nil {
		return err
	}
	if q.Expires < 0 {
		return fault.New(fault.Invalid, "a token that is good for %v", q.Expires)
	}
	return answer(w)(s.backend.Nodes.NodeToken(r.Context(), q))
}

func (s *Server) removeNode(w http.ResponseWriter, r *http.Request) error {
	return answer(w)(s.backend.Nodes.RemoveNode(r.Context(), r.PathValue("name")))
}

// Nodes lists the machines of the cluster.
func (c *Client) Nodes(ctx context.Context) (l NodeList, err error) {
	err = c.ask(ctx, http.MethodGet, "/v1/nodes", nil, &l)
	return l, err
}

// NodeToken makes a token with which a machine can join.
func (c *Client) NodeToken(ctx context.Context, q NodeTokenRequest) (t NodeToken, err error) {
	err = c.ask(ctx, http.MethodPost, "/v1/nodes/tokens", q, &t)
	return t, err
}

// RemoveNode ends a node's membership.
func (c *Client) RemoveNode(ctx context.Context, name string) (r NodeRemoval, err error) {
	err = c.ask(ctx, http.MethodDelete, "/v1/nodes/"+url.PathEscape(name), nil, &r)
	return r, err
}

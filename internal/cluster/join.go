package cluster

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// memberFile is DATA/cluster/member.json, which makes a machine a node:
// docs/format/cluster.md. The key is in a file of its own, older than it.
type memberFile struct {
	Version     int       `json:"version"`
	Name        string    `json:"name"`
	Origin      string    `json:"origin"`
	Control     []string  `json:"control"`     // addresses of the control node
	Authority   []byte    `json:"authority"`   // certificates, DER
	Certificate []byte    `json:"certificate"` //
	Joined      time.Time `json:"joined"`
}

func memberPath(dir string) string { return filepath.Join(dir, "member.json") }
func keyPath(dir string) string    { return filepath.Join(dir, "key.pem") }

// readMember gives a node's file, and whether the machine is one.
func readMember(dir string) (*memberFile, bool, error) {
	f := &memberFile{}
	is, err := readJSON(memberPath(dir), f)
	return f, is, err
}

// Kind is what a machine is in its cluster.
type Kind string

// The kinds.
const (
	Alone   Kind = "alone"   // in no cluster
	Control Kind = "control" // the control node
	Node    Kind = "node"
)

// Place is what a machine's directory says about it.
type Place struct {
	Kind   Kind
	Name   string // of a node
	Origin string // of the cluster's store, on a node
}

// Look says what the machine of a directory is, without taking part.
func Look(dir string) (Place, error) {
	f, is, err := readMember(dir)
	if err != nil {
		return Place{}, err
	}
	if is {
		return Place{Kind: Node, Name: f.Name, Origin: f.Origin}, nil
	}
	if _, err := os.Stat(authorityFile(dir)); err == nil {
		return Place{Kind: Control}, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return Place{}, fault.Wrap(err, "look at", dir)
	}
	return Place{Kind: Alone}, nil
}

// JoinOptions say which machine joins.
type JoinOptions struct {
	Dir   string // of the cluster's state
	Name  string // of this machine
	Token Token
	// Keep is given the origin of the cluster's store and the workspaces' keys, and
	// keeps them durably, before the machine is a node; an error of it ends the
	// joining. May be nil.
	Keep func(origin string, keys map[string]string) error
}

// Join makes this machine a node of the token's cluster, durably. It is repeated
// after a failure at no cost, with the same token. The machine's server must not run.
func Join(ctx context.Context, o JoinOptions) (Place, error) {
	if !ValidName(o.Name) {
		return Place{}, badName(o.Name)
	}
	switch place, err := Look(o.Dir); {
	case err != nil:
		return Place{}, err
	case place.Kind == Node:
		return Place{}, fault.New(fault.Exists, "this machine is the node %s of a cluster already", place.Name).
			WithHint("`brisk node leave` ends that.")
	case place.Kind == Control:
		return Place{}, fault.New(fault.Exists, "this machine is the control node of a cluster of its own").
			WithHint("Join with another data directory, or give up the cluster: `brisk node leave`.")
	}
	if err := prepare(o.Dir); err != nil {
		return Place{}, err
	}
	key, err := ensureKey(o.Dir)
	if err != nil {
		return Place{}, err
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return Place{}, fault.Wrap(err, "make", "certificate request")
	}
	var authority *x509.Certificate
	l, err := openLine(ctx, o.Token.Addresses, clientConfig(nil, func(chain []*x509.Certificate) error {
		var err error
		authority, err = verifyFingerprint(o.Token.Authority, chain)
		return err
	}))
	if err != nil {
		return Place{}, err
	}
	defer l.close()
	// Several addresses may have been tried at once: what counts is the line that won.
	if authority, err = verifyFingerprint(o.Token.Authority, l.raw.ConnectionState().PeerCertificates); err != nil {
		return Place{}, err
	}
	var a joinAnswer
	err = l.exchange(ctx, pathJoin, joinRequest{
		Version: protocol, Token: o.Token.id(), Secret: o.Token.Secret[:], Name: o.Name, Request: request,
	}, &a)
	if err != nil {
		return Place{}, fault.Wrap(err, "join", "cluster "+clusterName(o.Token.Authority))
	}
	leaf, err := x509.ParseCertificate(a.Certificate)
	if err != nil {
		return Place{}, &fault.Error{Class: fault.Invalid, Op: "read", Object: "certificate from the control node", Err: err}
	}
	id, err := identify(authority, []*x509.Certificate{leaf}, time.Time{})
	if err != nil {
		return Place{}, err
	}
	if pub, is := leaf.PublicKey.(ed25519.PublicKey); !is || !pub.Equal(key.Public()) || id.name != o.Name || id.role != node {
		return Place{}, fault.New(fault.Invalid, "the control node sent a certificate for %s", id.uri())
	}
	if o.Keep != nil {
		if err := o.Keep(a.Origin, a.Keys); err != nil {
			return Place{}, err
		}
	}
	err = publishJSON(memberPath(o.Dir), memberFile{
		Version: stateVersion, Name: o.Name, Origin: a.Origin, Control: a.Control,
		Authority: authority.Raw, Certificate: leaf.Raw, Joined: time.Now().UTC(),
	})
	if err != nil {
		return Place{}, err
	}
	return Place{Kind: Node, Name: o.Name, Origin: a.Origin}, nil
}

// verifyFingerprint accepts the control node of the authority with that
// fingerprint, which it shows with its own certificate, and returns the authority.
func verifyFingerprint(want Fingerprint, chain []*x509.Certificate) (*x509.Certificate, error) {
	if len(chain) != 2 || fingerprintOf(chain[1]) != want {
		return nil, fault.New(fault.Invalid, "there is no control node of the cluster %s", clusterName(want)).
			WithHint("Is the token of another cluster, or does another machine have the address now?")
	}
	return chain[1], verifyControl(chain[1], chain[:1])
}

// ensureKey gives the machine's key, made and durable if there was none.
func ensureKey(dir string) (ed25519.PrivateKey, error) {
	key, err := readKey(dir)
	if !fault.Is(err, fault.NotFound) {
		return key, err
	}
	if key, err = newKey(); err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fault.Wrap(err, "write", keyPath(dir))
	}
	return key, publish(keyPath(dir), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

func readKey(dir string) (ed25519.PrivateKey, error) {
	b, err := os.ReadFile(keyPath(dir))
	if err != nil {
		return nil, fault.Wrap(err, "read", keyPath(dir))
	}
	block, _ := pem.Decode(b)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, fault.New(fault.Corrupt, "%s holds no key", keyPath(dir))
	}
	key, err := parseKey(block.Bytes)
	if err != nil {
		return nil, &fault.Error{Class: fault.Corrupt, Op: "read", Object: keyPath(dir), Err: err}
	}
	return key, nil
}

// Leave ends this machine's part in its cluster: the control node is told, if it
// answers before ctx ends, and the directory goes. told says whether it was. On a
// control node the cluster ends, for all.
func Leave(ctx context.Context, dir string) (told bool, err error) {
	f, is, err := readMember(dir)
	if err != nil {
		return false, err
	}
	if is {
		told = sayGoodbye(ctx, dir, f) == nil
	}
	// First what makes the machine a member, so that a crash in between leaves none.
	for _, name := range []string{memberPath(dir), authorityFile(dir)} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return told, fault.Wrap(err, "remove", name)
		}
	}
	if err := syncDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return told, fault.Wrap(err, "remove", dir)
	}
	return told, fault.Wrap(os.RemoveAll(dir), "remove", dir)
}

func sayGoodbye(ctx context.Context, dir string, f *memberFile) error {
	key, err := readKey(dir)
	if err != nil {
		return err
	}
	authority, err := x509.ParseCertificate(f.Authority)
	if err != nil {
		return err
	}
	leaf, err := x509.ParseCertificate(f.Certificate)
	if err != nil {
		return err
	}
	own := pair(leaf, authority, key)
	l, err := openLine(ctx, f.Control, clientConfig(func() (*tls.Certificate, error) { return own, nil }, func(chain []*x509.Certificate) error {
		return verifyControl(authority, chain)
	}))
	if err != nil {
		return err
	}
	defer l.close()
	return l.exchange(ctx, pathLeave, nothing{}, &nothing{})
}

package cluster

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// certificateLife is how long a member's certificate is valid. It is renewed in
// its second half: a node may miss the control node for 12 hours before nodes that
// still have its key on their list refuse it.
const certificateLife = 24 * time.Hour

// authority signs the certificates of a cluster.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// The authority's certificate has no dates that mean anything: whoever trusts it
// has its fingerprint.
var (
	always = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	never  = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC) // RFC 5280 says so
)

func authorityFile(dir string) string { return filepath.Join(dir, "authority.pem") }

// openAuthority reads the authority of dir; nil if there is none.
func openAuthority(dir string) (*authority, error) {
	b, err := os.ReadFile(authorityFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.Wrap(err, "read", authorityFile(dir))
	}
	a, err := parseAuthority(b)
	if err != nil {
		return nil, &fault.Error{Class: fault.Corrupt, Op: "read", Object: authorityFile(dir), Err: err,
			Hint: "Put the file back from a backup; without it no node can join or stay."}
	}
	return a, nil
}

func parseAuthority(b []byte) (*authority, error) {
	keyBlock, rest := pem.Decode(b)
	certBlock, _ := pem.Decode(rest)
	if keyBlock == nil || certBlock == nil || keyBlock.Type != "PRIVATE KEY" || certBlock.Type != "CERTIFICATE" {
		return nil, errors.New("it does not hold a key and a certificate")
	}
	key, err := parseKey(keyBlock.Bytes)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, err
	}
	if pub, is := cert.PublicKey.(ed25519.PublicKey); !is || !pub.Equal(key.Public()) || !cert.IsCA {
		return nil, errors.New("its key and its certificate do not belong together")
	}
	return &authority{cert: cert, key: key}, nil
}

func parseKey(der []byte) (ed25519.PrivateKey, error) {
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	ed, is := key.(ed25519.PrivateKey)
	if !is {
		return nil, errors.New("it holds a key of another kind than Ed25519")
	}
	return ed, nil
}

// makeAuthority makes a new cluster's authority, durable when it returns.
func makeAuthority(dir string) (*authority, error) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: "Brisk cluster"},
		NotBefore: always, NotAfter: never,
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	cert, err := sign(template, template, pub, key)
	if err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	b := append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
	if err := publish(authorityFile(dir), b); err != nil {
		return nil, err
	}
	return &authority{cert: cert, key: key}, nil
}

// issue makes a member's certificate. The key in id is pub's, whatever it was.
func (a *authority) issue(id identity, pub crypto.PublicKey, now time.Time) (*x509.Certificate, error) {
	return sign(&x509.Certificate{
		Subject:   pkix.Name{CommonName: id.name},
		NotBefore: now.Add(-leeway), NotAfter: now.Add(certificateLife),
		URIs:     []*url.URL{id.uri()},
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, pub, a.key)
}

func sign(template, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, parent, pub, key)
	if err != nil {
		return nil, fault.Wrap(err, "sign certificate of", template.Subject.CommonName)
	}
	return x509.ParseCertificate(der)
}

// stale reports whether a certificate is to be replaced: half of its life is
// over, or it has not begun.
func stale(c *x509.Certificate, now time.Time) bool {
	half := c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) / 2)
	return now.Before(c.NotBefore) || now.After(half)
}

// pair is what TLS shows of a member: its certificate and the authority's, by
// whose fingerprint a joining machine knows the cluster.
func pair(leaf, authority *x509.Certificate, key crypto.PrivateKey) *tls.Certificate {
	return &tls.Certificate{Certificate: [][]byte{leaf.Raw, authority.Raw}, PrivateKey: key, Leaf: leaf}
}

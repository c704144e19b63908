package cluster

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/base32"
	"encoding/hex"
	"net/url"
	"regexp"
	"strings"
	"time"

	"brisk.dev/brisk/internal/fault"
)

// Fingerprint names a public key: the SHA-256 of its SubjectPublicKeyInfo.
type Fingerprint [sha256.Size]byte

func fingerprintOf(c *x509.Certificate) Fingerprint { return sha256.Sum256(c.RawSubjectPublicKeyInfo) }

// String gives 64 hexadecimal digits.
func (f Fingerprint) String() string { return hex.EncodeToString(f[:]) }

// MarshalText makes a fingerprint a string in JSON.
func (f Fingerprint) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (f *Fingerprint) UnmarshalText(b []byte) error {
	if len(b) != 2*len(f) {
		return fault.New(fault.Invalid, "%.80q is not a fingerprint: want 64 hexadecimal digits", b)
	}
	if _, err := hex.Decode(f[:], b); err != nil {
		return fault.New(fault.Invalid, "%.80q is not a fingerprint: want 64 hexadecimal digits", b)
	}
	return nil
}

// clusterName is how a cluster is called: 16 letters and digits of its authority's
// fingerprint. Nothing rests on it; it keeps certificates and messages apart for people.
func clusterName(authority Fingerprint) string {
	return strings.ToLower(base32.StdEncoding.EncodeToString(authority[:10]))
}

// role is what a member is in its cluster.
type role string

const (
	control role = "control"
	node    role = "node"
)

// identity is who a certificate says its owner is. In the certificate it is
// the URI brisk://CLUSTER/ROLE/NAME, and the only name there.
type identity struct {
	cluster string
	role    role
	name    string
	key     Fingerprint
}

func (i identity) uri() *url.URL {
	return &url.URL{Scheme: "brisk", Host: i.cluster, Path: "/" + string(i.role) + "/" + i.name}
}

// leeway is how wrong a clock may be before a certificate's dates count. Clocks
// in a cluster follow the control node's, so it only has to cover what passes
// between beats and the beats' journeys.
const leeway = 10 * time.Minute

// identify checks that a chain, as it came over TLS, is a certificate that the
// authority has signed for a member, and says for whom. The dates count at the
// time now; a zero now stands for all time.
func identify(authority *x509.Certificate, chain []*x509.Certificate, now time.Time) (identity, error) {
	refused := func(format string, args ...any) (identity, error) {
		return identity{}, fault.New(fault.Invalid, "the other side's certificate "+format, args...)
	}
	if len(chain) == 0 {
		return refused("is missing")
	}
	leaf := chain[0]
	roots := x509.NewCertPool()
	roots.AddCert(authority)
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, CurrentTime: leaf.NotBefore, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return refused("is not of this cluster: %w", err)
	}
	id := identity{cluster: clusterName(fingerprintOf(authority)), key: fingerprintOf(leaf)}
	if leaf.IsCA || len(leaf.URIs) != 1 || leaf.URIs[0].Scheme != "brisk" || leaf.URIs[0].Host != id.cluster {
		return refused("names no member of the cluster %s", id.cluster)
	}
	r, name, _ := strings.Cut(strings.TrimPrefix(leaf.URIs[0].Path, "/"), "/")
	id.role, id.name = role(r), name
	if (id.role != control && id.role != node) || !ValidName(name) || *leaf.URIs[0] != *id.uri() {
		return refused("has the name %.200q", leaf.URIs[0])
	}
	if !now.IsZero() && (now.Before(leaf.NotBefore.Add(-leeway)) || now.After(leaf.NotAfter.Add(leeway))) {
		return refused("of %s is valid from %s to %s, and now is %s", name,
			leaf.NotBefore.Format(time.RFC3339), leaf.NotAfter.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return id, nil
}

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// ValidName reports whether a machine may be called so: at most 63 letters, digits,
// dots, dashes and underscores, of which the first is a letter or a digit.
func ValidName(s string) bool { return validName.MatchString(s) }

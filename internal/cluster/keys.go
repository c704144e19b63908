package cluster

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
)

// Keys are the workspaces' keys of this machine, which all machines of a cluster
// share. The control node makes them, the others take them over. To this package
// each is a text. Safe for concurrent use.
type Keys interface {
	// Export gives all keys by workspace.
	Export() (map[string]string, error)
	// Import keeps keys that Export gave on another machine, durably. Another key
	// that is there for the same workspace is an error.
	Import(keys map[string]string) error
	// Make makes a workspace's keys, durably, if there are none.
	Make(workspace string) error
}

// noKeys is a machine without any.
type noKeys struct{}

func (noKeys) Export() (map[string]string, error) { return nil, nil }
func (noKeys) Import(map[string]string) error     { return nil }
func (noKeys) Make(string) error                  { return nil }

// keysDigest is what two machines compare to know whether they have the same keys.
// It says nothing about them to others: they are secrets of 256 bits.
func keysDigest(keys map[string]string) Fingerprint {
	h := sha256.New()
	var n [4]byte
	for _, w := range slices.Sorted(maps.Keys(keys)) {
		for _, b := range []string{w, keys[w]} {
			binary.LittleEndian.PutUint32(n[:], uint32(len(b)))
			h.Write(n[:])
			h.Write([]byte(b))
		}
	}
	return Fingerprint(h.Sum(nil))
}

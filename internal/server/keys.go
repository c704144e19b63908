package server

import (
	"os"

	"brisk.dev/brisk/internal/store/seal"
)

// OpenKeyring opens the keys of a data directory ("" = DefaultData), which it makes if
// there is none; on a node, the cluster's. No server is needed, and one may be running: a key file never changes.
func OpenKeyring(data string) (*seal.Keyring, error) {
	if os.Geteuid() != 0 {
		return nil, NotRoot()
	}
	p, err := PathsOf(data)
	if err != nil {
		return nil, err
	}
	if err := prepareData(p); err != nil {
		return nil, err
	}
	return openKeyring(p)
}

package fidelity

import (
	"fmt"
	"os"
	"testing"

	"brisk.dev/brisk/internal/lazyfs/mountns"
)

// As root the tests move into a mount namespace of their own, so that whatever a
// killed one leaves mounted is gone with it.
func TestMain(m *testing.M) {
	if os.Getuid() == 0 {
		if err := mountns.Enter(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

package lazyfs

import (
	"fmt"
	"os"
	"testing"

	"brisk.dev/brisk/internal/lazyfs/mountns"
)

// The test binary is also the holder and the servers that get killed. As root it
// moves into a mount namespace of its own first, so that whatever a failing test
// leaves behind is gone with it.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "holder" {
		exitWith(RunHolder(os.Args[2:]...))
	}
	if os.Getenv(childConfig) != "" {
		exitWith(runChild(os.Getenv(childConfig)))
	}
	if os.Getenv(mapFile) != "" {
		exitWith(runMap(os.Getenv(mapFile)))
	}
	if os.Getenv(askOwn) != "" {
		exitWith(runAskOwn(os.Getenv(askOwn)))
	}
	if os.Getuid() == 0 {
		if err := mountns.Enter(); err != nil {
			exitWith(err)
		}
	}
	os.Exit(m.Run())
}

func exitWith(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounts need root")
	}
}

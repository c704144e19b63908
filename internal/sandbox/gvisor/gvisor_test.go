package gvisor_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"brisk.dev/brisk/internal/sandbox"
	"brisk.dev/brisk/internal/sandbox/gvisor"
	"brisk.dev/brisk/internal/sandbox/network/networktest"
	"brisk.dev/brisk/internal/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(sandboxtest.OwnerDir); dir != "" {
		rt, err := open(dir, os.Getenv(sandboxtest.OwnerGroup))
		if err == nil {
			err = sandboxtest.Own(rt, os.Getenv(sandboxtest.OwnerRoot))
		}
		fmt.Println(err)
		os.Exit(1)
	}
	networktest.Main(m)
}

// runsc finds the binary to test with.
func runsc() (string, error) {
	if p := os.Getenv("BRISK_RUNSC"); p != "" {
		return p, nil
	}
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", err
	}
	for _, p := range []string{filepath.Join(filepath.Dir(strings.TrimSpace(string(out))), "bin/runsc"), "/usr/local/lib/brisk/runsc"} {
		if _, err := os.Stat(p); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("no runsc: build it with `make runsc`, or name one in BRISK_RUNSC")
}

func open(dir, group string) (*gvisor.Runtime, error) {
	p, err := runsc()
	if err != nil {
		return nil, err
	}
	return gvisor.New(gvisor.Options{Runsc: p, Dir: dir, CgroupParent: group})
}

func TestConformance(t *testing.T) {
	sandboxtest.Run(t, sandboxtest.Config{
		Open:      func(dir, group string) (sandbox.Runtime, error) { return open(dir, group) },
		Owner:     []string{os.Args[0], "-test.run=^$"},
		Snapshots: true,
	})
}

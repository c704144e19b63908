// Package e2e drives the built brisk binary as a user does: from outside, by
// command lines, files and signals, on the real machine. Nothing in it is mocked
// and nothing of Brisk is linked into it, so what passes here is what users get.
//
// # How the tests are arranged
//
// A site is one data directory with the server that belongs to it; its methods
// run commands. Most tests share one (shared); a test that breaks, kills or
// configures a server has its own (newSite). Every site begins as a copy of a seed
// that holds the image of brisk.Image.debian_slim(), which is built once per
// machine (scripts/e2e-seed.sh).
//
// Every site is a leak test: when its test ends, `brisk down` must leave nothing
// of it on the machine, which a census looks for in all places that come to mind.
//
// Tests run beside each other, as many as there are cores, and beside those of
// other packages: each site's paths, groups and networks are its own.
//
// The tests wait for events (a line of output, a file, a process's end), never for
// a while; what is polled has a deadline that only a defect can reach.
//
// Where the two ways to mount images differ, tests run both; with $BRISK_COMPAT set
// all of them run as on older kernels.
//
// $BRISK_BIN names the binary (default: built from this checkout), $BRISK_RUNSC its
// runsc, $BRISK_E2E_SEED the seed. They need root, and are skipped without.
package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What all tests use; set by TestMain.
var (
	briskBin string // the binary under test
	seedDir  string // a data directory to copy
	common   *site  // see shared
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Println("the end-to-end tests make sandboxes, mounts and networks, and need root: skipped")
		os.Exit(0)
	}
	os.Exit(func() int {
		work, err := os.MkdirTemp("", "brisk-e2e-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(work)
		if err := prepare(work); err != nil {
			fmt.Fprintln(os.Stderr, "prepare the end-to-end tests:", err)
			return 1
		}
		code := m.Run()
		if left := closeShared(); left != "" {
			fmt.Fprintln(os.Stderr, "the server that the tests share:", left)
			code = 1
		}
		return code
	}())
}

// prepare finds or builds what the tests run.
func prepare(work string) error {
	root, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	briskBin = os.Getenv("BRISK_BIN")
	if briskBin == "" {
		briskBin = filepath.Join(work, "brisk")
		if err := quietly(root, "go", "build", "-buildvcs=false", "-o", briskBin, "./cmd/brisk"); err != nil {
			return err
		}
	}
	if briskBin, err = filepath.Abs(briskBin); err != nil {
		return err
	}
	if os.Getenv("BRISK_RUNSC") == "" {
		if runsc := filepath.Join(root, "bin", "runsc"); isFile(runsc) {
			os.Setenv("BRISK_RUNSC", runsc)
		}
	}
	os.Setenv("BRISK_BIN", briskBin)
	var out bytes.Buffer
	cmd := exec.Command(filepath.Join(root, "scripts", "e2e-seed.sh"))
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("make the seed: %w", err)
	}
	seedDir = strings.TrimSpace(out.String())
	return nil
}

// quietly runs a command, whose output counts only if it fails.
func quietly(dir, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

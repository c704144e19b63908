package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/server"
	sdk "brisk.dev/brisk/sdk/python"
)

// cutTarget splits FILE::NAME.
func cutTarget(s string) (path, name string, named bool) { return strings.Cut(s, "::") }

// probe makes Python say where it is, if it is new enough. The answer skips a
// version manager's shim the second time.
const probe = `import sys; sys.version_info >= (3, 9) and print(sys.executable)`

// findPython finds a Python of at least 3.9: $BRISK_PYTHON, else python3.
func findPython(ctx context.Context) (string, error) {
	name := or(os.Getenv("BRISK_PYTHON"), "python3")
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, "-ISc", probe).Output()
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return "", fault.New(fault.Machine, "there is no %s to run the file's own part with", name).
			WithHint("Install Python 3.9 or newer (apt-get install python3), or name one in $BRISK_PYTHON.")
	}
	if err != nil {
		return "", &fault.Error{Class: fault.Machine, Op: "run", Object: name, Err: err, Hint: "Name another Python in $BRISK_PYTHON."}
	}
	found := strings.TrimSpace(string(out))
	if found == "" {
		return "", fault.New(fault.Machine, "%s is older than Python 3.9", name).
			WithHint("Install a newer one, or name one in $BRISK_PYTHON.")
	}
	return found, nil
}

// becomePython executes Python with the SDK in place of this process.
func (a *app) becomePython(python string, words []string) error {
	p, err := server.PathsOf(a.data)
	if err != nil {
		return err
	}
	dir := server.SDKDir(p)
	if err := sdk.Extract(dir); err != nil {
		cache, cacheErr := os.UserCacheDir()
		if cacheErr != nil {
			return err
		}
		dir = filepath.Join(cache, "brisk", filepath.Base(dir))
		if err := sdk.Extract(dir); err != nil {
			return err
		}
	}
	path := dir
	if old := os.Getenv("PYTHONPATH"); old != "" {
		path += string(os.PathListSeparator) + old
	}
	env := setenv(os.Environ(), map[string]string{"PYTHONPATH": path, "BRISK_SOCKET": p.Socket(), "BRISK_WORKSPACE": a.workspace})
	// By its path: with -m, a file of the working directory could take its place.
	argv := append([]string{python, dir}, words...)
	return fault.Wrap(syscall.Exec(python, argv, env), "execute", python)
}

// setenv replaces or adds variables.
func setenv(env []string, set map[string]string) []string {
	out := slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		_, replaced := set[name]
		return replaced
	})
	for name, value := range set {
		out = append(out, name+"="+value)
	}
	return out
}

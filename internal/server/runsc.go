package server

import (
	"os"
	"os/exec"
	"path/filepath"

	"brisk.dev/brisk/internal/fault"
)

// FindRunsc finds the sandbox's binary: the one that is named, else $BRISK_RUNSC,
// else one beside Brisk's own binary, in /usr/local/lib/brisk, or in the PATH.
func FindRunsc(named string) (string, error) {
	for _, v := range []struct{ path, from string }{{named, "--runsc"}, {os.Getenv("BRISK_RUNSC"), "BRISK_RUNSC"}} {
		if v.path == "" {
			continue
		}
		if !executable(v.path) {
			return "", fault.New(fault.Machine, "%s names %s, which is no program", v.from, v.path).
				WithHint("`make runsc` builds one in bin/runsc.")
		}
		return filepath.Abs(v.path)
	}
	if self, err := os.Executable(); err == nil {
		if p := filepath.Join(filepath.Dir(self), "runsc"); executable(p) {
			return p, nil
		}
	}
	if p := "/usr/local/lib/brisk/runsc"; executable(p) {
		return p, nil
	}
	if p, err := exec.LookPath("runsc"); err == nil {
		return filepath.Abs(p)
	}
	return "", fault.New(fault.Machine, "there is no runsc, the gVisor binary that runs sandboxes").
		WithHint("`make runsc` builds the right one in bin/runsc, beside brisk.")
}

func executable(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0
}

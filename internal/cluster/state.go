package cluster

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"brisk.dev/brisk/internal/fault"
)

// stateVersion is the version of the files in Options.Dir.
const stateVersion = 1

// publish writes a file that only root may read: whole and durable, or not at all.
func publish(path string, data []byte) (err error) {
	defer func() { err = fault.Wrap(err, "write", path) }()
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, ".new-*") // 0600
	if err != nil {
		return err
	}
	defer func() {
		_ = f.Close()
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// prepare makes the directory and removes what a crashed writer left in it.
func prepare(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fault.Wrap(err, "make", dir)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".new-*"))
	if err != nil {
		return fault.Wrap(err, "look for leftovers in", dir)
	}
	for _, path := range left {
		_ = os.Remove(path) // it harms nobody
	}
	return fault.Wrap(syncDir(filepath.Dir(dir)), "make", dir)
}

// publishJSON is publish of v.
func publishJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fault.Wrap(err, "write", path)
	}
	return publish(path, append(b, '\n'))
}

// readJSON reads what publishJSON wrote; false if there is no such file. The
// version in it must be stateVersion.
func readJSON(path string, v any) (bool, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fault.Wrap(err, "read", path)
	}
	var head struct {
		Version int `json:"version"`
	}
	err = json.Unmarshal(b, &head)
	if err == nil && head.Version != stateVersion {
		return false, fault.New(fault.Machine, "%s has the version %d, this Brisk knows %d", path, head.Version, stateVersion).
			WithHint("Use the Brisk that wrote it.")
	}
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		return false, &fault.Error{Class: fault.Corrupt, Op: "read", Object: path, Err: err, Hint: "Put the file back from a backup."}
	}
	return true, nil
}

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"brisk.dev/brisk/bench/drive"
)

// extracted is the root filesystem of an image, extracted on the filesystem of the
// benchmark's directory: "science", a Debian with Python, numpy, pandas and
// scikit-learn, or "large", more than 1 GB with torch. Brisk builds the images,
// once; the files are copied out of its mount.
func extracted(o options, name string) (string, error) {
	tree := filepath.Join(o.dir, name)
	if _, err := os.Stat(tree); err == nil {
		return tree, nil
	}
	progress("building the image %s and extracting it, once", name)
	s, err := drive.Up(o.ctx, o.brisk, filepath.Join(o.dir, "data"), -1)
	if err != nil {
		return "", err
	}
	defer func() { _ = s.Down() }()
	program := exec.CommandContext(o.ctx, o.brisk, "run", "--data", s.Paths.Data, filepath.Join("bench", "images", name+".py"))
	program.Stderr = os.Stderr
	if err := program.Run(); err != nil {
		return "", fmt.Errorf("run %s.py: %w", name, err)
	}
	mounts, err := filepath.Glob(fmt.Sprintf("/proc/%d/root%s/images/*", s.PID(), s.Paths.Run))
	if err != nil || len(mounts) == 0 {
		return "", fmt.Errorf("the server has mounted nothing: %w", err)
	}
	temp := tree + ".new"
	if err := os.RemoveAll(temp); err != nil {
		return "", err
	}
	if err := os.Mkdir(temp, 0o755); err != nil {
		return "", err
	}
	if err := shell(o, `tar -C "$1" --xattrs -cf - . | tar -C "$2" --xattrs -xpf -`, mounts[0], temp); err != nil {
		return "", fmt.Errorf("copy the files: %w", err)
	}
	return tree, os.Rename(temp, tree)
}

// shell runs a script with arguments $1 and on.
func shell(o options, script string, args ...string) error {
	cmd := exec.CommandContext(o.ctx, "bash", append([]string{"-euo", "pipefail", "-c", script, "bash"}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

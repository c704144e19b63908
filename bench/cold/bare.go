package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"brisk.dev/brisk/bench/drive"
	"brisk.dev/brisk/internal/node/channel"
)

// bare is the rival: runsc's own restore of the same snapshot on the same mounted
// image, nothing made beforehand, without control groups, in an empty network
// namespace. It is timed from the exec of runsc to the answer to one call.
type bare struct {
	runsc    string
	snapshot string // directory of the checkpoint's files
	dir      string // of this rival
	spec     specs.Spec
	pid      int // of the server, in whose mount namespace the image is
	input    []byte
	n        int
}

// bundle is what is kept of a sandbox that the server has created, in dir: its
// config.json, and, where its root is an overlay that adds mount points to the
// image, that layer.
type bundle struct {
	dir   string
	image string // the mounted image's directory
}

// keepBundle copies the bundle of the one sandbox that the server has created beforehand.
func keepBundle(s *drive.Server, function, dir string) (bundle, error) {
	found, err := filepath.Glob(filepath.Join(s.Paths.Run, "runsc", "bundles", "i-*", "config.json"))
	if err != nil || len(found) != 1 {
		return bundle{}, fmt.Errorf("%d created sandboxes, want 1 (%v)", len(found), err) //nolint:errorlint // there may be none
	}
	var f struct {
		Image string `json:"image"`
	}
	definition, err := os.ReadFile(filepath.Join(s.Paths.Data, "functions", function+".json"))
	if err == nil {
		err = json.Unmarshal(definition, &f)
	}
	if err != nil {
		return bundle{}, err
	}
	if err := os.RemoveAll(dir); err != nil {
		return bundle{}, err
	}
	if err := drive.CopyFile(found[0], filepath.Join(dir, "config.json")); err != nil {
		return bundle{}, err
	}
	points := filepath.Join(filepath.Dir(found[0]), "points")
	if _, err := os.Stat(points); err == nil {
		if out, err := exec.Command("cp", "-a", points, filepath.Join(dir, "points")).CombinedOutput(); err != nil {
			return bundle{}, fmt.Errorf("keep the mount points: %w: %s", err, out)
		}
	}
	return bundle{dir: dir, image: filepath.Join(s.Paths.Run, "images", f.Image)}, nil
}

// newBare makes the rival's bundle out of one of Brisk's. close frees it.
func newBare(s *drive.Server, runsc string, kept bundle, function, dir string, input []byte) (*bare, error) {
	b := &bare{runsc: runsc, snapshot: filepath.Join(s.Paths.Data, "snapshots", function, "image"), dir: dir, pid: s.PID(), input: input}
	if err := os.RemoveAll(dir); err != nil { // of a run that was killed
		return nil, err
	}
	raw, err := os.ReadFile(filepath.Join(kept.dir, "config.json"))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, &b.spec); err != nil {
		return nil, err
	}
	b.spec.Root.Path = kept.image
	if points := filepath.Join(kept.dir, "points"); exists(points) {
		b.spec.Root.Path = filepath.Join(dir, "root")
		if err := os.MkdirAll(b.spec.Root.Path, 0o755); err != nil {
			return nil, err
		}
		if err := b.inServer("mount", "-t", "overlay", "-o", "ro,lowerdir="+points+":"+kept.image, "overlay", b.spec.Root.Path); err != nil {
			return nil, err
		}
	}
	b.spec.Linux.CgroupsPath, b.spec.Linux.Resources = "", nil
	for i, n := range b.spec.Linux.Namespaces {
		if n.Type == specs.NetworkNamespace {
			b.spec.Linux.Namespaces[i].Path = ""
		}
	}
	for i, m := range b.spec.Mounts {
		switch own := filepath.Join(dir, filepath.Base(m.Source)); m.Destination {
		case "/run/brisk":
			b.spec.Mounts[i].Source = filepath.Join(dir, "run")
		case "/etc/hosts", "/etc/resolv.conf":
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return nil, err
			}
			if err := os.WriteFile(own, []byte("127.0.0.1 localhost\n"), 0o644); err != nil {
				return nil, err
			}
			b.spec.Mounts[i].Source = own
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "run"), 0o755); err != nil {
		return nil, err
	}
	config, err := json.Marshal(b.spec)
	if err != nil {
		return nil, err
	}
	return b, os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// inServer runs a command in the server's mount namespace.
func (b *bare) inServer(args ...string) error {
	out, err := exec.Command("nsenter", append([]string{"--target", strconv.Itoa(b.pid), "--mount", "--"}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", args[0], err, out)
	}
	return nil
}

// close frees what newBare has made.
func (b *bare) close() error {
	if b.spec.Root.Path == filepath.Join(b.dir, "root") {
		if err := b.inServer("umount", "-l", b.spec.Root.Path); err != nil {
			return err
		}
	}
	return os.RemoveAll(b.dir)
}

func (b *bare) command(ctx context.Context, args ...string) *exec.Cmd {
	flags := []string{
		"--target", strconv.Itoa(b.pid), "--mount", "--", b.runsc, "--root=" + filepath.Join(b.dir, "state"), "--platform=systrap",
		"--network=sandbox", "--host-uds=open", "--overlay2=root:memory", "--ignore-cgroups",
	}
	return exec.CommandContext(ctx, "nsenter", append(flags, args...)...)
}

// call restores, calls once and destroys; it gives the time to the answer and
// what was answered.
func (b *bare) call(ctx context.Context) (ms float64, result []byte, err error) {
	b.n++
	id := fmt.Sprintf("bare-%d", b.n)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	l, err := channel.Listen(filepath.Join(b.dir, "run", "runner.sock"))
	if err != nil {
		return 0, nil, err
	}
	defer l.Close()
	start := time.Now()
	restore := b.command(ctx, "restore", "--detach", "--image-path="+b.snapshot, "--bundle="+b.dir, id)
	// A file, since the sandbox inherits it: Wait would wait for a pipe to be closed.
	said, err := os.Create(filepath.Join(b.dir, "stderr"))
	if err != nil {
		return 0, nil, err
	}
	defer said.Close()
	restore.Stderr = said
	if err := restore.Start(); err != nil {
		return 0, nil, err
	}
	ended := make(chan error, 1)
	go func() {
		err := restore.Wait()
		if err != nil {
			_ = l.Close() // nobody will dial
		}
		ended <- err
	}()
	defer func() {
		if out, derr := b.command(context.Background(), "delete", "--force", id).CombinedOutput(); derr != nil && err == nil {
			err = fmt.Errorf("runsc delete: %w: %s", derr, out)
		}
	}()
	conn, _, err := l.Accept(ctx)
	if err != nil {
		return 0, nil, fmt.Errorf("bare restore: %w: %s", err, b.said())
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.Send(channel.Resume{Env: env(b.spec.Process.Env), Seed: strings.Repeat("00", 32), TimeNS: time.Now().UnixNano()}, nil, deadline); err != nil {
		return 0, nil, err
	}
	if err := conn.Send(channel.Call{ID: "c-bare", DeadlineMS: 60000}, b.input, deadline); err != nil {
		return 0, nil, err
	}
	m, err := conn.Receive(deadline)
	ms = float64(time.Since(start).Microseconds()) / 1000
	if err == nil && m.Type != "result" {
		err = fmt.Errorf("bare restore: %s: %+v", m.Type, m.Error)
	}
	if rerr := <-ended; rerr != nil && err == nil {
		err = fmt.Errorf("runsc restore: %w: %s", rerr, b.said())
	}
	return ms, m.Payload, err
}

// said is what the last runsc said on standard error.
func (b *bare) said() string {
	out, _ := os.ReadFile(filepath.Join(b.dir, "stderr"))
	return string(out)
}

func env(list []string) map[string]string {
	m := map[string]string{}
	for _, kv := range list {
		k, v, _ := strings.Cut(kv, "=")
		m[k] = v
	}
	return m
}

package build

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/image/build/dockerfile"
	"brisk.dev/brisk/internal/image/registry"
	"brisk.dev/brisk/internal/store"
)

// Containers makes images of container images, without a name. An importer is one.
// progress counts bytes.
type Containers interface {
	// Pull reads from a registry; source is the reference with the digest that it led to.
	Pull(ctx context.Context, workspace string, from Remote, progress func(done, total int64)) (made store.Digest, source string, err error)
	// Import reads a file or directory of this machine.
	Import(ctx context.Context, workspace, path string, progress func(done, total int64)) (made store.Digest, err error)
}

// Remote is an image in a registry.
type Remote struct {
	Ref      string         `json:"ref"`
	Insecure bool           `json:"insecure"` // http and untrusted certificates are allowed
	Auth     *registry.Auth `json:"auth"`     // nil: Containers looks for credentials itself
}

// fromRegistry begins with a container image. The registry is asked each time what the
// reference means now; what it led to before is not fetched again. If the registry does
// not answer, what it said last has to do.
func (r *run) fromRegistry(ctx context.Context, base Base) error {
	ref := base.Ref
	from := Remote{Ref: ref, Insecure: base.Insecure, Auth: base.Auth}
	key := workKey("registry", r.workspace, ref)
	if from.Insecure { // who asks for more must not get what was read so
		key = workKey("registry", r.workspace, ref, "insecure")
	}
	// Whoever comes with other credentials waits for no pull that these may fail.
	asked := workKey("pull", r.workspace, from)
	text := "container image " + ref
	r.begin(text, false)
	img, err := r.flight(ctx, asked, "", true, func(ctx context.Context, out *output) (store.Digest, error) {
		made, source, err := r.b.opts.Containers.Pull(ctx, r.workspace, from, printed(out, "fetched"))
		if err == nil {
			fmt.Fprintf(out, "%s is %s\n", ref, source)
			return made, r.b.memo.Put(key, made)
		}
		if fault.Is(err, fault.Unavailable) {
			if last, lastErr := r.b.memo.Recall(ctx, r.b.opts.Images, r.workspace, key); lastErr == nil && last != nil {
				fmt.Fprintf(out, "%v\ngoing on with what it was last: image %s\n", err, last.Digest.Short())
				return last.Digest, nil
			}
		}
		return store.Digest{}, err
	})
	if err != nil {
		return err
	}
	return r.on(img)
}

// fromDockerfile begins with what the machine's builder makes of a Dockerfile.
func (r *run) fromDockerfile(ctx context.Context, base Base) error {
	if r.workspace != image.DefaultWorkspace {
		return fault.New(fault.Invalid, "a Dockerfile is built outside of sandboxes, and only for the workspace %s", image.DefaultWorkspace).
			WithHint("Build the image elsewhere, push it to a registry, and begin with that.")
	}
	img, err := r.make(ctx, workKey("dockerfile", r.workspace, base), "Dockerfile", true, func(ctx context.Context, out *output) (*image.Image, error) {
		return r.b.dockerfile(ctx, r.workspace, base, out)
	})
	if err != nil {
		return err
	}
	return r.on(img)
}

func (b *Builder) dockerfile(ctx context.Context, workspace string, base Base, out *output) (*image.Image, error) {
	tool, err := dockerfile.Find("")
	if err != nil {
		return nil, err
	}
	dir, remove, err := b.private("dockerfile")
	if err != nil {
		return nil, err
	}
	defer remove()
	build := dockerfile.Build{Context: filepath.Join(dir, "context"), File: filepath.Join(dir, "Dockerfile"), Args: base.BuildArgs}
	result := filepath.Join(dir, "result")
	for _, d := range []string{build.Context, result} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return nil, store.DiskError(err, "make a directory in", dir)
		}
	}
	if err := os.WriteFile(build.File, []byte(base.Dockerfile), 0o600); err != nil {
		return nil, store.DiskError(err, "write into", dir)
	}
	if base.Context != "" {
		if err := b.unpack(ctx, workspace, base.Context, build.Context); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, b.opts.StepTimeout)
	defer cancel()
	fmt.Fprintf(out, "building with %s\n", tool.Name)
	path, err := tool.Build(ctx, build, result, out)
	if fault.Is(err, fault.BuildFailed) {
		return nil, failed(tool.Name+" could not build it", out)
	}
	if err != nil {
		return nil, err
	}
	made, err := b.opts.Containers.Import(ctx, workspace, path, printed(out, "imported"))
	if err != nil {
		return nil, err
	}
	return b.opts.Images.Get(ctx, image.Ref{Workspace: workspace, Name: made.String()})
}

// printed is a progress that says how far it is at each tenth.
func printed(out io.Writer, what string) func(done, total int64) {
	said := int64(0)
	return func(done, total int64) {
		if total < 64<<20 { // over in a moment
			return
		}
		if tenth := done * 10 / total; tenth > said {
			said = tenth
			fmt.Fprintf(out, "%s %d of %d MiB\n", what, done>>20, total>>20)
		}
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/fault"
)

func (a *app) imageBuildCommand() *cobra.Command {
	var file, name, builder string
	var arguments []string
	c := &cobra.Command{
		Use:   "build DIR",
		Short: "Make an image of a Dockerfile",
		Long: `Make an image of the Dockerfile in a directory, through whichever of buildah, docker and
buildctl is installed, in this order; its cache makes the second time quick. What it
prints goes to standard error.

Exit status: 0; 2 if there is no Dockerfile; 5 if the build fails; 6 if no builder is
installed.`,
		Example: `  brisk image build -t app .
  brisk image build -t app -f docker/Dockerfile --build-arg VERSION=3 . --json`,
		Args: cobra.ExactArgs(1),
		RunE: work(func(ctx context.Context, args []string) error {
			d := dockerfile{dir: args[0], file: file, arguments: arguments, out: a.err}
			if err := d.check(); err != nil {
				return err
			}
			with, err := findBuilder(builder)
			if err != nil {
				return err
			}
			if name == "" {
				path, err := filepath.Abs(args[0])
				if err != nil {
					return err
				}
				name = filepath.Base(path)
			}
			temp, err := os.MkdirTemp("", "brisk-build-")
			if err != nil {
				return err
			}
			defer os.RemoveAll(temp)
			archive := filepath.Join(temp, "image.tar")
			fmt.Fprintf(a.err, "brisk: building with %s\n", with.name)
			if err := with.build(ctx, d, archive); err != nil {
				return err
			}
			return a.asking(func(ctx context.Context, c *api.Client, _ []string) error {
				p := a.startProgress(name)
				r, err := c.Import(ctx, api.ImportRequest{Path: archive, Name: name}, p.update)
				p.stop()
				if err != nil {
					return err
				}
				return a.answer(r, func(w io.Writer) { writeImported(w, "built", r) })
			})(ctx, nil)
		}),
	}
	c.Flags().StringVarP(&file, "file", "f", "", "`path` of the Dockerfile (default DIR/Dockerfile, or DIR/Containerfile)")
	c.Flags().StringVarP(&name, "tag", "t", "", "`name` of the image (default: DIR's own name)")
	c.Flags().StringArrayVar(&arguments, "build-arg", nil, "`NAME=VALUE` for an ARG; can be given again")
	c.Flags().StringVar(&builder, "builder", "", "use this one: buildah, docker or buildctl")
	return c
}

// dockerfile is what is to be built.
type dockerfile struct {
	dir, file string
	arguments []string
	out       io.Writer
}

// check finds the Dockerfile.
func (d *dockerfile) check() error {
	if st, err := os.Stat(d.dir); err != nil || !st.IsDir() {
		return fault.New(fault.Invalid, "%s is not a directory", d.dir).WithHint("Name the directory that the Dockerfile copies from.")
	}
	candidates := []string{d.file}
	if d.file == "" {
		candidates = []string{filepath.Join(d.dir, "Dockerfile"), filepath.Join(d.dir, "Containerfile")}
	}
	for _, path := range candidates {
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() {
			d.file = path
			return nil
		}
	}
	return fault.New(fault.Invalid, "there is no %s", candidates[0]).WithHint("Name the Dockerfile with -f.")
}

// builder is a program that builds Dockerfiles.
type builder struct {
	name string
	// steps are the command lines that leave the image as an archive. temp is a
	// directory for files between them.
	steps func(d dockerfile, archive, temp string) [][]string
}

// imageID is the file to which a builder writes what it has built.
const imageID = "id"

var builders = []builder{
	{
		name: "buildah",
		steps: func(d dockerfile, archive, temp string) [][]string {
			id := filepath.Join(temp, imageID)
			return [][]string{
				append(append([]string{"buildah", "build", "--layers", "--iidfile", id, "-f", d.file}, d.flags("--build-arg")...), d.dir),
				{"sh", "-ec", `buildah push "$(cat "$1")" "oci-archive:$2"`, "sh", id, archive},
			}
		},
	},
	{
		name: "docker",
		steps: func(d dockerfile, archive, temp string) [][]string {
			id := filepath.Join(temp, imageID)
			return [][]string{
				append(append([]string{"docker", "build", "--iidfile", id, "-f", d.file}, d.flags("--build-arg")...), d.dir),
				{"sh", "-ec", `docker save -o "$2" "$(cat "$1")"`, "sh", id, archive},
			}
		},
	},
	{
		name: "buildctl",
		steps: func(d dockerfile, archive, _ string) [][]string {
			args := []string{"buildctl", "build", "--frontend", "dockerfile.v0", "--local", "context=" + d.dir,
				"--local", "dockerfile=" + filepath.Dir(d.file), "--opt", "filename=" + filepath.Base(d.file), "--output", "type=oci,dest=" + archive}
			for _, arg := range d.arguments {
				args = append(args, "--opt", "build-arg:"+arg)
			}
			return [][]string{args}
		},
	},
}

func (d dockerfile) flags(name string) (l []string) {
	for _, arg := range d.arguments {
		l = append(l, name, arg)
	}
	return l
}

// findBuilder takes the one that is asked for, or the first that is installed.
func findBuilder(asked string) (builder, error) {
	var names []string
	for _, b := range builders {
		names = append(names, b.name)
		if asked != "" && asked != b.name {
			continue
		}
		if _, err := exec.LookPath(b.name); err == nil {
			return b, nil
		}
		if asked != "" {
			return b, fault.New(fault.Machine, "%s is not installed", asked).WithHint("Install it, or leave --builder out.")
		}
	}
	if asked != "" {
		return builder{}, fault.New(fault.Invalid, "the builder %q is not known: want %s", asked, strings.Join(names, ", "))
	}
	return builder{}, fault.New(fault.Machine, "nothing that builds Dockerfiles is installed: %s", strings.Join(names, ", ")).
		WithHint("On Debian and Ubuntu: apt-get install buildah.")
}

// build runs the builder. The image stays in the builder's own store, without a name:
// it is the cache for the next time, and may be one that the user has built.
func (b builder) build(ctx context.Context, d dockerfile, archive string) error {
	temp := filepath.Dir(archive)
	for _, args := range b.steps(d, archive, temp) {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Stdout, cmd.Stderr = d.out, d.out
		err := cmd.Run()
		var exit *exec.ExitError
		switch {
		case ctx.Err() != nil:
			return fault.Wrap(ctx.Err(), "build", d.file)
		case errors.As(err, &exit):
			return fault.New(fault.BuildFailed, "%s failed to build %s: %v", b.name, d.file, err).WithHint("What it printed above says why.")
		case err != nil:
			return fault.Wrap(err, "run", args[0])
		}
	}
	return nil
}

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/image/build/dockerfile"
)

func (a *app) imageBuildCommand() *cobra.Command {
	var file, name, builder string
	var arguments []string
	c := &cobra.Command{
		Use:   "build DIR",
		Short: "Make an image of a Dockerfile",
		Long: `Make an image of the Dockerfile in a directory, through the first of buildah, docker (with or
without buildx) and buildctl that is installed and works. What it prints goes to standard error.

The builder works as you, outside of any sandbox. What it keeps is its cache, which makes
the second time quick: layers without a name, which "buildah prune" or "docker image
prune" removes.

Exit status: 0; 2 if there is no Dockerfile; 5 if the build fails; 6 if no builder is
installed, or none works.`,
		Example: `  brisk image build -t app .
  brisk image build -t app -f docker/Dockerfile --build-arg VERSION=3 . --json`,
		Args: cobra.ExactArgs(1),
		RunE: work(func(ctx context.Context, args []string) error {
			what := dockerfile.Build{Context: args[0], File: file}
			if err := what.Find(); err != nil {
				return err
			}
			var err error
			if what.Args, err = buildArguments(arguments); err != nil {
				return err
			}
			with, err := dockerfile.Find(builder)
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
			if err := image.CheckRef(image.DefaultWorkspace, name); err != nil {
				return err
			}
			temp, err := os.MkdirTemp(cmp.Or(os.Getenv("TMPDIR"), "/var/tmp"), "brisk-build-") // /tmp may be memory
			if err != nil {
				return err
			}
			defer os.RemoveAll(temp)
			fmt.Fprintf(a.err, "brisk: building with %s\n", with.Name)
			path, err := with.Build(ctx, what, temp, a.err)
			if err != nil {
				return err
			}
			return a.asking(func(ctx context.Context, c *api.Client, _ []string) error {
				p := a.startProgress(name)
				r, err := c.Import(ctx, api.ImportRequest{Path: path, Name: name}, p.update)
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
	c.Flags().StringArrayVar(&arguments, "build-arg", nil, "`NAME=VALUE` for an ARG, or NAME to take it from the environment; can be given again")
	c.Flags().StringVar(&builder, "builder", "", "use this one: buildah, docker or buildctl")
	return c
}

// buildArguments reads NAME=VALUE; a NAME alone takes the value from the environment,
// and is left out if it has none there.
func buildArguments(given []string) (map[string]string, error) {
	args := map[string]string{}
	for _, arg := range given {
		name, value, ok := strings.Cut(arg, "=")
		if !ok {
			value, ok = os.LookupEnv(name)
		}
		if name == "" {
			return nil, fault.New(fault.Invalid, "the build argument %q has no name: want NAME=VALUE", arg)
		}
		if ok {
			args[name] = value
		}
	}
	return args, nil
}

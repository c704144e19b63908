package node

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"brisk.dev/brisk/internal/function"
	"brisk.dev/brisk/internal/image"
	"brisk.dev/brisk/internal/image/guess"
	"brisk.dev/brisk/internal/store"
)

// entry is what is to be started on an image.
type entry struct {
	image.Entry
	guess image.Guess
}

// restored is the same from a snapshot.
func (e *entry) restored() *entry {
	return &entry{Entry: image.NewEntry("restore", e.Label)}
}

// functionEntry is a function, whatever its code is now: another version of it
// reads much the same.
func functionEntry(f *function.Function, code, sdk string) *entry {
	e := &entry{Entry: image.NewEntry("function", f.App, f.Name, f.Module, f.Qualname)}
	e.guess = guessOf(func(img *image.Image) guess.Spec {
		s := guess.Spec{Args: []string{"python3"}, Env: img.Config().Env}
		for _, source := range []string{
			filepath.Join(sdk, "brisk", "_runner.py"),
			filepath.Join(code, strings.ReplaceAll(f.Module, ".", "/")+".py"),
			filepath.Join(code, strings.ReplaceAll(f.Module, ".", "/"), "__init__.py"),
		} {
			s.Modules = append(s.Modules, importsOf(source)...)
		}
		if f.Serialized {
			s.Modules = append(s.Modules, "cloudpickle")
		}
		return s
	})
	return e
}

// commandEntry is a command, whatever its arguments are but the first: a script
// or subcommand; there is no end of others, and they may be secret.
func commandEntry(c ContainerSpec) *entry {
	first := c.Args[:min(len(c.Args), 2)]
	if len(c.Args) > 2 && c.Args[1] == "-m" {
		first = c.Args[:3]
	}
	e := &entry{Entry: image.NewEntry("command", first...)}
	e.guess = guessOf(func(img *image.Image) guess.Spec {
		args, err := command(img.Config(), c.Args)
		if err != nil {
			return guess.Spec{}
		}
		s := guess.Spec{Args: args, Env: img.Config().Env, Workdir: c.Workdir}
		if s.Workdir == "" {
			s.Workdir = img.Config().Workdir
		}
		return s
	})
	return e
}

func guessOf(spec func(img *image.Image) guess.Spec) image.Guess {
	return func(ctx context.Context, img *image.Image, emit func([]store.Chunk)) error {
		tree, err := img.Tree(ctx)
		if err != nil {
			return err
		}
		return guess.Chunks(ctx, tree, img.ReadChunk, spec(img), emit)
	}
}

// importsOf reads what a source file of the host imports, as far as it can.
func importsOf(path string) []string {
	const most = 1 << 20
	if st, err := os.Stat(path); err != nil || !st.Mode().IsRegular() || st.Size() > most {
		return nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return guess.Imports(b)
}

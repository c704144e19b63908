package guess

import (
	"bufio"
	"debug/elf"
	"io"
	"path"
	"strings"

	"brisk.dev/brisk/internal/image"
)

// elf names what the kernel and the loader read of an ELF file, and of everything that
// it is linked with. What is no ELF file is named whole.
func (g *guesser) elf(n *image.Node, real string) error {
	type job struct {
		n    *image.Node
		real string
	}
	for todo := []job{{n, real}}; len(todo) > 0; todo = todo[1:] {
		n, real := todo[0].n, todo[0].real
		if g.done[n] {
			continue
		}
		g.done[n] = true
		f, err := elf.NewFile(g.open(n))
		if err != nil {
			if err := g.ctx.Err(); err != nil {
				return err
			}
			if err := g.whole(n); err != nil {
				return err
			}
			continue
		}
		for _, p := range f.Progs {
			if p.Type == elf.PT_INTERP && p.Filesz < 4096 {
				b := make([]byte, p.Filesz)
				if _, err := p.ReadAt(b, 0); err == nil {
					if in, at, ok := g.lookup(strings.TrimRight(string(b), "\x00")); ok {
						todo = append(todo, job{in, at})
					}
				}
			}
		}
		if err := g.mapped(n, f); err != nil {
			return err
		}
		needed, _ := f.ImportedLibraries()
		for _, name := range needed {
			if in, at, ok := g.library(name, real, f); ok {
				todo = append(todo, job{in, at})
			}
		}
	}
	return nil
}

// wholeLibrary is up to where a library is named whole: its code is read in all
// places, and the kernel reads ahead around each. Of larger ones the loader
// reads symbols and relocations, and writes to the data: everything but the code,
// of which nobody knows what will run.
const wholeLibrary = 12 << 20

func (g *guesser) mapped(n *image.Node, f *elf.File) error {
	if n.Size <= wholeLibrary {
		return g.part(n, 0, n.Size)
	}
	if err := g.part(n, 0, 4096); err != nil {
		return err
	}
	for _, s := range f.Sections {
		switch s.Name {
		case ".gnu.hash", ".hash", ".dynsym", ".dynstr", ".gnu.version", ".gnu.version_r", ".rela.dyn", ".rel.dyn", ".relr.dyn", ".rela.plt",
			".init", ".init_array", ".fini_array", ".data.rel.ro", ".dynamic", ".got", ".got.plt", ".data", ".tdata":
			if err := g.part(n, int64(s.Offset), int64(s.Offset+s.FileSize)); err != nil {
				return err
			}
		}
	}
	if len(f.Sections) == 0 {
		return g.whole(n)
	}
	return nil
}

// library finds a library as ld.so does: where the file itself says, in
// LD_LIBRARY_PATH, where the configuration says, and in the usual places.
func (g *guesser) library(name, from string, f *elf.File) (*image.Node, string, bool) {
	if strings.Contains(name, "/") {
		return g.lookup(path.Join(path.Dir(from), name))
	}
	var dirs []string
	for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
		values, _ := f.DynString(tag)
		for _, v := range values {
			for dir := range strings.SplitSeq(v, ":") {
				dir = strings.ReplaceAll(dir, "${ORIGIN}", path.Dir(from))
				dirs = append(dirs, strings.ReplaceAll(dir, "$ORIGIN", path.Dir(from)))
			}
		}
	}
	if v := g.env("LD_LIBRARY_PATH", ""); v != "" {
		dirs = append(dirs, strings.Split(v, ":")...)
	}
	if g.dirs == nil {
		g.dirs = g.libraryDirs()
	}
	for _, dir := range append(dirs, g.dirs...) {
		if !path.IsAbs(dir) {
			continue
		}
		if n, real, ok := g.lookup(path.Join(dir, name)); ok {
			return n, real, true
		}
	}
	return nil, "", false
}

// libraryDirs are the directories that libraries of the image are in: those that
// ld.so.conf names, and those that loaders know.
func (g *guesser) libraryDirs() []string {
	var dirs []string
	for _, conf := range g.configurations() {
		lines := bufio.NewScanner(io.NewSectionReader(g.open(conf), 0, min(conf.Size, 64<<10)))
		for lines.Scan() {
			if line := strings.TrimSpace(lines.Text()); path.IsAbs(line) {
				dirs = append(dirs, line)
			}
		}
	}
	for _, base := range []string{"/lib", "/usr/lib"} {
		n, _, ok := g.dir(base)
		if !ok {
			continue
		}
		for _, c := range n.Sorted() {
			if strings.Contains(c.Name, "-linux-") {
				dirs = append(dirs, path.Join(base, c.Name))
			}
		}
	}
	return append(dirs, "/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib")
}

func (g *guesser) configurations() (l []*image.Node) {
	if n, _, ok := g.lookup("/etc/ld.so.conf"); ok {
		l = append(l, n)
	}
	if d, _, ok := g.dir("/etc/ld.so.conf.d"); ok {
		for _, c := range d.Sorted() {
			if n := c.File(); n.IsRegular() && strings.HasSuffix(c.Name, ".conf") {
				l = append(l, n)
			}
		}
	}
	return l
}

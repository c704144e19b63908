package floors

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "brisk.dev/brisk"

// floors, from the roof to the ground. A package belongs to the longest entry
// that is its path or a folder above it. It may import what is on a lower floor,
// what is below its own entry, and nothing else.
var floors = [][]string{
	{"cmd", "bench", "test"},
	{"internal/server"},
	{"internal/api"},
	{"internal/scheduler"},
	{"internal/node"},
	{"internal/snapshot"},
	{"internal/sandbox"},
	{"internal/lazyfs", "internal/blockdev"},
	{"internal/image", "internal/function", "sdk"},
	{"internal/store", "internal/cluster"},
	{"internal/doctor", "internal/floors", "internal/tools"},
	{"internal/fault", "internal/trace"},
}

// unclear are names that say nothing about what is inside.
var unclear = []string{"util", "utils", "helper", "helpers", "common", "shared", "misc", "base", "lib", "types", "stuff"}

// pkg is one folder with Go files.
type pkg struct {
	dir     string              // from the root of the module, with slashes
	name    string              // of its package clause
	imports map[string][]string // own packages to the files that import them; tests included
	docs    []string            // files with a package comment; tests excluded
	files   int                 // tests excluded
}

func TestImportsPointDown(t *testing.T) {
	packages := load(t)
	require.NotEmpty(t, packages)
	for _, p := range packages {
		from, owner := floorOf(p.dir)
		if owner == "" {
			t.Errorf("%s stands on no floor: give it a line in the table of internal/floors, or put it below a package that has one", p.dir)
			continue
		}
		for imported, files := range p.imports {
			to, other := floorOf(imported)
			if other == owner || to > from {
				continue
			}
			why := "that is upwards"
			if to == from {
				why = "they are side by side"
			}
			t.Errorf("%s imports %s (%s): %s.\n\tDeclare the interface that %s needs in %s, and let somebody above both put the other in.",
				p.dir, imported, strings.Join(files, ", "), why, p.dir, p.dir)
		}
	}
}

func TestEachPackageIsDocumentedOnce(t *testing.T) {
	for _, p := range load(t) {
		switch {
		case p.files == 0: // tests only
		case len(p.docs) == 0:
			t.Errorf("%s has no package comment: say what it is, what it promises, and who may block whom", p.dir)
		case len(p.docs) > 1:
			t.Errorf("%s has %d package comments (%s): keep one", p.dir, len(p.docs), strings.Join(p.docs, ", "))
		}
	}
}

func TestNamesSayWhatIsInside(t *testing.T) {
	for _, p := range load(t) {
		if slices.Contains(unclear, p.name) || slices.Contains(unclear, filepath.Base(p.dir)) {
			t.Errorf("%s: %q says nothing about what is inside: name it for that, or move the code beside its caller", p.dir, p.name)
		}
	}
}

func TestFloorOf(t *testing.T) {
	for _, c := range []struct {
		dir, owner string
		above      string // a package one or more floors lower
	}{
		{"cmd/brisk", "cmd", "internal/api"},
		{"internal/api/blobs", "internal/api", "internal/scheduler"},
		{"internal/store/slab", "internal/store", "internal/fault"},
		{"internal/storefront", "", ""},
		{"internal/nothing", "", ""},
	} {
		floor, owner := floorOf(c.dir)
		assert.Equal(t, c.owner, owner, c.dir)
		if c.above != "" {
			lower, _ := floorOf(c.above)
			assert.Less(t, floor, lower)
		}
	}
}

// floorOf finds the floor of a package, counted from the roof, and the entry it
// belongs to; "" when there is none.
func floorOf(dir string) (floor int, owner string) {
	for i, entries := range floors {
		for _, e := range entries {
			if (dir == e || strings.HasPrefix(dir, e+"/")) && len(e) > len(owner) {
				floor, owner = i, e
			}
		}
	}
	return floor, owner
}

// load reads the package clauses, comments and imports of the whole module, for
// every build constraint at once.
func load(t *testing.T) []*pkg {
	t.Helper()
	root := moduleRoot(t)
	byDir := map[string]*pkg{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != root && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" || nested(path)) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(rel)
		if byDir[dir] == nil {
			byDir[dir] = &pkg{dir: dir, imports: map[string][]string{}}
		}
		byDir[dir].add(name, file)
		return nil
	})
	require.NoError(t, err)
	var all []*pkg
	for _, p := range byDir {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *pkg) int { return strings.Compare(a.dir, b.dir) })
	return all
}

func (p *pkg) add(name string, file *ast.File) {
	if !strings.HasSuffix(name, "_test.go") {
		p.files++
		p.name = file.Name.Name
		if file.Doc != nil && strings.TrimSpace(file.Doc.Text()) != "" {
			p.docs = append(p.docs, name)
		}
	}
	for _, spec := range file.Imports {
		path, _ := strconv.Unquote(spec.Path.Value) // the parser has accepted it
		if own, is := strings.CutPrefix(path, module+"/"); is {
			p.imports[own] = append(p.imports[own], name)
		}
	}
}

// nested reports whether dir is another module.
func nested(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

func moduleRoot(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	require.NoError(t, err)
	for !nested(dir) {
		parent := filepath.Dir(dir)
		require.NotEqual(t, parent, dir, "no go.mod above the test")
		dir = parent
	}
	return dir
}

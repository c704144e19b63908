package guess

import (
	"path"
	"regexp"
	"strconv"
	"strings"

	"brisk.dev/brisk/internal/image"
)

var pythonName = regexp.MustCompile(`^python(3)?(\.(\d+))?t?$`)

func isPython(real string) bool { return pythonName.MatchString(path.Base(real)) }

// Imports lists the modules that a Python source names in its import statements,
// wherever they stand, without relative ones.
func Imports(source []byte) (l []string) {
	seen := map[string]bool{}
	add := func(name string) {
		if name != "" && !seen[name] {
			seen[name] = true
			l = append(l, name)
		}
	}
	for _, m := range importLine.FindAllSubmatch(source, -1) {
		switch {
		case len(m[1]) > 0: // from X import a, b
			add(string(m[1]))
			for name := range strings.SplitSeq(string(m[2]), ",") {
				if name = firstWord(name); name != "*" && name != "" {
					add(string(m[1]) + "." + name) // a module perhaps
				}
			}
		default: // import X, Y as Z
			for name := range strings.SplitSeq(string(m[3]), ",") {
				add(firstWord(name))
			}
		}
	}
	return l
}

var importLine = regexp.MustCompile(`(?m)^[ \t]*(?:from[ \t]+([A-Za-z_][\w.]*)[ \t]+import[ \t]+\(?([\w*, \t]+)|import[ \t]+([A-Za-z_][\w., \t]*))`)

func firstWord(s string) string {
	if f := strings.Fields(s); len(f) > 0 {
		return f[0]
	}
	return ""
}

// atStart are the modules that an interpreter imports by itself, in its order.
var atStart = []string{
	"encodings", "codecs", "encodings.aliases", "encodings.utf_8", "encodings.latin_1", "io", "abc", "site", "os", "stat",
	"_collections_abc", "posixpath", "genericpath", "_sitebuiltins", "sitecustomize", "usercustomize",
}

// frozen are the modules that Python 3.11 and later have inside the program.
var frozen = []string{
	"codecs", "io", "abc", "site", "os", "stat", "_collections_abc", "posixpath", "ntpath", "genericpath", "_sitebuiltins",
	"importlib", "importlib._bootstrap", "importlib._bootstrap_external", "importlib.machinery", "importlib.util", "runpy", "zipimport",
}

// python names what a Python program imports.
func (g *guesser) python(real string, args []string) error {
	p := &python{g: g, modules: map[string]bool{}}
	if !p.layout(real) {
		return nil
	}
	if minor, _ := strconv.Atoi(p.version[1:]); minor >= 11 {
		for _, name := range frozen {
			p.modules[name] = true // they are in the program
		}
	}
	for _, name := range append(append([]string(nil), atStart...), g.spec.Modules...) {
		p.want(name)
	}
	for i := 1; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "-c" && i+1 < len(args):
			for _, name := range Imports([]byte(args[i+1])) {
				p.want(name)
			}
		case a == "-m" && i+1 < len(args):
			p.want("runpy")
			p.want(args[i+1])
			p.want(args[i+1] + ".__main__")
		case strings.HasPrefix(a, "-"):
			continue
		default:
			if err := p.script(a); err != nil {
				return err
			}
		}
		break
	}
	return p.follow()
}

// python is an installation of it, and what is to be imported.
type python struct {
	g       *guesser
	version string   // "311", as in the names of compiled files
	path    []string // directories of modules, links followed
	todo    []string
	modules map[string]bool // that were wanted
}

// layout finds the installation that a program belongs to: its prefix has
// lib/pythonX.Y, or that of the environment that it was started from.
func (p *python) layout(real string) bool {
	g := p.g
	minor := pythonName.FindStringSubmatch(path.Base(real))[3]
	prefix := path.Dir(path.Dir(real))
	var stdlib string
	for _, base := range []string{path.Join(prefix, "lib"), "/usr/lib", "/usr/local/lib"} {
		d, at, ok := g.dir(base)
		if !ok {
			continue
		}
		for _, c := range d.Sorted() {
			m, is := strings.CutPrefix(c.Name, "python3.")
			if !is || minor != "" && m != minor {
				continue
			}
			if _, _, ok := g.lookup(path.Join(at, c.Name, "os.py")); ok {
				stdlib, minor = path.Join(at, c.Name), m
			}
		}
		if stdlib != "" {
			break
		}
	}
	if stdlib == "" {
		return false
	}
	p.version = "3" + minor
	for _, dir := range append(strings.Split(g.env("PYTHONPATH", ""), ":"),
		stdlib, path.Join(stdlib, "lib-dynload"), path.Join(stdlib, "site-packages"),
		path.Join("/usr/local/lib/python3."+minor, "site-packages"), path.Join("/usr/local/lib/python3."+minor, "dist-packages"),
		"/usr/lib/python3/dist-packages") {
		if _, at, ok := g.dir(dir); dir != "" && ok {
			p.path = append(p.path, at)
		}
	}
	return true
}

// script reads a program's source for what it imports.
func (p *python) script(name string) error {
	if !path.IsAbs(name) {
		name = path.Join("/", p.g.spec.Workdir, name)
	}
	n, real, ok := p.g.lookup(name)
	if !ok {
		return nil
	}
	p.path = append([]string{path.Dir(real)}, p.path...)
	return p.source(n, "")
}

// want notes a module to be imported, and the packages that it is in.
func (p *python) want(name string) {
	for i, c := range name {
		if c == '.' {
			p.one(name[:i])
		}
	}
	p.one(name)
}

func (p *python) one(name string) {
	if name == "" || p.modules[name] || len(p.modules) >= maxModules {
		return
	}
	p.modules[name] = true
	p.todo = append(p.todo, name)
}

// maxModules bounds the modules that are looked for: more than the largest of
// frameworks imports.
const maxModules = 1 << 13

// follow imports everything that is wanted, breadth first, and what that wants.
func (p *python) follow() error {
	for _, dir := range p.path { // site reads the .pth files of all
		if n, _, ok := p.g.dir(dir); ok {
			for _, c := range n.Sorted() {
				if strings.HasSuffix(c.Name, ".pth") && c.File().IsRegular() {
					if err := p.g.whole(c.File()); err != nil {
						return err
					}
				}
			}
		}
	}
	for len(p.todo) > 0 {
		name := p.todo[0]
		p.todo = p.todo[1:]
		if err := p.load(name); err != nil {
			return err
		}
	}
	return nil
}

// load finds a module and names its file.
func (p *python) load(name string) error {
	rel := strings.ReplaceAll(name, ".", "/")
	for _, base := range p.path {
		if d, at, ok := p.g.dir(path.Join(base, rel)); ok && d.Children["__init__.py"] != nil {
			return p.module(d, at, "__init__", name)
		}
		if d, at, ok := p.g.dir(path.Join(base, path.Dir(rel))); ok {
			if found, err := p.file(d, at, path.Base(rel), parent(name)); found || err != nil {
				return err
			}
		}
	}
	return nil
}

func parent(name string) string {
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		return name[:i]
	}
	return ""
}

// file names a module that is a file in a directory.
func (p *python) file(d *image.Node, at, base, pkg string) (found bool, err error) {
	for _, suffix := range []string{".cpython-" + p.version + "-x86_64-linux-gnu.so", ".cpython-" + p.version + "-aarch64-linux-gnu.so", ".abi3.so", ".so"} {
		if n := d.Children[base+suffix]; n != nil && n.File().IsRegular() {
			return true, p.g.elf(n.File(), path.Join(at, base+suffix))
		}
	}
	if d.Children[base+".py"] == nil {
		return false, nil
	}
	return true, p.module(d, at, base, pkg)
}

// module names the compiled file of a module, or its source, and reads it for
// further names.
func (p *python) module(d *image.Node, _, base, pkg string) error {
	if cache := d.Children["__pycache__"]; cache != nil {
		if n := cache.Children[base+".cpython-"+p.version+".pyc"]; n != nil && n.File().IsRegular() {
			return p.compiled(n.File(), pkg)
		}
	}
	n := d.Children[base+".py"].File()
	if !n.IsRegular() {
		return nil
	}
	return p.source(n, pkg)
}

// source names a source file.
func (p *python) source(n *image.Node, pkg string) error {
	b, err := p.read(n)
	if err != nil {
		return err
	}
	for _, name := range Imports(b) {
		p.want(name)
	}
	for _, m := range relativeImport.FindAllSubmatch(b, -1) {
		p.relative(pkg, string(m[1]), string(m[2]))
	}
	return nil
}

var relativeImport = regexp.MustCompile(`(?m)^[ \t]*from[ \t]+(\.[\w.]*)[ \t]+import[ \t]+\(?([\w*, \t]+)`)

func (p *python) relative(pkg, from, names string) {
	up := len(from) - len(strings.TrimLeft(from, "."))
	for ; up > 1 && pkg != ""; up-- {
		pkg = parent(pkg)
	}
	if pkg == "" {
		return
	}
	base := pkg
	if rest := strings.TrimLeft(from, "."); rest != "" {
		base += "." + rest
		p.want(base)
	}
	for name := range strings.SplitSeq(names, ",") {
		if name = firstWord(name); name != "" && name != "*" {
			p.want(base + "." + name)
		}
	}
}

// compiled names a compiled file, and wants what its code imports.
func (p *python) compiled(n *image.Node, pkg string) error {
	b, err := p.read(n)
	if err != nil {
		return err
	}
	for _, i := range compiledImports(b) {
		if i.level == 0 {
			p.want(i.name)
			for _, a := range i.attributes {
				p.want(i.name + "." + a)
			}
			continue
		}
		p.relative(pkg, strings.Repeat(".", i.level)+i.name, strings.Join(i.attributes, ","))
	}
	return nil
}

// read names a file whole, and gives its content.
func (p *python) read(n *image.Node) ([]byte, error) {
	if p.g.done[n] {
		return nil, nil
	}
	p.g.done[n] = true
	if err := p.g.whole(n); err != nil {
		return nil, err
	}
	b := make([]byte, min(n.Size, wholeFile))
	_, err := p.g.open(n).ReadAt(b, 0)
	return b, err
}

package importer

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path"
	"regexp"
	"strings"

	"brisk.dev/brisk/internal/fault"
)

// archive is a tar that holds an image's files (an OCI layout, or what `docker
// save` writes), indexed by one pass over its headers: members can then be read
// in any order straight from the file.
type archive struct {
	file    *os.File
	members map[string]member
}

type member struct {
	offset, size int64
	link         string // the member it stands for, if it is a link
}

// maxMembers bounds the index of an archive: layers, configurations, directories.
const maxMembers = 1 << 16

// ownNames matches every path that OCI layouts and `docker save`, podman and
// other writers of the same formats put into an archive. A tar with any other
// name in it is a root filesystem.
var ownNames = regexp.MustCompile(`^(` + strings.Join([]string{
	`blobs(/[a-z0-9]+(/[0-9a-f]{32,128})?)?`,                              // OCI
	`oci-layout`, `index\.json`, `manifest\.json`, `repositories`, `refs`, // both
	`[0-9a-f]{64}(\.json|\.tar|\.tar\.gz)?`,  // docker, podman: configuration, layer, directory of a layer
	`[0-9a-f]{64}/(layer\.tar|json|VERSION)`, // docker before 25
	`sha256:[0-9a-f]{64}(\.tar(\.gz)?)?`,     // kaniko, crane
}, "|") + `)$`)

// holdsImage reads the tar r until it is certain whether it is an image archive
// or a root filesystem; the second is usually clear from the first header. A tar
// with nothing in it is neither: Invalid.
func holdsImage(r io.Reader) (bool, error) {
	names := map[string]bool{}
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		switch {
		case err == io.EOF && len(names) == 0:
			return false, fault.New(fault.Invalid, "it is empty")
		case err == io.EOF:
			return names["manifest.json"] || names["index.json"] && names["oci-layout"], nil
		case err != nil && len(names) == 0:
			return false, notTar(err)
		case err != nil:
			return false, tarError(err)
		}
		name := memberName(h.Name)
		if name == "." {
			continue // "./" begins both kinds
		}
		if !ownNames.MatchString(name) || len(names) >= maxMembers {
			return false, nil
		}
		names[name] = true
	}
}

// openArchive indexes the tar in f. Closing f stays with the caller.
func openArchive(f *os.File) (*archive, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	a := &archive{file: f, members: map[string]member{}}
	for t := tar.NewReader(f); ; {
		h, err := t.Next()
		if err == io.EOF {
			return a, nil
		}
		if err != nil {
			return nil, tarError(err)
		}
		m := member{size: h.Size}
		switch h.Typeflag {
		case tar.TypeReg:
		case tar.TypeSymlink:
			m.link = path.Join(path.Dir(memberName(h.Name)), h.Linkname)
		case tar.TypeLink:
			m.link = memberName(h.Linkname)
		default:
			continue
		}
		// The file is read through no buffer, so here it stands at the member's first byte.
		if m.offset, err = f.Seek(0, io.SeekCurrent); err != nil {
			return nil, err
		}
		if len(a.members) >= maxMembers {
			return nil, fault.New(fault.Invalid, "it has more than %d members", maxMembers)
		}
		a.members[memberName(h.Name)] = m
	}
}

// open gives a member's bytes. NotFound if there is none of the name.
func (a *archive) open(name string) (*io.SectionReader, error) {
	wanted := name
	for range 8 { // links of links, but no circle
		m, ok := a.members[name]
		if !ok {
			return nil, fault.New(fault.NotFound, "it has no member %s", wanted)
		}
		if m.link == "" {
			return io.NewSectionReader(a.file, m.offset, m.size), nil
		}
		name = m.link
	}
	return nil, fault.New(fault.Corrupt, "its member %s is a link that leads nowhere", wanted)
}

func (a *archive) has(name string) bool {
	_, ok := a.members[name]
	return ok
}

// memberName makes spellings of one name equal: "./x", "/x", "x/" are x.
func memberName(name string) string { return path.Clean(strings.TrimLeft(name, "/")) }

// notTar is the error for a file whose very first header does not read.
func notTar(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fault.New(fault.Invalid, "it is neither a tar archive nor a directory")
	}
	return tarError(err)
}

// tarError classifies what the tar reader says.
func tarError(err error) error {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fault.New(fault.Invalid, "the tar archive ends too early: it is truncated")
	case errors.Is(err, tar.ErrHeader), errors.Is(err, tar.ErrFieldTooLong):
		return fault.New(fault.Invalid, "the tar archive is damaged: %w", err)
	}
	return err
}

// tarEnd passes a tar stream on and makes an end without the block of zeros that
// ends an archive an error, Invalid. Package tar takes a file that stops between
// two members for a whole one.
type tarEnd struct {
	r     io.Reader
	block [512]byte
	n     int  // bytes of the current block
	zeros bool // the last whole block was all zeros
}

func (e *tarEnd) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	for b := p[:n]; len(b) > 0; {
		c := copy(e.block[e.n:], b)
		b = b[c:]
		if e.n += c; e.n == len(e.block) {
			e.zeros, e.n = e.block == [512]byte{}, 0
		}
	}
	if err == io.EOF && !e.zeros {
		err = fault.New(fault.Invalid, "the tar archive ends too early: it is truncated")
	}
	return n, err
}

package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

var (
	nameForm      = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}$`)
	workspaceForm = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)
	digitsForm    = regexp.MustCompile(`^[0-9a-f]{8,64}$`)
)

// checkName says why an image cannot have a name, or nil.
func checkName(name string) error {
	if !nameForm.MatchString(name) {
		return fault.New(fault.Invalid, "%s cannot be an image's name", quote(name)).
			WithHint("Names are up to 200 letters, digits and ._:/@+- and begin with a letter or digit.")
	}
	if len(name) == 64 && digitsForm.MatchString(name) {
		return fault.New(fault.Invalid, "%q cannot be an image's name: it would be taken for a digest", name)
	}
	return nil
}

func checkWorkspace(workspace string) error {
	if !workspaceForm.MatchString(workspace) {
		return fault.New(fault.Invalid, "%s cannot be a workspace's name", quote(workspace))
	}
	return nil
}

// CheckRef says why no image can be written to a workspace under a name, or nil:
// for whoever wants to know before the work and not after it. An empty name is no name.
func CheckRef(workspace, name string) error {
	if err := checkWorkspace(workspace); err != nil || name == "" {
		return err
	}
	return checkName(name)
}

// nameFile is what a file in names/ holds.
type nameFile struct {
	Name   string       `json:"name"`
	Digest store.Digest `json:"digest"`
}

func (s *Images) namePath(workspace, name string) string {
	return filepath.Join(s.opt.Dir, workspace, "names", url.QueryEscape(name)+".json")
}

// readName finds the image that a name leads to.
func (s *Images) readName(workspace, name string) (d store.Digest, err error) {
	path := s.namePath(workspace, name)
	b, err := os.ReadFile(path)
	if err != nil {
		return d, err
	}
	var f nameFile
	if err := json.Unmarshal(b, &f); err != nil || f.Name != name || f.Digest.IsZero() {
		return d, fault.New(fault.Corrupt, "the file of the name %s is damaged: %s", quote(name), path).
			WithHint("Import or build the image again.")
	}
	return f.Digest, nil
}

func (s *Images) writeName(workspace, name string, d store.Digest) error {
	b, err := json.Marshal(nameFile{name, d})
	if err != nil {
		return err
	}
	return publish(s.namePath(workspace, name), append(b, '\n'))
}

// names lists a workspace's names, sorted, and where they lead. One whose file is
// damaged leads to the zero digest.
func (s *Images) names(workspace string) ([]nameFile, error) {
	files, err := os.ReadDir(filepath.Join(s.opt.Dir, workspace, "names"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Wrap(err, "list images", "")
	}
	var l []nameFile
	for _, f := range files {
		escaped, ok := strings.CutSuffix(f.Name(), ".json")
		name, err := url.QueryUnescape(escaped)
		if !ok || err != nil {
			continue
		}
		d, err := s.readName(workspace, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			s.log.Warn("an image's name is damaged", "name", name, "error", err)
		}
		l = append(l, nameFile{name, d})
	}
	slices.SortFunc(l, func(a, b nameFile) int { return strings.Compare(a.Name, b.Name) })
	return l, nil
}

// resolve finds the digest that a reference means, and the name if it is one.
func (s *Images) resolve(ref Ref) (d store.Digest, name string, err error) {
	if err := checkWorkspace(ref.Workspace); err != nil {
		return d, "", err
	}
	if nameForm.MatchString(ref.Name) {
		d, err = s.readName(ref.Workspace, ref.Name)
		if err == nil {
			return d, ref.Name, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return d, ref.Name, fault.Wrap(err, "image", ref.Name)
		}
	}
	if digitsForm.MatchString(ref.Name) {
		d, err = s.byPrefix(ref.Workspace, ref.Name)
		return d, "", err
	}
	return d, "", s.notFound(ref)
}

func (s *Images) byPrefix(workspace, prefix string) (d store.Digest, err error) {
	if len(prefix) == 64 {
		return store.ParseDigest(prefix)
	}
	all, err := s.digests(workspace)
	if err != nil {
		return d, err
	}
	var found []store.Digest
	for _, d := range all {
		if strings.HasPrefix(d.String(), prefix) {
			found = append(found, d)
		}
	}
	switch len(found) {
	case 0:
		return d, s.notFound(Ref{workspace, prefix})
	case 1:
		return found[0], nil
	}
	return d, fault.New(fault.Invalid, "%d images have a digest that begins with %s", len(found), prefix).
		WithHint("Give more digits: %s and %s.", found[0], found[1])
}

// notFound is the error for a reference to nothing, with what could have been meant.
func (s *Images) notFound(ref Ref) error {
	e := &fault.Error{Class: fault.NotFound, Err: fmt.Errorf("there is no image %s", quote(ref.Name))}
	l, err := s.names(ref.Workspace)
	if err != nil {
		return e
	}
	var all, near []string
	for _, n := range l {
		all = append(all, n.Name)
		if alike(ref.Name, n.Name) {
			near = append(near, n.Name)
		}
	}
	const most = 10
	switch {
	case len(all) == 0:
		e.WithHint("No image has a name yet: make one with `brisk image import PATH --name NAME`, or let a function's Image be built.")
	case len(near) > 0:
		e.WithHint("Did you mean %s?", strings.Join(near[:min(len(near), 3)], " or "))
	case len(all) > most:
		e.WithHint("There are %d images, among them %s.", len(all), strings.Join(all[:most], ", "))
	default:
		e.WithHint("There are: %s.", strings.Join(all, ", "))
	}
	return e
}

// alike reports whether b may be meant by a: one contains the other, or at most
// two letters are different.
func alike(a, b string) bool {
	a, b = strings.ToLower(a), strings.ToLower(b)
	if len(a) >= 3 && strings.Contains(b, a) || len(b) >= 3 && strings.Contains(a, b) {
		return true
	}
	return distance(a, b) <= min(2, len(a)-1)
}

// distance is Levenshtein's.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

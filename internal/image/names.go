package image

import (
	"context"
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
	"brisk.dev/brisk/internal/store/seal"
)

var (
	nameForm   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}$`)
	digitsForm = regexp.MustCompile(`^[0-9a-f]{8,64}$`)
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

func checkWorkspace(workspace string) error { return seal.CheckWorkspace(workspace) }

// CheckRef says why no image can be written to a workspace under a name, or nil:
// for whoever wants to know before the work and not after it. An empty name is no name.
func CheckRef(workspace, name string) error {
	if err := checkWorkspace(workspace); err != nil || name == "" {
		return err
	}
	if _, ok := sharedName(workspace, name); ok {
		return fault.New(fault.Invalid, "%s would be the name of a shared image", quote(name)).
			WithHint("Take another name; `brisk image share NAME` makes an image shared.")
	}
	return checkName(name)
}

func (s *Images) namePath(workspace, name string) string {
	return filepath.Join(s.opt.Dir, workspace, "names", url.QueryEscape(name)+".json")
}

// nameList lists a workspace's names, sorted.
func (s *Images) nameList(ctx context.Context, workspace string) ([]string, error) {
	l, err := s.listRecords(ctx, workspace, kindNames, func() (l []string, err error) {
		files, err := os.ReadDir(filepath.Join(s.opt.Dir, workspace, "names"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, f := range files {
			if escaped, ok := strings.CutSuffix(f.Name(), ".json"); ok {
				if name, err := url.QueryUnescape(escaped); err == nil {
					l = append(l, name)
				}
			}
		}
		return l, nil
	})
	slices.Sort(l)
	return l, fault.Wrap(err, "list images", "")
}

// names lists a workspace's names, sorted, and where they lead. One that is
// damaged leads to the zero digest.
func (s *Images) names(ctx context.Context, workspace string) ([]nameFile, error) {
	l, err := s.nameList(ctx, workspace)
	if err != nil {
		return nil, err
	}
	all := make([]nameFile, len(l))
	err = eachOf(ctx, len(l), func(ctx context.Context, i int) error {
		d, err := s.readName(ctx, workspace, l[i])
		if fault.Is(err, fault.NotFound) {
			return nil // removed meanwhile
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			s.log.Warn("an image's name is damaged", "name", l[i], "error", err)
		}
		all[i] = nameFile{l[i], d}
		return nil
	})
	return slices.DeleteFunc(all, func(n nameFile) bool { return n.Name == "" }), err
}

// target is the image that a reference means.
type target struct {
	workspace string       // its own: the reference's, or the shared one
	digest    store.Digest // zero if name is damaged
	name      string       // if the reference is one
}

// resolve finds the image that a reference means. With an error, name says whether it
// was found as a name.
func (s *Images) resolve(ctx context.Context, ref Ref) (t target, err error) {
	if err := checkWorkspace(ref.Workspace); err != nil {
		return t, err
	}
	if name, ok := sharedName(ref.Workspace, ref.Name); ok {
		t, err := s.resolve(ctx, Ref{store.SharedWorkspace, name})
		if fault.Is(err, fault.NotFound) && t.name == "" {
			err = s.notFound(ctx, ref)
		}
		return t, err
	}
	t.workspace = ref.Workspace
	if whole := len(ref.Name) == 64 && digitsForm.MatchString(ref.Name); !whole && nameForm.MatchString(ref.Name) {
		t.digest, err = s.readName(ctx, ref.Workspace, ref.Name)
		if err == nil {
			t.name = ref.Name
			return t, nil
		}
		if !fault.Is(err, fault.NotFound) {
			if fault.Is(err, fault.Corrupt) {
				t.name = ref.Name
				e := &fault.Error{Class: fault.Corrupt, Op: "image", Object: ref.Name, Err: err}
				return t, e.WithHint("Where this name leads is not known any more: import, pull or build the image again under it, or name it by its digest (`brisk image ls --all`).")
			}
			return t, fault.Wrap(err, "image", ref.Name)
		}
	}
	if digitsForm.MatchString(ref.Name) {
		t.digest, err = s.byPrefix(ctx, ref.Workspace, ref.Name)
		return t, err
	}
	return t, s.notFound(ctx, ref)
}

func (s *Images) byPrefix(ctx context.Context, workspace, prefix string) (d store.Digest, err error) {
	if len(prefix) == 64 {
		return store.ParseDigest(prefix)
	}
	all, err := s.digests(ctx, workspace)
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
		return d, s.notFound(ctx, Ref{workspace, prefix})
	case 1:
		return found[0], nil
	}
	return d, fault.New(fault.Invalid, "%d images have a digest that begins with %s", len(found), prefix).
		WithHint("Give more digits: %s and %s.", found[0], found[1])
}

// notFound is the error for a reference to nothing, with what could have been meant.
func (s *Images) notFound(ctx context.Context, ref Ref) error {
	e := &fault.Error{Class: fault.NotFound, Err: fmt.Errorf("there is no image %s", quote(ref.Name))}
	all, err := s.nameList(ctx, ref.Workspace)
	if err != nil {
		return e
	}
	if ref.Workspace != store.SharedWorkspace {
		shared, _ := s.nameList(ctx, store.SharedWorkspace)
		for _, n := range shared {
			all = append(all, store.SharedWorkspace+"/"+n)
		}
	}
	var near []string
	for _, n := range all {
		if alike(ref.Name, n) {
			near = append(near, n)
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

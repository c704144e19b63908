package main

import (
	"os"
	"path/filepath"

	"brisk.dev/brisk/bench/report"
)

// share imports two images that were made of the same base in different ways, and
// so have no layer in common: a directory, and one tar in another order, with other
// times and a hundred files more. Of the bytes of files that both have, what did the
// second one not have to store?
func share(o options) (_ []report.Row, err error) {
	tree, err := extracted(o, "science")
	if err != nil {
		return nil, err
	}
	progress("two images of one base, made in different ways")
	other, archive := filepath.Join(o.dir, "other"), filepath.Join(o.dir, "other.tar")
	defer func() {
		for _, path := range []string{other, archive} {
			if rerr := os.RemoveAll(path); err == nil {
				err = rerr
			}
		}
	}()
	err = shell(o, `rm -rf "$2"; cp -a "$1" "$2"; find "$2" -type f -exec touch -hd 2001-01-01 {} +
		mkdir "$2/more"; for i in $(seq 100); do head -c 20000 /dev/urandom >"$2/more/$i"; done
		(cd "$2" && find . -depth | sort -r | tar --no-recursion -cf "$3" -T -)`, tree, other, archive)
	if err != nil {
		return nil, err
	}
	m, err := newMachine(o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if cerr := m.close(); err == nil {
			err = cerr
		}
	}()
	if _, err := m.imports(o, tree); err != nil {
		return nil, err
	}
	second, err := m.imports(o, archive)
	if err != nil {
		return nil, err
	}
	a, err := contents(tree)
	if err != nil {
		return nil, err
	}
	b, err := contents(other)
	if err != nil {
		return nil, err
	}
	var identical, own int64
	for digest, n := range b {
		if _, ok := a[digest]; ok {
			identical += n
		} else {
			own += n
		}
	}
	shared := 100 * float64(identical-max(second.NewBytes-own, 0)) / float64(identical)
	row := report.Value("images of one base, no common layer", "share of identical files' bytes that is stored once, of at least 95 %", 1, shared, "%", 0)
	met := shared >= 95
	row.Met = &met
	return []report.Row{row}, nil
}

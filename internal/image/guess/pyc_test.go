package guess

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The files are testdata/sample.py, compiled by each version of Python.
func TestCompiledImports(t *testing.T) {
	files, err := filepath.Glob("testdata/sample.*.pyc")
	require.NoError(t, err)
	require.Len(t, files, len(pycFormats))
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		require.Equal(t, []importOf{
			{name: "os.path"},
			{name: "sys"},
			{level: 1, attributes: []string{"near", "other"}},
			{name: "above.it", level: 2, attributes: []string{"thing"}},
			{name: "json", attributes: []string{"dumps"}},
			{name: "tomllib"},
		}, compiledImports(b), f)
		for i := range b {
			compiledImports(b[:i]) // whatever it makes of that
		}
	}
	require.Nil(t, compiledImports(nil))
	require.Nil(t, compiledImports(make([]byte, 100)))
}

func FuzzCompiledImports(f *testing.F) {
	files, _ := filepath.Glob("testdata/sample.*.pyc")
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) { compiledImports(b) })
}

func TestImports(t *testing.T) {
	require.Equal(t, []string{
		"os", "numpy.linalg", "a.b", "a.b.c", "a.b.d", "json", "json.loads", "x", "inside",
	}, Imports([]byte(`
import os, numpy.linalg as la
from a.b import c, d as e
from . import near
from json import (loads
)
from x import *
# import no
s = "import neither"
def f():
	import inside  # yes
`)))
	require.Empty(t, Imports(nil))
}

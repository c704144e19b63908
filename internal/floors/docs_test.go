package floors

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A test as documents name it: its package's folder, and its name.
var named = regexp.MustCompile("`([a-z0-9/]+) ((?:Test|Fuzz)\\w+)`")

// testsIn are the tests and fuzz tests of a package, by their names.
func testsIn(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", dir, "*_test.go"))
	require.NoError(t, err)
	tests := map[string]bool{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(\w+ \*testing\.[TF]\)`).FindAllStringSubmatch(string(b), -1) {
			tests[m[1]] = true
		}
	}
	return tests
}

// namedIn are the tests that a document names, which must exist.
func namedIn(t *testing.T, document string) (names []string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../..", document))
	require.NoError(t, err)
	for _, m := range named.FindAllStringSubmatch(string(b), -1) {
		if !testsIn(t, m[1])[m[2]] {
			t.Errorf("%s: there is no %s in %s", document, m[2], m[1])
		}
		names = append(names, m[1]+" "+m[2])
	}
	return names
}

func TestFaultsHaveTests(t *testing.T) {
	const document = "docs/design/faults.md"
	require.NotEmpty(t, namedIn(t, document))
	b, err := os.ReadFile(filepath.Join("../..", document))
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| **") && !strings.HasPrefix(line, "| fault ") {
			assert.Regexp(t, named, line, "a fault without a test")
		}
	}
}

// Each format has a row, and each decoder that is fuzzed is in one.
func TestFormatsAreFuzzed(t *testing.T) {
	const document = "docs/format/README.md"
	names := namedIn(t, document)
	b, err := os.ReadFile(filepath.Join("../..", document))
	require.NoError(t, err)
	pages, err := filepath.Glob("../../docs/format/*.md")
	require.NoError(t, err)
	for _, page := range pages {
		if name := filepath.Base(page); name != "README.md" {
			assert.Regexp(t, regexp.MustCompile(`(?m)^\| \[`+name[:len(name)-3]+`\]\(`+name+`\).*Fuzz`), string(b), "no row with fuzz tests")
		}
	}
	for _, p := range load(t) {
		for test := range testsIn(t, p.dir) {
			if strings.HasPrefix(test, "Fuzz") {
				assert.Contains(t, names, p.dir+" "+test)
			}
		}
	}
}

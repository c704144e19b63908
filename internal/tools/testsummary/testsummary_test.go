package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// mod writes a module with one package per entry and moves into it.
func mod(t *testing.T, packages map[string]string) {
	t.Helper()
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile("go.mod", []byte("module brisk.dev/brisk\n\ngo 1.26.0\n"), 0o644))
	for name, body := range packages {
		require.NoError(t, os.MkdirAll(name, 0o755))
		source := "package " + filepath.Base(name) + "\n\nimport (\n\t\"fmt\"\n\t\"testing\"\n)\n\nvar _ = fmt.Sprint\n\n" + body
		require.NoError(t, os.WriteFile(filepath.Join(name, "a_test.go"), []byte(source), 0o644))
	}
}

func summarise(t *testing.T, args ...string) (code int, stdout string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(args, &out, &errs)
	return code, out.String() + errs.String()
}

func TestGoTest(t *testing.T) {
	const tally = "tally"
	for _, c := range []struct {
		name, body string
		code       int
		has        []string
		hasNot     []string
		tally      string
	}{
		{"passing", "func TestA(t *testing.T) { fmt.Println(\"quiet\") }\nfunc TestB(t *testing.T) { t.Run(\"x\", func(*testing.T) {}); t.Run(\"y\", func(*testing.T) {}) }",
			0, []string{"  ok    p: 3 tests, ", "go: 3 passed, 0 failed, 0 skipped ("}, []string{"quiet", "PASS"}, "3 0 0\n"},
		{"failing", "func TestA(t *testing.T) { t.Log(\"good\") }\nfunc TestB(t *testing.T) { t.Run(\"x\", func(t *testing.T) { t.Error(\"bad news\") }); t.Run(\"y\", func(*testing.T) {}) }",
			1, []string{"--- FAIL: TestB/x", "a_test.go:11: bad news", "  FAIL  p: 1 of 3 tests failed"}, []string{"good"}, "2 1 0\n"},
		{"skipping", "func TestA(t *testing.T) { t.Skip(\"needs: root\") }",
			0, []string{"skipped: TestA: needs: root", "0 passed, 0 failed, 1 skipped"}, nil, "0 0 1\n"},
		{"not compiling", "func TestA(t *testing.T) { undefined() }",
			1, []string{"undefined: undefined", "  FAIL  p: does not build"}, nil, "0 1 0\n"},
		{"dying", "func TestA(t *testing.T) {}\nfunc TestB(t *testing.T) { panic(\"at the worst moment\") }",
			1, []string{"panic: at the worst moment", "  FAIL  p: 1 of 2 tests failed"}, nil, "1 1 0\n"},
		{"failing in TestMain", "func TestA(t *testing.T) {}\nfunc TestMain(m *testing.M) { m.Run(); fmt.Println(\"a goroutine is left\"); panic(1) }",
			1, []string{"a goroutine is left", "  FAIL  p: failed outside its tests"}, nil, "1 1 0\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			mod(t, map[string]string{"p": c.body})
			code, out := summarise(t, "go", "-tally", tally, "go", "./...")
			assert.Equal(t, c.code, code, out)
			for _, s := range c.has {
				assert.Contains(t, out, s)
			}
			for _, s := range c.hasNot {
				assert.NotContains(t, out, s)
			}
			counted, err := os.ReadFile(tally)
			require.NoError(t, err)
			assert.Equal(t, c.tally, string(counted))
		})
	}
}

func TestGoTestThatCannotRunIsAFailure(t *testing.T) {
	mod(t, nil)
	code, out := summarise(t, "go", "go", "./missing")
	assert.Equal(t, 1, code)
	assert.Contains(t, out, "missing")
	assert.Contains(t, out, "0 passed, 1 failed, 0 skipped")
}

func TestJUnit(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.xml")
	require.NoError(t, os.WriteFile(file, []byte(`<?xml version="1.0"?><testsuites><testsuite name="pytest" time="3.2">
		<testcase classname="tests.test_a" name="test_1" time="0.1"/>
		<testcase classname="tests.test_a" name="test_2"><failure message="assert 1 == 2">long</failure></testcase>
		<testcase classname="tests.test_a" name="test_3"><error message="fixture">long</error></testcase>
		<testcase classname="tests.test_a" name="test_4"><skipped type="pytest.skip" message="needs root">at</skipped></testcase>
		</testsuite></testsuites>`), 0o644))
	code, out := summarise(t, "junit", "python", file)
	assert.Equal(t, 1, code)
	assert.True(t, strings.HasPrefix(out, "        skipped: tests.test_a.test_4: needs root\npython: 1 passed, 2 failed, 1 skipped (3 s)\n"), out)

	code, _ = summarise(t, "junit", "python", file+".none")
	assert.Equal(t, 1, code)
}

func TestTotal(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tally")
	require.NoError(t, os.WriteFile(file, []byte("200 0 3\n12 0 0\n"), 0o644))
	code, out := summarise(t, "total", file)
	assert.Equal(t, 0, code)
	assert.Equal(t, "212 passed, 0 failed, 3 skipped\n", out)

	require.NoError(t, os.WriteFile(file, []byte("200 0 3\n11 1 0\n"), 0o644))
	code, out = summarise(t, "total", file)
	assert.Equal(t, 1, code)
	assert.Equal(t, "211 passed, 1 failed, 3 skipped\n", out)

	require.NoError(t, os.WriteFile(file, []byte("garbage\n"), 0o644))
	code, _ = summarise(t, "total", file)
	assert.Equal(t, 1, code)
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"go"}, {"go", "name"}, {"junit", "name"}, {"total"}, {"other", "x", "y"}, {"go", "-nonsense", "x", "y"}} {
		code, _ := summarise(t, args...)
		assert.Equal(t, 2, code, "%v", args)
	}
}

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/server"
)

// TestKeysTravel takes a workspace's key from one data directory to another, with no
// server anywhere.
func TestKeysTravel(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	one, two := filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "two")
	ring, err := server.OpenKeyring(one)
	require.NoError(t, err)
	keys, err := ring.Keys("default")
	require.NoError(t, err)

	code, line, errText := brisk(nil, "store", "key", "export", "--data", one)
	require.Equal(t, 0, code, errText)
	require.True(t, strings.HasPrefix(line, "brisk-key 1 default "), line)
	code, out, _ := brisk(nil, "store", "key", "export", "default", "--data", one, "--json")
	require.Equal(t, 0, code)
	var answer map[string]string
	require.NoError(t, json.Unmarshal([]byte(out), &answer))
	require.Equal(t, strings.TrimSpace(line), answer["key"])

	code, out, errText = brisk(strings.NewReader(line), "store", "key", "import", "--data", two)
	require.Equal(t, 0, code, errText)
	require.Equal(t, "workspace default has the key "+keys.ID().String()+" here\n", out)
	version, err := os.ReadFile(filepath.Join(two, "version"))
	require.NoError(t, err)
	require.Equal(t, "brisk data 2\n", string(version), "a server can start there")

	code, _, errText = brisk(nil, "store", "key", "export", "nobody", "--data", one)
	require.Equal(t, 3, code, errText)
	code, _, errText = brisk(strings.NewReader("hello"), "store", "key", "import", "--data", two)
	require.Equal(t, 2, code, errText)
	require.Contains(t, errText, "brisk store key export")
	other, err := server.OpenKeyring(filepath.Join(t.TempDir(), "three"))
	require.NoError(t, err)
	_, err = other.Keys("default")
	require.NoError(t, err)
	foreign, err := other.Export("default")
	require.NoError(t, err)
	code, _, errText = brisk(strings.NewReader(foreign), "store", "key", "import", "--data", two)
	require.Equal(t, 2, code, errText)
	require.Contains(t, errText, "has another key here")
}

package blobs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"brisk.dev/brisk/internal/fault"
)

const helloRef = "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824" // of "hello"

func open(t *testing.T) (*Store, string) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "blobs")
	s, err := Open(root)
	require.NoError(t, err)
	return s, root
}

// files lists what is below root.
func files(t *testing.T, root string) (l []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(root, p)
			l = append(l, rel)
		}
		return err
	}))
	return l
}

func TestPutAndOpen(t *testing.T) {
	s, root := open(t)
	has, err := s.Has("default", helloRef)
	require.NoError(t, err)
	require.False(t, has)
	_, err = s.Open("default", helloRef)
	require.Equal(t, fault.NotFound, fault.ClassOf(err))

	for range 2 { // twice is no error
		require.NoError(t, s.Put(t.Context(), "default", helloRef, iotest.OneByteReader(strings.NewReader("hello"))))
	}
	require.Equal(t, []string{"default/sha256/2c/2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"}, files(t, root))
	has, err = s.Has("default", helloRef)
	require.NoError(t, err)
	require.True(t, has)
	has, err = s.Has("other", helloRef)
	require.NoError(t, err)
	require.False(t, has, "workspaces do not see each other's")
	f, err := s.Open("default", helloRef)
	require.NoError(t, err)
	defer f.Close()
	b, err := io.ReadAll(f)
	require.NoError(t, err)
	require.Equal(t, "hello", string(b))
}

func TestPutRefusesAndLeavesNothing(t *testing.T) {
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	zeros := sha256.Sum256(make([]byte, 11))
	tests := []struct {
		name  string
		ctx   context.Context
		ref   string
		in    io.Reader
		class fault.Class
	}{
		{"other content", t.Context(), helloRef, strings.NewReader("hellO"), fault.Invalid},
		{"too little", t.Context(), helloRef, strings.NewReader("hell"), fault.Invalid},
		{"too much", t.Context(), "sha256:" + hex.EncodeToString(zeros[:]), strings.NewReader(strings.Repeat("\x00", 11)), fault.Invalid},
		{"a client that dies", t.Context(), helloRef, io.MultiReader(strings.NewReader("hel"), iotest.ErrReader(errors.New("gone"))), fault.Cancelled},
		{"a cancelled request", cancelled, helloRef, strings.NewReader("hello"), fault.Cancelled},
		{"no reference", t.Context(), "hello", strings.NewReader("hello"), fault.Invalid},
		{"another hash", t.Context(), "md5:5d41402abc4b2a76b9719d911017c592", strings.NewReader("hello"), fault.Invalid},
		{"a path", t.Context(), "sha256:../../../../etc/passwd", strings.NewReader("hello"), fault.Invalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, root := open(t)
			s.maxSize = 10
			err := s.Put(tt.ctx, "default", tt.ref, tt.in)
			require.Equal(t, tt.class, fault.ClassOf(err), "%v", err)
			require.Empty(t, files(t, root))
		})
	}
}

func TestWorkspaceIsNoPath(t *testing.T) {
	s, _ := open(t)
	for _, w := range []string{"", "..", "a/b", ".x"} {
		_, err := s.Has(w, helloRef)
		require.Equal(t, fault.Invalid, fault.ClassOf(err), w)
	}
}

func TestOpenSweepsUnfinishedUploads(t *testing.T) {
	s, root := open(t)
	require.NoError(t, s.Put(t.Context(), "default", helloRef, strings.NewReader("hello")))
	require.NoError(t, os.WriteFile(filepath.Join(root, "default/sha256/2c/.tmp-123"), []byte("he"), 0o600))
	_, err := Open(root)
	require.NoError(t, err)
	require.Len(t, files(t, root), 1)
}

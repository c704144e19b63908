package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image"
)

func rootfs(t *testing.T, c image.Config, files map[string]string) *Rootfs {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}
	return &Rootfs{Path: dir, root: &root{img: &image.Image{Manifest: image.Manifest{Config: c}}}}
}

const (
	passwd = "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\nbad:x:one:2::/:/bin/sh\n"
	group  = "root:x:0:\nstaff:x:50:\n"
)

func TestUser(t *testing.T) {
	files := map[string]string{"etc/passwd": passwd, "etc/group": group}
	for _, c := range []struct {
		image, asked string
		want         account
	}{
		{"", "", account{home: "/root"}},
		{"app", "", account{uid: 1000, gid: 1001, home: "/home/app"}},
		{"app", "root", account{home: "/root"}},
		{"", "1000", account{uid: 1000, gid: 1001, home: "/home/app"}},
		{"", "4711", account{uid: 4711, home: "/"}},
		{"", "4711:4712", account{uid: 4711, gid: 4712, home: "/"}},
		{"", "app:staff", account{uid: 1000, gid: 50, home: "/home/app"}},
	} {
		got, err := rootfs(t, image.Config{User: c.image}, files).user(c.asked)
		require.NoError(t, err)
		require.Equal(t, c.want, got, "image %q, asked %q", c.image, c.asked)
	}
}

func TestUserThatIsNotThere(t *testing.T) {
	r := rootfs(t, image.Config{}, map[string]string{"etc/passwd": passwd, "etc/group": group})
	for asked, want := range map[string]string{
		"nobody":   `user "nobody" is not in the image's /etc/passwd`,
		"app:none": `group "none" is not in the image's /etc/group`,
		"bad":      `user "bad": the image's /etc/passwd is malformed`,
	} {
		_, err := r.user(asked)
		require.EqualError(t, err, want)
		require.True(t, fault.Is(err, fault.Invalid))
	}
}

func TestPasswdOfTheHostIsNotRead(t *testing.T) {
	r := rootfs(t, image.Config{}, nil)
	require.NoError(t, os.Mkdir(filepath.Join(r.Path, "etc"), 0o755))
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(r.Path, "etc/passwd")))
	_, err := r.user("daemon") // the host has one
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
}

func TestPasswdThatIsAPipe(t *testing.T) {
	r := rootfs(t, image.Config{}, nil)
	require.NoError(t, os.Mkdir(filepath.Join(r.Path, "etc"), 0o755))
	require.NoError(t, unix.Mkfifo(filepath.Join(r.Path, "etc/passwd"), 0o644))
	got, err := r.user("7")
	require.NoError(t, err)
	require.Equal(t, account{uid: 7, home: "/"}, got)
}

func TestEnvironment(t *testing.T) {
	r := rootfs(t, image.Config{Env: []string{"PATH=/opt/bin", "A=image", "B=image"}}, nil)
	got := r.env(account{home: "/home/app"}, map[string]string{"A": "user", "C": "user"}, "C=fixed")
	require.Equal(t, []string{"A=user", "B=image", "C=fixed", "HOME=/home/app", "LANG=C.UTF-8", "PATH=/opt/bin"}, got)
}

func TestWorkdir(t *testing.T) {
	r := rootfs(t, image.Config{Workdir: "/app"}, map[string]string{"app/x": "", "srv/x": ""})
	require.Equal(t, "/app", r.workdir(""))
	require.Equal(t, "/srv", r.workdir("/srv"))
	require.Equal(t, "/", r.workdir("/gone"))
	require.Equal(t, "/", r.workdir("/app/x"), "a file")
	for name, target := range map[string]string{"absolute": "/srv", "relative": "app/../srv", "host": "/proc/self/cwd", "above": "../../../../srv", "loop": "/loop"} {
		require.NoError(t, os.Symlink(target, filepath.Join(r.Path, name)))
	}
	require.Equal(t, "/absolute", r.workdir("/absolute"))
	require.Equal(t, "/relative", r.workdir("/relative"))
	require.Equal(t, "/above", r.workdir("/above"), "the root is its own parent")
	require.Equal(t, "/", r.workdir("/host"), "leads to the host's only outside")
	require.Equal(t, "/", r.workdir("/loop"))
}

package e2e

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// registrySecret is the password "secret", as htpasswd -B writes it.
const registrySecret = "$2y$04$qM9ncB0XxEBP9yRzhqMZ/Oj6NpiVq6ndZstxAiXYx9sCVDLQUcosK"

// startRegistry starts Debian's docker-registry, which wants a name and a password, and gives
// its address and the environment of those who have them.
func startRegistry(t *testing.T) (address string, env []string) {
	t.Helper()
	if _, err := exec.LookPath("docker-registry"); err != nil {
		t.Skip("docker-registry is not installed")
	}
	dir := t.TempDir()
	put := func(name, content string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	config := put("config.yml", fmt.Sprintf(`version: 0.1
storage: {filesystem: {rootdirectory: %q}}
http: {addr: "127.0.0.1:0"}
auth: {htpasswd: {realm: test, path: %q}}
`, filepath.Join(dir, "storage"), put("htpasswd", "somebody:"+registrySecret+"\n")))
	cmd := exec.Command("sh", "-c", `exec docker-registry serve "$0" 2>&1`, config)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	line := (&site{}).launch(t, cmd, nil).waitLine(t, "listening on")
	address = regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line)
	require.NotEmpty(t, address, line)
	auth := put("docker/config.json", fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`,
		address, base64.StdEncoding.EncodeToString([]byte("somebody:secret"))))
	storage := put("storage.conf", fmt.Sprintf("[storage]\ndriver = \"overlay\"\ngraphroot = %q\nrunroot = %q\n",
		filepath.Join(dir, "root"), filepath.Join(dir, "run")))
	registries := put("registries.conf", fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n", address))
	return address, []string{
		"DOCKER_CONFIG=" + filepath.Dir(auth),
		"REGISTRY_AUTH_FILE=" + auth, "CONTAINERS_STORAGE_CONF=" + storage, "CONTAINERS_REGISTRIES_CONF=" + registries, // for buildah
	}
}

// behindTokens is a registry that wants tokens of a server of its own: it stands before
// another, which wants a name and a password.
func behindTokens(t *testing.T, address string) string {
	t.Helper()
	const token = "a-token"
	behind := &url.URL{Scheme: "http", Host: address}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(behind)
		r.Out.SetBasicAuth("somebody", "secret")
	}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, password, _ := r.BasicAuth()
		switch {
		case r.URL.Path == "/token" && name == "robot" && password == "robots":
			fmt.Fprintf(w, `{"token": %q}`, token)
		case r.Header.Get("Authorization") == "Bearer "+token:
			proxy.ServeHTTP(w, r)
		default:
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="tests"`, r.Host))
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// What is in a registry is what functions run on: as it is, and as the base of a Dockerfile.
func TestFunctionsOnContainerImages(t *testing.T) {
	t.Parallel()
	address, env := startRegistry(t)
	s := newSite(t, append(env, "ROBOT=robots", "WRONG=wrong")...)
	var images []struct{ Digest string }
	s.ask(t, &images, "image", "ls")
	require.NotEmpty(t, images, "the seed has brisk.Image.debian_slim()")
	base := address + "/team/base:1"
	stranger := *s
	stranger.env = append(slices.Clone(s.env), "DOCKER_CONFIG="+t.TempDir(), "REGISTRY_AUTH_FILE=")
	refused := stranger.refused(t, 2, "image", "push", images[0].Digest, base)
	require.Contains(t, refused.Message, "write to registry "+address+": it answers unauthorized: authentication required")
	require.Contains(t, refused.Hint, "docker login "+address)
	s.ok(t, "image", "push", images[0].Digest, base)
	var pulled imported
	s.ask(t, &pulled, "image", "pull", base)
	require.Equal(t, images[0].Digest, pulled.Digest)

	// on is a file with a function on an image.
	on := func(name, image string) string {
		return s.write(t, name+".py", `
import brisk
app = brisk.App("`+name+`")

@app.function(image=brisk.Image.`+image+`, block_network=True, enable_memory_snapshot=False)
def f():
    import os
    return open(os.environ.get("WHERE", "/etc/debian_version")).read().strip()[:3]
`) + "::f"
	}
	run := func(t *testing.T, file, want string) result {
		t.Helper()
		r := s.brisk(t, "run", file)
		require.Equal(t, 0, r.code, "%s", r)
		require.Equal(t, "'"+want+"'\n", r.out)
		return r
	}
	tokens := behindTokens(t, address)

	t.Run("a registry with passwords", func(t *testing.T) {
		file := on("pulled", `from_registry("`+base+`")`)
		require.Contains(t, run(t, file, "12.").err, "container image "+base)
		require.Empty(t, stranger.brisk(t, "image", "inspect", base).err, "the image has no name but that of the pull before")
	})
	t.Run("a registry with tokens", func(t *testing.T) {
		run(t, on("tokens", `from_registry("`+tokens+`/team/base:1", username="robot", password_env="ROBOT")`), "12.")
	})
	t.Run("it refuses", func(t *testing.T) {
		for name, c := range map[string]struct {
			image string
			code  int
			says  string
			hint  string
		}{
			"no tag": {
				`from_registry("` + address + `/team/base:2")`, 3,
				": pull " + address + "/team/base:2: read a manifest of registry " + address + ": it answers manifest unknown", "\nCheck the name and the tag.",
			},
			"no image":        {`from_registry("` + address + `/team/none")`, 3, "it answers manifest unknown", "Check the name and the tag."},
			"wrong password":  {`from_registry("` + base + `", username="somebody", password_env="WRONG")`, 2, "it answers unauthorized: authentication required", "docker login " + address},
			"wrong token":     {`from_registry("` + tokens + `/team/base:1", username="robot", password_env="WRONG")`, 2, "it answers Unauthorized", "docker login " + tokens},
			"not a name":      {`from_registry("` + base + `:")`, 2, "is not the name of an image in a registry", "Names look like"},
			"nobody is there": {`from_registry("127.0.0.1:1/team/base")`, 7, "speak to registry 127.0.0.1:1: ", ""},
		} {
			r := s.brisk(t, "run", on("refused", c.image))
			require.Equal(t, c.code, r.code, "%s: %s", name, r)
			lines := strings.Split(strings.TrimSpace(r.err), "\n")
			require.LessOrEqual(t, len(lines), 3, "%s: %s", name, r) // what is being done, the error, the hint
			said := strings.Join(lines[max(0, len(lines)-2):], "\n")
			require.Contains(t, said, c.says, name)
			require.Contains(t, said, c.hint, name)
			require.NotContains(t, r.err, "Traceback", name)
		}
	})

	t.Run("a Dockerfile", func(t *testing.T) {
		if _, err := exec.LookPath("buildah"); err != nil {
			t.Skip("buildah is not installed")
		}
		s.write(t, "docker/Dockerfile", "FROM "+base+"\nARG WHAT\nCOPY data /srv/data\nRUN echo $WHAT >> /srv/data\nENV WHERE=/srv/data\n")
		s.write(t, "docker/data", "it")
		s.write(t, "docker/big.log", "")
		s.write(t, "docker/.dockerignore", "*.log\n")
		file := on("built", `from_dockerfile("docker/Dockerfile", build_args={"WHAT": "s"})`)
		require.Contains(t, run(t, file, "its").err, "1/1 Dockerfile")
		s.write(t, "docker/big.log", "another")
		require.Empty(t, run(t, file, "its").err, "nothing is built: what has changed is ignored")
		s.write(t, "docker/data", "It")
		require.Contains(t, run(t, file, "Its").err, "1/1 Dockerfile")

		s.write(t, "docker/Dockerfile", "FROM "+base+"\nRUN echo the reason >&2; exit 7\n")
		r := s.brisk(t, "run", file)
		require.Equal(t, 5, r.code, "%s", r)
		require.Contains(t, r.err, "  | the reason\n")
		require.True(t, strings.HasSuffix(r.err, "\nbrisk: step 1 of 1, Dockerfile: buildah could not build it\n"), "%s", r)
		require.NotContains(t, r.err, "Traceback")
	})
}

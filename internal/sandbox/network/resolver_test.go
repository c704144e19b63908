package network

import (
	"os"
	"path/filepath"
	"testing"
)

func TestResolvers(t *testing.T) {
	const stub = "# made by systemd\nnameserver 127.0.0.53\noptions edns0\nsearch lan\n"
	for name, c := range map[string]struct{ etc, systemd, want string }{
		"plain":          {"nameserver 10.0.0.1\nnameserver 1.1.1.1\n", "", "nameserver 10.0.0.1\nnameserver 1.1.1.1\n"},
		"options":        {"search a b\nnameserver 10.0.0.1\noptions ndots:2\n", "", "nameserver 10.0.0.1\nsearch a b\noptions ndots:2\n"},
		"stub":           {stub, "nameserver 192.168.0.1\nsearch home\n", "nameserver 192.168.0.1\nsearch home\n"},
		"stub only":      {stub, "", "options edns0\nsearch lan\n"},
		"mixed":          {"nameserver 127.0.0.1\nnameserver 10.0.0.1\n", "", "nameserver 10.0.0.1\n"},
		"IPv6":           {"nameserver fd00::1\nnameserver 10.0.0.1\n", "", "nameserver 10.0.0.1\n"},
		"mapped":         {"nameserver ::ffff:10.0.0.1\n", "", "nameserver 10.0.0.1\n"},
		"nothing":        {"", "", ""},
		"not an address": {"nameserver example\nnameserver\n", "", ""},
	} {
		root := t.TempDir()
		for file, text := range map[string]string{"etc/resolv.conf": c.etc, "run/systemd/resolve/resolv.conf": c.systemd} {
			if text == "" {
				continue
			}
			p := filepath.Join(root, file)
			if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		r, err := readResolvers(root)
		if err != nil || r.conf() != c.want {
			t.Errorf("%s: got %q, %v, want %q", name, r.conf(), err, c.want)
		}
	}
}

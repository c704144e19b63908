package hostconfig

import (
	"path"
	"regexp"
	"strings"
)

// Mirrors are the URLs of Debian's two archives. In an image stand the official
// ones; a step reads the machine's in their place.
type Mirrors struct {
	Archive  string // the distribution
	Security string // its security updates
}

// Official are the mirrors that everybody has.
var Official = Mirrors{"http://deb.debian.org/debian", "http://deb.debian.org/debian-security"}

// suites are the names by which sources lists call Debian's releases.
var suites = regexp.MustCompile(`^(stable|oldstable|oldoldstable|testing|bullseye|bookworm|trixie|forky|sid)(-updates|-security|/updates)?$`)

// mirrors finds out which mirrors a machine uses that is itself a Debian; others
// use the official ones.
func (s *Snapshot) mirrors() (Mirrors, error) {
	found := Official
	release, err := s.read("/etc/os-release")
	if err != nil || !osID.Match(release) {
		return found, err
	}
	names := []string{"/etc/apt/sources.list"}
	parts, err := s.list("/etc/apt/sources.list.d", ".list", ".sources")
	if err != nil {
		return found, err
	}
	var archive, security string
	for _, name := range append(names, parts...) {
		b, err := s.read(name)
		if err != nil {
			return found, err
		}
		for _, src := range parseSources(path.Ext(name) == ".sources", string(b)) {
			m := suites.FindStringSubmatch(src.suite)
			switch {
			case m == nil:
			case m[2] == "-security" || m[2] == "/updates":
				security = first(security, src.uri)
			default:
				archive = first(archive, src.uri)
			}
		}
	}
	found.Archive = s.url(first(archive, found.Archive))
	found.Security = s.url(first(security, found.Security))
	return found, nil
}

var osID = regexp.MustCompile(`(?m)^ID="?debian"?\s*$`)

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// source is one place that apt fetches packages from.
type source struct{ uri, suite string }

// parseSources reads the sources of binary packages reached by http or https, in
// apt's one-line or deb822 format.
func parseSources(deb822 bool, text string) []source {
	if deb822 {
		return parseDeb822(text)
	}
	var found []source
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		line = bracketed.ReplaceAllString(line, " ")
		if f := strings.Fields(line); len(f) >= 3 && f[0] == "deb" && overHTTP(f[1]) {
			found = append(found, source{strings.TrimRight(f[1], "/"), f[2]})
		}
	}
	return found
}

var bracketed = regexp.MustCompile(`\[[^\]]*\]`)

func parseDeb822(text string) []source {
	var found []source
	for stanza := range strings.SplitSeq(strings.ReplaceAll(text, "\r\n", "\n"), "\n\n") {
		fields := map[string][]string{}
		key := ""
		for line := range strings.Lines(stanza) {
			switch {
			case strings.HasPrefix(line, "#"):
				continue
			case strings.HasPrefix(line, " "), strings.HasPrefix(line, "\t"):
			default:
				name, rest, ok := strings.Cut(line, ":")
				if !ok {
					continue
				}
				key, line = strings.ToLower(strings.TrimSpace(name)), rest
			}
			fields[key] = append(fields[key], strings.Fields(line)...)
		}
		if f := fields["enabled"]; len(f) > 0 && strings.EqualFold(f[0], "no") {
			continue
		}
		if f := fields["types"]; len(f) == 0 || f[0] != "deb" && f[len(f)-1] != "deb" {
			continue
		}
		for _, uri := range fields["uris"] {
			for _, suite := range fields["suites"] {
				if overHTTP(uri) {
					found = append(found, source{strings.TrimRight(uri, "/"), suite})
				}
			}
		}
	}
	return found
}

func overHTTP(uri string) bool {
	return strings.HasPrefix(uri, "http://") || strings.HasPrefix(uri, "https://")
}

// officialURI matches the URLs of official mirrors in the sources of an image.
var officialURI = regexp.MustCompile(`https?://(?:deb|httpredir|security|ftp(?:\.[a-z]{2})?)\.debian\.org/(debian-security|debian)(/?)([\s\n]|$)`)

// Rewrite puts the machine's mirrors into the place of the official ones in a
// sources list of an image. It reports whether that changed anything.
func (m Mirrors) Rewrite(sources []byte) ([]byte, bool) {
	if m == Official {
		return sources, false
	}
	out := officialURI.ReplaceAllStringFunc(string(sources), func(uri string) string {
		parts := officialURI.FindStringSubmatch(uri)
		to := m.Archive
		if parts[1] == "debian-security" {
			to = m.Security
		}
		return to + parts[2] + parts[3]
	})
	return []byte(out), out != string(sources)
}

package hostconfig

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// proxies passes the proxy variables on, each in both spellings: some programs
// read only one of them.
func (s *Snapshot) proxies(context.Context) error {
	for _, name := range []string{"http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"} {
		upper := strings.ToUpper(name)
		lowerValue, upperValue := s.env[name], s.env[upper]
		if lowerValue == "" {
			lowerValue = upperValue
		}
		if upperValue == "" {
			upperValue = lowerValue
		}
		if lowerValue != "" {
			s.set[name], s.set[upper] = s.url(lowerValue), s.url(upperValue)
		}
	}
	return nil
}

var userinfo = regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)[^/@\s"']*@`)

// url takes credentials out of URLs in a text, unless they are asked for.
func (s *Snapshot) url(text string) string {
	if s.opts.Credentials {
		return text
	}
	if !strings.Contains(text, "://") && strings.Contains(text, "@") && !strings.ContainsAny(text, " \t\n") {
		return text[strings.LastIndex(text, "@")+1:] // a proxy without a scheme
	}
	return userinfo.ReplaceAllString(text, "$1")
}

// bundleVariables are the variables that name a bundle of CA certificates.
var bundleVariables = []string{
	"SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS",
}

// authorities makes the CA certificates that the machine trusts those of every
// common program of a step: an image has its own or none, and does not know a
// company's proxy. A variable that the machine has set keeps its own bundle.
func (s *Snapshot) authorities(context.Context) error {
	main, err := s.bundle()
	if err != nil {
		return err
	}
	for _, name := range bundleVariables {
		target, err := s.copyVariable(name)
		if err != nil {
			return err
		}
		if target == "" {
			target = main
		}
		if target != "" {
			s.set[name] = target
		}
	}
	return nil
}

// caFile is the name of the machine's CA bundle in the private directory.
const caFile = "ca.crt"

// bundle copies the machine's CA bundle, the first that is there.
func (s *Snapshot) bundle() (string, error) {
	for _, name := range []string{s.env["SSL_CERT_FILE"], "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"} {
		if name == "" {
			continue
		}
		b, err := s.read(name)
		if err != nil {
			return "", err
		}
		if b != nil {
			return s.write(caFile, b)
		}
	}
	return "", nil
}

// copyVariable copies the file that a variable of the machine names, if it is
// another than the machine's bundle.
func (s *Snapshot) copyVariable(name string) (string, error) {
	file := s.env[name]
	if file == "" {
		return "", nil
	}
	b, err := s.read(file)
	if err != nil || b == nil {
		return "", err
	}
	if main, err := os.ReadFile(filepath.Join(s.dir, caFile)); err == nil && bytes.Equal(main, b) {
		return "", nil
	}
	return s.copy(file)
}

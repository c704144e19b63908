package s3

import (
	"net"
	"net/url"
	"strings"

	"github.com/minio/minio-go/v7/pkg/s3utils"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// Config says which bucket, and how to reach it. It has no secrets.
type Config struct {
	Bucket      string
	Prefix      string // of all keys; "" or without slashes at its ends
	Endpoint    string // http://HOST[:PORT] or https://...; "" = Amazon's
	Region      string // "" = Amazon's servers are asked
	Profile     string // of the shared configuration files; "" = $AWS_PROFILE or default
	CA          string // file of certificates
	HostStyle   bool   // the bucket is a part of the host name
	Anonymous   bool
	Conditional bool // the server has conditional writes
}

const urlHint = "It looks like this: s3://BUCKET/PREFIX?endpoint=https://HOST:PORT&region=NAME"

// ParseURL reads the URL of a bucket. What it leaves open comes from the
// environment, through getenv (os.Getenv).
func ParseURL(raw string, getenv func(string) string) (Config, error) {
	bad := func(format string, args ...any) (Config, error) {
		return Config{}, fault.New(fault.Invalid, "store "+format, args...).WithHint(urlHint)
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return bad("%q is no URL", redact(raw))
	case u.User != nil:
		return Config{}, fault.New(fault.Invalid, "store %q has credentials in it", u.Redacted()).
			WithHint("A URL is kept and shown; put keys into $AWS_ACCESS_KEY_ID and $AWS_SECRET_ACCESS_KEY, or into ~/.aws/credentials.")
	case u.Scheme != "s3":
		return bad("%q is not an s3 URL", raw)
	case u.Opaque != "" || u.Fragment != "":
		return bad("%q: it has to begin with s3://BUCKET", raw)
	}
	c := Config{Bucket: u.Host, Prefix: strings.Trim(u.Path, "/"), Conditional: true}
	if err := s3utils.CheckValidBucketName(c.Bucket); err != nil {
		return bad("%q: bucket %q: %v", raw, c.Bucket, err)
	}
	if c.Prefix != "" && store.CheckKey(c.Prefix) != nil {
		return bad("%q: prefix %q: plain characters, no component that begins with a dot", raw, c.Prefix)
	}
	options, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return bad("%q: its options are not NAME=VALUE", raw)
	}
	style := ""
	for name, values := range options {
		v := values[len(values)-1]
		known := true
		switch name {
		case "endpoint":
			c.Endpoint = v
		case "region":
			c.Region = v
		case "profile":
			c.Profile = v
		case "ca":
			c.CA = v
		case "addressing":
			style = v
			known = v == "path" || v == "host"
		case "anonymous":
			c.Anonymous = v == "true"
			known = v == "true" || v == "false"
		case "conditional":
			c.Conditional = v != "off"
			known = v == "on" || v == "off"
		default:
			return bad("%q: there is no option %q", raw, name)
		}
		if !known {
			return bad("%q: option %s cannot be %q", raw, name, v)
		}
	}
	if c.Endpoint == "" {
		c.Endpoint = first(getenv("AWS_ENDPOINT_URL_S3"), getenv("AWS_ENDPOINT_URL"))
	}
	if c.Endpoint != "" {
		if c.Endpoint, err = cleanEndpoint(c.Endpoint); err != nil {
			return bad("%q: endpoint: %v", raw, err)
		}
	}
	if c.Region == "" {
		c.Region = first(getenv("AWS_REGION"), getenv("AWS_DEFAULT_REGION"))
	}
	if c.Region == "" && c.Endpoint != "" {
		c.Region = "us-east-1"
	}
	if c.Profile == "" {
		c.Profile = getenv("AWS_PROFILE")
	}
	c.HostStyle = style == "host" || style == "" && c.Endpoint == ""
	return c, nil
}

// cleanEndpoint gives SCHEME://HOST[:PORT].
func cleanEndpoint(raw string) (string, error) {
	if !strings.Contains(raw, "://") {
		raw = "https://" + raw
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Host == "" || u.Hostname() == "":
		return "", fault.New(fault.Invalid, "%q is no URL of a server", redact(raw))
	case u.Scheme != "http" && u.Scheme != "https":
		return "", fault.New(fault.Invalid, "%q begins with neither http:// nor https://", redact(raw))
	case u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return "", fault.New(fault.Invalid, "only a scheme, a host and a port")
	}
	return u.Scheme + "://" + u.Host, nil
}

// URL gives what ParseURL reads, whatever the environment then is.
func (c Config) URL() string {
	u := url.URL{Scheme: "s3", Host: c.Bucket}
	if c.Prefix != "" {
		u.Path = "/" + c.Prefix
	}
	q := url.Values{}
	set := func(name, value string) {
		if value != "" {
			q.Set(name, value)
		}
	}
	set("endpoint", c.Endpoint)
	set("region", c.Region)
	set("profile", c.Profile)
	set("ca", c.CA)
	switch {
	case c.HostStyle && c.Endpoint != "":
		set("addressing", "host")
	case !c.HostStyle && c.Endpoint == "":
		set("addressing", "path")
	}
	if c.Anonymous {
		set("anonymous", "true")
	}
	if !c.Conditional {
		set("conditional", "off")
	}
	// Escaping what may stand as it is would only hinder reading.
	u.RawQuery = strings.NewReplacer("%3A", ":", "%2F", "/").Replace(q.Encode())
	return u.String()
}

// host gives the endpoint without its scheme, and whether that is https.
func (c Config) host() (string, bool) {
	if c.Endpoint == "" {
		return "s3.amazonaws.com", true
	}
	host, plain := strings.CutPrefix(c.Endpoint, "http://")
	return strings.TrimPrefix(host, "https://"), !plain
}

// server names the server for people.
func (c Config) server() string {
	host, _ := c.host()
	if name, port, err := net.SplitHostPort(host); err == nil && (port == "443" || port == "80") {
		return name
	}
	return host
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// redact removes what may be a password from what is not even a URL.
func redact(raw string) string {
	if i := strings.LastIndexByte(raw, '@'); i >= 0 {
		return "..." + raw[i:]
	}
	return raw
}

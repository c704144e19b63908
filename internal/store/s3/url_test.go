package s3_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store/s3"
)

func TestParseURL(t *testing.T) {
	tests := []struct {
		url  string
		env  map[string]string
		want s3.Config
		back string // as it is remembered
	}{
		{"s3://team", nil, s3.Config{Bucket: "team", HostStyle: true, Conditional: true}, "s3://team"},
		{"s3://team/brisk/", map[string]string{"AWS_REGION": "eu-west-1"},
			s3.Config{Bucket: "team", Prefix: "brisk", Region: "eu-west-1", HostStyle: true, Conditional: true}, "s3://team/brisk?region=eu-west-1"},
		{"s3://team?endpoint=http://10.0.0.1:9000", nil,
			s3.Config{Bucket: "team", Endpoint: "http://10.0.0.1:9000", Region: "us-east-1", Conditional: true},
			"s3://team?endpoint=http://10.0.0.1:9000&region=us-east-1"},
		{"s3://team/a/b?region=x", map[string]string{"AWS_ENDPOINT_URL": "https://one", "AWS_ENDPOINT_URL_S3": "https://two/", "AWS_REGION": "y", "AWS_PROFILE": "p"},
			s3.Config{Bucket: "team", Prefix: "a/b", Endpoint: "https://two", Region: "x", Profile: "p", Conditional: true},
			"s3://team/a/b?endpoint=https://two&profile=p&region=x"},
		{"s3://team?endpoint=minio.local:9000&addressing=host&anonymous=true&conditional=off&ca=/etc/ca.pem&profile=q", nil,
			s3.Config{Bucket: "team", Endpoint: "https://minio.local:9000", Region: "us-east-1", Profile: "q", CA: "/etc/ca.pem", HostStyle: true, Anonymous: true},
			"s3://team?addressing=host&anonymous=true&ca=/etc/ca.pem&conditional=off&endpoint=https://minio.local:9000&profile=q&region=us-east-1"},
		{"s3://team?addressing=path", nil, s3.Config{Bucket: "team", Conditional: true}, "s3://team?addressing=path"},
	}
	for _, test := range tests {
		got, err := s3.ParseURL(test.url, func(name string) string { return test.env[name] })
		require.NoError(t, err, test.url)
		require.Equal(t, test.want, got, test.url)
		require.Equal(t, test.back, got.URL())
		again, err := s3.ParseURL(got.URL(), func(string) string { return "" })
		require.NoError(t, err)
		require.Equal(t, got, again, "what is remembered needs no environment")
	}
}

func TestParseURLRefuses(t *testing.T) {
	for url, want := range map[string]string{
		"":                                     "is not an s3 URL",
		"http://bucket":                        "is not an s3 URL",
		"s3:bucket":                            "has to begin with s3://BUCKET",
		"s3://":                                "Bucket name cannot be empty",
		"s3://b":                               "shorter than 3",
		"s3://team/../etc":                     "prefix",
		"s3://team/.hidden":                    "prefix",
		"s3://team?endpont=http://x":           `no option "endpont"`,
		"s3://team?endpoint=ftp://x":           "neither http:// nor https://",
		"s3://team?endpoint=http://x/path":     "only a scheme, a host and a port",
		"s3://team?endpoint=http://":           "no URL of a server",
		"s3://team?anonymous=maybe":            `cannot be "maybe"`,
		"s3://team?conditional=no":             `cannot be "no"`,
		"s3://team?addressing=x":               `cannot be "x"`,
		"s3://team#x":                          "has to begin with",
		"s3://AKIA:secret@team":                "credentials in it",
		"s3://team?endpoint=http://u:secret@x": "only a scheme",
		"s3://AKIA:sec%ret@team":               "is no URL",
	} {
		_, err := s3.ParseURL(url, func(string) string { return "" })
		require.Equal(t, fault.Invalid, fault.ClassOf(err), url)
		require.ErrorContains(t, err, want)
		require.NotEmpty(t, fault.HintOf(err), url)
		require.NotContains(t, err.Error(), "sec%ret")
		if want == "credentials in it" {
			require.NotContains(t, err.Error(), "secret")
			require.Contains(t, fault.HintOf(err), "AWS_ACCESS_KEY_ID")
		}
	}
}

func TestURLRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z][a-z0-9]{3,10}`)
		c := s3.Config{
			Bucket: name.Draw(t, "bucket"), Prefix: rapid.SampledFrom([]string{"", "a", "a/b c"[:3], "x_-/y+z&="}).Draw(t, "prefix"),
			Endpoint: rapid.SampledFrom([]string{"", "http://127.0.0.1:7070", "https://[::1]:443"}).Draw(t, "endpoint"),
			Region:   rapid.SampledFrom([]string{"us-east-1", "a&b=c d/é"}).Draw(t, "region"), Profile: rapid.String().Draw(t, "profile"),
			CA: rapid.String().Draw(t, "ca"), HostStyle: rapid.Bool().Draw(t, "host"), Anonymous: rapid.Bool().Draw(t, "anonymous"),
			Conditional: rapid.Bool().Draw(t, "conditional"),
		}
		got, err := s3.ParseURL(c.URL(), func(string) string { return "" })
		require.NoError(t, err, c.URL())
		require.Equal(t, c, got, c.URL())
	})
}

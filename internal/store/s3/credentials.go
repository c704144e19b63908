package s3

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// errNoCredentials is what a request fails with when no place has any.
var errNoCredentials = errors.New("there are no credentials")

// metadataTime bounds a question to a metadata service. It is a link-local
// address: an answer takes milliseconds, and where there is none it takes for ever.
const metadataTime = 2 * time.Second

// noneFor is how long it is remembered that no place has credentials, so that
// requests do not each wait for the metadata service.
const noneFor = 10 * time.Second

// usual looks for credentials in the usual places, in order; the first that has
// any is asked again when they expire.
type usual struct {
	mu      sync.Mutex
	places  []place
	current credentials.Provider // nil: none has had any
	none    error                // why, until
	until   time.Time
	now     func() time.Time
}

type place struct {
	name string
	credentials.Provider
}

func usualPlaces(profile string) *usual {
	// Nothing of this goes through a proxy.
	client := &http.Client{
		Timeout:   metadataTime,
		Transport: &http.Transport{DialContext: (&net.Dialer{Timeout: metadataTime}).DialContext, DisableKeepAlives: true},
	}
	role := &credentials.IAM{Client: client}
	if os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE") != "" {
		role.Client = &http.Client{Timeout: 5 * metadataTime} // this asks a service that is elsewhere
	}
	places := []place{
		{"the environment", &credentials.EnvAWS{}},
		{"the shared files", &credentials.FileAWSCredentials{Profile: profile}},
	}
	if os.Getenv("AWS_EC2_METADATA_DISABLED") != "true" || os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE") != "" ||
		os.Getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") != "" || os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI") != "" {
		places = append(places, place{"the role of this machine", role})
	}
	if profile != "" { // whoever names one means it
		places = places[1:]
	}
	return &usual{places: places, now: time.Now}
}

// RetrieveWithCredContext implements credentials.Provider.
func (u *usual) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.none != nil && u.now().Before(u.until) {
		return credentials.Value{}, u.none
	}
	u.none = nil
	var errs []error
	for _, p := range u.places {
		v, err := p.RetrieveWithCredContext(cc)
		if err == nil && v.AccessKeyID != "" && v.SecretAccessKey != "" {
			u.current = p.Provider
			return v, nil
		}
		if err != nil && p.name != "the environment" {
			errs = append(errs, fmt.Errorf("%s: %w", p.name, err))
		}
	}
	u.current = nil
	u.none, u.until = fmt.Errorf("%w: %w", errNoCredentials, errors.Join(errs...)), u.now().Add(noneFor)
	return credentials.Value{}, u.none
}

// Retrieve implements credentials.Provider.
func (u *usual) Retrieve() (credentials.Value, error) { return u.RetrieveWithCredContext(nil) }

// IsExpired implements credentials.Provider.
func (u *usual) IsExpired() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.current == nil || u.current.IsExpired()
}

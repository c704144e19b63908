package s3

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
)

// wrap gives an error of an operation on an object its class and, if there is
// something to do about it, a hint.
func (o *Origin) wrap(err error, op, key string) error {
	if err == nil {
		return nil
	}
	f := o.classify(err)
	denied := f.Class == fault.Machine && !errors.Is(err, errNoConditions)
	if denied && !errors.Is(err, errNoCredentials) {
		o.renewCredentials()
	}
	if denied && !errors.Is(f.Err, store.ErrDenied) {
		f.Err = marked{f.Err, store.ErrDenied}
	}
	f.Op, f.Object = op, o.name(key)
	return f
}

// marked is an error that is also another, which says nothing to people.
type marked struct {
	error
	mark error
}

func (m marked) Unwrap() []error { return []error{m.error, m.mark} }

// renewInterval keeps a flood of refused requests from becoming one of questions for credentials.
const renewInterval = 5 * time.Second

// renewCredentials makes the next request ask for credentials: somebody may have
// replaced those that were refused.
func (o *Origin) renewCredentials() {
	now, last := time.Now().UnixNano(), o.renewed.Load()
	if now-last >= int64(renewInterval) && o.renewed.CompareAndSwap(last, now) {
		o.creds.Expire()
	}
}

// classify says what an error amounts to, once for all operations.
func (o *Origin) classify(err error) *fault.Error {
	if f, ok := errors.AsType[*fault.Error](err); ok { // ours already
		return &fault.Error{Class: f.Class, Err: err}
	}
	if r, ok := response(err); ok {
		return o.classifyResponse(r)
	}
	// What net/http adds (method and URL) is known already.
	cause := err
	if u, ok := errors.AsType[*url.Error](err); ok {
		cause = u.Err
	}
	verdict := func(class fault.Class, cause error, hint string, args ...any) *fault.Error {
		return &fault.Error{Class: class, Err: cause, Hint: fmt.Sprintf(hint, args...)}
	}
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	dns, _ := errors.AsType[*net.DNSError](err)
	switch {
	case errors.Is(err, context.Canceled):
		return verdict(fault.Cancelled, cause, "")
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return verdict(fault.Timeout, cause, "")
	case errors.Is(err, errNoCredentials):
		return verdict(fault.Machine, err, "Set $AWS_ACCESS_KEY_ID and $AWS_SECRET_ACCESS_KEY where the server of Brisk starts, or write them to ~/.aws/credentials of its user; for a public bucket, add anonymous=true to the URL.")
	case unknown:
		return verdict(fault.Unavailable, cause, "Name the authority's certificates with ca=FILE in the URL of the store.")
	case dns != nil && dns.IsNotFound:
		return verdict(fault.Unavailable, cause, "There is no host %s: look at endpoint and region in the URL of the store.", dns.Name)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return verdict(fault.Unavailable, fmt.Errorf("the connection was cut: %w", cause), "")
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return verdict(fault.Unavailable, cause, "%s speaks plain HTTP: endpoint=http://...", o.config.server())
	}
	// No connection, or one that broke.
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		cause = marked{cause, store.ErrRefused}
	}
	return verdict(fault.Unavailable, cause, "Is the S3 server at %s up, and can this machine reach it?", o.config.server())
}

// response finds the server's answer in an error.
func response(err error) (minio.ErrorResponse, bool) {
	return errors.AsType[minio.ErrorResponse](err)
}

// verdict is what an answer of the server amounts to.
type verdict struct {
	class   fault.Class
	hint    string // with SERVER and BUCKET
	refused bool   // it has certainly done nothing
}

const (
	hintWho   = "SERVER does not know these credentials: look at $AWS_ACCESS_KEY_ID, $AWS_SECRET_ACCESS_KEY, ~/.aws/credentials, and the profile and endpoint in the URL of the store."
	hintOld   = "The credentials have expired: renew them where they come from (aws sso login, the keys in the environment or in ~/.aws/credentials). Brisk takes new ones from files within seconds; for those of its environment start it again."
	hintMay   = "These credentials may not do that: they need s3:GetObject, s3:PutObject, s3:DeleteObject, s3:ListBucket and s3:AbortMultipartUpload on bucket BUCKET."
	hintClock = "This machine's clock differs from the server's by more than 15 minutes: set it (timedatectl set-ntp true), and try again."
	hintWhere = "Name the bucket's region with region=NAME in the URL of the store."
	hintBusy  = "The S3 server has too much to do, or limits this account."
	hintFull  = "Bucket BUCKET is full: make room on SERVER, or remove images with `brisk image rm`."
)

// Codes go before statuses: a server's 403 may mean half a dozen things.
var codes = map[string]verdict{}

func init() {
	for _, all := range []struct {
		codes string
		verdict
	}{
		{"NoSuchKey NoSuchUpload", verdict{class: fault.NotFound}},
		{"NoSuchBucket", verdict{fault.Invalid, "Create bucket BUCKET on SERVER, or name another with --store.", false}},
		{"InvalidRange", verdict{class: fault.Corrupt}},
		{"PreconditionFailed ConditionalRequestConflict OperationAborted", verdict{class: fault.Exists}},
		{"RequestTimeTooSkewed RequestInTheFuture", verdict{fault.Machine, hintClock, false}},
		{"ExpiredToken ExpiredTokenException TokenRefreshRequired RequestExpired", verdict{fault.Machine, hintOld, false}},
		{"InvalidAccessKeyId SignatureDoesNotMatch InvalidToken InvalidSecurity UnrecognizedClientException InvalidClientTokenId NotSignedUp XAdminUserNotFound",
			verdict{fault.Machine, hintWho, false}},
		{"AccessDenied AccountProblem AllAccessDisabled KMS.AccessDeniedException", verdict{fault.Machine, hintMay, false}},
		{"AuthorizationHeaderMalformed PermanentRedirect TemporaryRedirect IllegalLocationConstraintException InvalidRegion", verdict{fault.Invalid, hintWhere, false}},
		{"SlowDown SlowDownRead SlowDownWrite ServiceUnavailable TooManyRequests RequestLimitExceeded Throttling ThrottlingException BandwidthLimitExceeded Busy",
			verdict{fault.Unavailable, hintBusy, true}},
		// 400, but of the transfer: what arrived is not what was sent.
		{"RequestTimeout BadDigest InvalidDigest XAmzContentSHA256Mismatch XAmzContentChecksumMismatch IncompleteBody BadRequest", verdict{class: fault.Unavailable}},
		{"QuotaExceeded XMinioStorageFull InsufficientStorage StorageFull InsufficientCapacity", verdict{fault.DiskFull, hintFull, false}},
	} {
		for code := range strings.FieldsSeq(all.codes) {
			codes[code] = all.verdict
		}
	}
}

var statuses = map[int]verdict{
	http.StatusUnauthorized:                 {fault.Machine, "Look at the credentials, and at what stands between this machine and SERVER.", false},
	http.StatusForbidden:                    {fault.Machine, "Look at the credentials, and at what stands between this machine and SERVER.", false},
	http.StatusRequestTimeout:               {class: fault.Unavailable},
	http.StatusConflict:                     {class: fault.Exists},
	http.StatusPreconditionFailed:           {class: fault.Exists},
	http.StatusRequestedRangeNotSatisfiable: {class: fault.Corrupt},
	http.StatusTooManyRequests:              {fault.Unavailable, hintBusy, true},
	http.StatusServiceUnavailable:           {fault.Unavailable, hintBusy, true},
	http.StatusInsufficientStorage:          {fault.DiskFull, hintFull, false},
}

// classifyResponse says what an answer that is an error amounts to.
func (o *Origin) classifyResponse(r minio.ErrorResponse) *fault.Error {
	v, known := codes[r.Code]
	if !known {
		v, known = statuses[r.StatusCode]
	}
	switch {
	case !known && r.StatusCode >= 500:
		v = verdict{class: fault.Unavailable}
	case !known: // a 404 that does not say what is missing, too
		v = verdict{fault.Invalid, "Is SERVER an S3 server?", false}
	}
	var cause error
	switch {
	case r.Code == "NoSuchBucket":
		cause = fmt.Errorf("there is no bucket %s", o.config.Bucket)
	case v.class == fault.Corrupt:
		cause = fmt.Errorf("it ends before that: %w", io.ErrUnexpectedEOF)
	case v.class == fault.Exists:
		cause = errors.New("another was quicker")
	case r.Code == "" || strings.HasPrefix(r.Code, strconv.Itoa(r.StatusCode)): // the client's own invention
		cause = fmt.Errorf("the server answers %d %s", r.StatusCode, http.StatusText(r.StatusCode))
	default:
		cause = fmt.Errorf("the server answers %s: %s", r.Code, strings.TrimSuffix(firstLine(r.Error()), "."))
	}
	if v.refused {
		cause = marked{cause, store.ErrRefused}
	}
	if v.hint == hintWhere && r.Region != "" {
		v.hint = fmt.Sprintf("The bucket is in another region: region=%s in the URL of the store.", r.Region)
	}
	hint := strings.NewReplacer("SERVER", o.config.server(), "BUCKET", o.config.Bucket).Replace(v.hint)
	return &fault.Error{Class: v.class, Err: cause, Hint: hint}
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	if len(s) > 200 {
		s = s[:200] + "..."
	}
	return s
}

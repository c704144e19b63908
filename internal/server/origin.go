package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/api"
	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/remote"
	"brisk.dev/brisk/internal/store/s3"
)

// A Place is where a server's store is: a directory, or a bucket. It is chosen when
// a data directory is used for the first time, and remembered there.
type Place struct {
	URL    string     // of a bucket, without secrets; or an absolute path
	Bucket *s3.Config // nil: a directory
	Own    bool       // the directory in the data directory
	fresh  bool       // it is not remembered yet
	given  string
}

// placeFormat is what DATA/store.json is.
type placeFormat struct {
	Version int    `json:"version"` // 1
	URL     string `json:"url"`
	Given   string `json:"given"` // as it was named: what the environment then added is in the URL
}

func placeFile(p Paths) string { return filepath.Join(p.Data, "store.json") }

// ownStore is the place that is not chosen.
func ownStore(p Paths) string { return filepath.Join(p.Data, "store") }

// FindPlace says where the store of a data directory is, or is to be: given, a
// directory or an s3 URL; if that is empty, what is remembered, or the data directory
// itself. Another place than the remembered one is fault.Invalid.
func FindPlace(p Paths, given string) (Place, error) {
	known, err := rememberedPlace(p)
	if err != nil {
		return Place{}, err
	}
	if given == "" || known != nil && given == known.given {
		if known != nil {
			return *known, nil
		}
		return Place{URL: ownStore(p), Own: true}, nil
	}
	asked, err := parsePlace(given, os.Getenv)
	if err != nil {
		return Place{}, err
	}
	switch {
	case known != nil && asked.URL == known.URL:
		return *known, nil
	case asked.URL == ownStore(p) && known == nil:
		return Place{URL: asked.URL, Own: true}, nil
	case known != nil:
		return Place{}, fault.New(fault.Invalid, "the store of %s is %s, not %s", p.Data, known.URL, asked.URL).
			WithHint("Leave --store and $BRISK_STORE out to go on with it, or use another directory with --data for the other store.")
	}
	if used, err := filepath.Glob(filepath.Join(ownStore(p), "*")); err != nil || len(used) > 0 {
		return Place{}, fault.New(fault.Invalid, "%s has images in a store of its own (%s)", p.Data, ownStore(p)).
			WithHint("Use another directory with --data for %s, and import or build the images there again.", asked.URL)
	}
	asked.fresh = true
	return asked, nil
}

func parsePlace(given string, getenv func(string) string) (Place, error) {
	if strings.Contains(given, "://") {
		c, err := s3.ParseURL(given, getenv)
		if err != nil {
			return Place{}, err
		}
		return Place{URL: c.URL(), Bucket: &c, given: given}, nil
	}
	dir, err := filepath.Abs(given)
	if err != nil {
		return Place{}, fault.Wrap(err, "find store", given)
	}
	return Place{URL: dir, given: given}, nil
}

// rememberedPlace is nil if none was chosen.
func rememberedPlace(p Paths) (*Place, error) {
	b, err := os.ReadFile(placeFile(p))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.Wrap(err, "read", placeFile(p))
	}
	var f placeFormat
	if err := json.Unmarshal(b, &f); err != nil || f.Version != 1 || f.URL == "" {
		return nil, fault.New(fault.Corrupt, "%s does not say where the store is: %q", placeFile(p), b).
			WithHint("Remove it, and name the store with --store.")
	}
	place, err := parsePlace(f.URL, func(string) string { return "" })
	place.given = f.Given
	return &place, err
}

// remember writes a place down.
func (l Place) remember(p Paths) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(placeFormat{Version: 1, URL: l.URL, Given: l.given}); err != nil {
		return err
	}
	return fault.Wrap(writeDurably(placeFile(p), b.Bytes()), "remember store in", placeFile(p))
}

// origin is an open store.Origin.
type origin struct {
	store.Origin
	place   Place
	network *remote.Origin // nil: a directory
	close   func()
}

// openOrigin opens the place of the store. One that is used for the first time has
// to answer; later it need not, since what is local can be used without it.
func openOrigin(ctx context.Context, p Paths, given string, log *slog.Logger) (_ *origin, err error) {
	place, err := FindPlace(p, given)
	if err != nil {
		return nil, err
	}
	o := &origin{place: place}
	if place.Bucket == nil {
		o.Origin, o.close, err = openDirectory(place.URL)
	} else {
		o.Origin, o.network, o.close, err = openBucket(*place.Bucket, log)
	}
	if err != nil {
		return nil, err
	}
	if place.fresh {
		ctx, cancel := context.WithTimeout(ctx, firstTime)
		defer cancel()
		if err := Reach(ctx, o); err != nil {
			o.close()
			return nil, fault.Wrap(err, "use store", place.URL)
		}
		if err := place.remember(p); err != nil {
			o.close()
			return nil, err
		}
	}
	log.Info("the store", "at", place.URL)
	return o, nil
}

// state says how the origin does, after it was asked for something with that result.
func (o *origin) state(err error) api.Origin {
	s := api.Origin{URL: o.place.URL, Up: err == nil}
	if o.network != nil {
		h, n := o.network.Health(), o.network.Stats()
		if err == nil {
			err = h.Err
		}
		s.Up = s.Up && h.Up
		s.Requests, s.ReadBytes, s.Failures, s.Denied = n.Requests, n.Bytes, n.Failures, n.Denied
		s.Retries, s.Hedges, s.HedgesWon, s.Merged = n.Retries, n.Hedges, n.HedgesWon, n.Merged
	}
	if err != nil {
		s.Error, s.Hint = err.Error(), fault.HintOf(err)
	}
	return s
}

// firstTime bounds the first look at a bucket.
const firstTime = 10 * time.Second

// Reach makes sure that an origin can be read, listed, and is of a format that is known.
func Reach(ctx context.Context, o store.Origin) error {
	if err := store.CheckVersion(ctx, o); err != nil {
		return err
	}
	enough := errors.New("enough")
	if err := o.List(ctx, "", func(store.Object) error { return enough }); err != nil && !errors.Is(err, enough) {
		return err
	}
	return nil
}

// openDirectory opens a directory for this server alone: the collector, for one,
// relies on it.
func openDirectory(dir string) (store.Origin, func(), error) {
	o, err := store.OpenDir(dir)
	if err != nil {
		return nil, nil, err
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, nil, fault.Wrap(err, "lock store", dir)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, nil, fault.Wrap(err, "lock store", dir)
		}
		return nil, nil, fault.New(fault.Invalid, "another server uses the store in %s", dir).
			WithHint("A directory is the store of one server; several share a bucket: --store s3://BUCKET.")
	}
	return o, func() { f.Close() }, nil
}

func openBucket(c s3.Config, log *slog.Logger) (store.Origin, *remote.Origin, func(), error) {
	bucket, err := s3.New(c)
	if err != nil {
		return nil, nil, nil, err
	}
	network := remote.New(bucket, remote.Options{Log: log})
	ctx, cancel := context.WithTimeout(context.Background(), sweepTime)
	swept := make(chan struct{})
	go func() {
		defer close(swept)
		if n, err := bucket.Sweep(ctx, abandoned); n > 0 || err != nil && !store.Away(err) && ctx.Err() == nil {
			log.Info("uploads that nobody will finish", "aborted", n, "err", err)
		}
	}()
	return network, network, func() { cancel(); <-swept; network.Close(); bucket.Close() }, nil
}

// Uploads of servers that died are aborted by the next that starts, when no upload can
// have taken so long.
const (
	abandoned = 24 * time.Hour
	sweepTime = 5 * time.Minute
)

// CheckPlace looks whether a place can be used, for the doctor. It changes nothing.
func CheckPlace(ctx context.Context, l Place) error {
	if l.Bucket == nil {
		st, err := os.Stat(l.URL)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // it will be made
		case err != nil:
			return fault.Wrap(err, "look at store", l.URL)
		case !st.IsDir():
			return fault.New(fault.Invalid, "%s is no directory", l.URL)
		}
		return fault.Wrap(unix.Access(l.URL, unix.W_OK), "write to store", l.URL)
	}
	bucket, err := s3.New(*l.Bucket)
	if err != nil {
		return err
	}
	defer bucket.Close()
	if err := store.ReadVersion(ctx, bucket); err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	enough := errors.New("enough")
	if err := bucket.List(ctx, "", func(store.Object) error { return enough }); err != nil && !errors.Is(err, enough) {
		return err
	}
	return nil
}

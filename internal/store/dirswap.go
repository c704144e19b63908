package store

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"brisk.dev/brisk/internal/fault"
)

// versionOf is the version of an object in a directory: its content.
func versionOf(data []byte) Version { return Version(Sum(data).Short()) }

// Swap implements Origin. The new content is on disk before anybody is kept
// waiting: the lock is held for a small read and a rename.
func (d *DirOrigin) Swap(ctx context.Context, key string, old Version, data []byte) (Version, error) {
	path, err := d.path(key)
	if err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	f, err := createTemp(d.tmp)
	if err != nil {
		return "", DiskError(err, "swap", d.root)
	}
	defer f.Close()
	err = d.fill(ctx, f, bytes.NewReader(data))
	if err == nil {
		err = d.exchange(ctx, f.Name(), path, key, old)
	}
	if !errors.Is(err, errCrash) {
		os.Remove(f.Name()) // unless it was renamed
	}
	if err != nil {
		return "", DiskError(err, "swap", path)
	}
	return versionOf(data), nil
}

// exchange puts the synced file temp in the place of path, if what is there has
// version old, and makes that durable.
func (d *DirOrigin) exchange(ctx context.Context, temp, path, key string, old Version) error {
	unlock, err := d.lockSwaps(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	f, size, err := d.open(ctx, "swap", key)
	switch {
	case fault.Is(err, fault.NotFound):
		if old != "" {
			return fault.New(fault.Exists, "there is no object any more")
		}
		// Not publish with replace: a Put may be doing the same.
		return d.publish(temp, path, false)
	case err != nil:
		return err
	}
	defer f.Close()
	now := make([]byte, size)
	if _, err := f.ReadAt(now, 0); err != nil && size > 0 {
		return err
	}
	if v := versionOf(now); old != v {
		return fault.New(fault.Exists, "another was quicker: the object has version %s, not %q", v, old)
	}
	return d.publish(temp, path, true)
}

// lockSwaps makes the caller the only one, of all processes, who exchanges or
// deletes objects.
func (d *DirOrigin) lockSwaps(ctx context.Context) (unlock func(), err error) {
	select {
	case d.swaps <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	release := func() { <-d.swaps }
	f, err := os.Open(d.tmp) // sweep locks what is in there, not the directory
	if err != nil {
		release()
		return nil, err
	}
	// Another process is rarely in here, and never for long. A flock that waits could not
	// be cancelled.
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 20*time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close(); release() }, nil
		}
		if errors.Is(err, unix.EWOULDBLOCK) {
			select {
			case <-time.After(wait):
				continue
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		f.Close()
		release()
		return nil, err
	}
}

func ignoreMissing(err error) error {
	if errors.Is(missing(err), fs.ErrNotExist) {
		return nil
	}
	return err
}

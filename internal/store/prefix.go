package store

import (
	"context"
	"io"
	"strings"
)

// Prefix gives the part of an origin whose keys begin with prefix ("W/"), under
// their remaining names. It can do whatever the origin can.
func Prefix(o Origin, prefix string) Origin {
	p := prefixed{o, prefix}
	if files, ok := o.(filePutter); ok {
		return prefixedFiles{p, files}
	}
	return p
}

type prefixed struct {
	origin Origin
	prefix string
}

// key gives the origin's key; "../x" and "" must not lead out.
func (p prefixed) key(key string) (string, error) {
	if err := CheckKey(key); err != nil {
		return "", err
	}
	return p.prefix + key, nil
}

func (p prefixed) Put(ctx context.Context, key string, r io.Reader) error {
	key, err := p.key(key)
	if err != nil {
		return err
	}
	return p.origin.Put(ctx, key, r)
}

func (p prefixed) Swap(ctx context.Context, key string, old Version, data []byte) (Version, error) {
	key, err := p.key(key)
	if err != nil {
		return "", err
	}
	return p.origin.Swap(ctx, key, old, data)
}

func (p prefixed) ReadAt(ctx context.Context, key string, b []byte, off int64) error {
	key, err := p.key(key)
	if err != nil {
		return err
	}
	return p.origin.ReadAt(ctx, key, b, off)
}

func (p prefixed) Open(ctx context.Context, key string, off int64) (io.ReadCloser, error) {
	key, err := p.key(key)
	if err != nil {
		return nil, err
	}
	return p.origin.Open(ctx, key, off)
}

func (p prefixed) Get(ctx context.Context, key string, max int64) ([]byte, Version, error) {
	key, err := p.key(key)
	if err != nil {
		return nil, "", err
	}
	return p.origin.Get(ctx, key, max)
}

func (p prefixed) Size(ctx context.Context, key string) (int64, error) {
	key, err := p.key(key)
	if err != nil {
		return 0, err
	}
	return p.origin.Size(ctx, key)
}

func (p prefixed) List(ctx context.Context, prefix string, fn func(Object) error) error {
	return p.origin.List(ctx, p.prefix+prefix, func(o Object) error {
		o.Key = strings.TrimPrefix(o.Key, p.prefix)
		return fn(o)
	})
}

func (p prefixed) Delete(ctx context.Context, key string) error {
	key, err := p.key(key)
	if err != nil {
		return err
	}
	return p.origin.Delete(ctx, key)
}

// prefixedFiles is prefixed over an origin that takes over files.
type prefixedFiles struct {
	prefixed
	files filePutter
}

func (p prefixedFiles) PutFile(ctx context.Context, key, path string, replace bool) error {
	key, err := p.key(key)
	if err != nil {
		return err
	}
	return p.files.PutFile(ctx, key, path, replace)
}

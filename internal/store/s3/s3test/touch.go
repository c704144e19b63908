package s3test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"brisk.dev/brisk/internal/store"
	"brisk.dev/brisk/internal/store/remote"
	"brisk.dev/brisk/internal/store/s3"
	"brisk.dev/brisk/internal/store/slab"
)

// Touch is how long one thing took in two ways.
type Touch struct {
	Chunk time.Duration // the first read of a chunk that is only at the origin: fetched, verified, kept in the slab
	Bare  time.Duration // a plain HTTP client's read of as many bytes of an object of the same server
}

// FirstTouches measures n first touches of chunks of 128 KiB, which compress to some
// 80, each beside a bare HTTP range read, in turn. The server has everything in the page
// cache; nothing is in the slab. dir is for the store's state; the environment has the server's keys
// (AccessKey, SecretKey).
func (s *Server) FirstTouches(ctx context.Context, dir string, n int) (touches []Touch, err error) {
	prefix := fmt.Sprintf("touch-%d", time.Now().UnixNano()) // of a store that has nothing yet
	config, err := s3.ParseURL(s.URL(prefix), os.Getenv)
	if err != nil {
		return nil, err
	}
	bucket, err := s3.New(config)
	if err != nil {
		return nil, err
	}
	defer bucket.Close()
	origin := remote.New(bucket, remote.Options{Log: slog.New(slog.DiscardHandler)})
	defer origin.Close()
	cache, err := slab.Open(slab.Options{Dir: filepath.Join(dir, "cache"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	defer cache.Close()
	st, err := store.Open(ctx, store.Options{Dir: dir, Origin: origin, Cache: cache, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	defer st.Close()

	r := rand.New(rand.NewPCG(1, 2))
	batch := st.Begin(ctx)
	defer batch.Abort()
	chunks := make([]store.Chunk, n)
	data := make([]byte, store.ChunkSize)
	for i := range chunks {
		for j := 0; j < len(data); j += 2 {
			data[j] = byte(r.Uint32())
		}
		if chunks[i], _, err = batch.Add(data); err != nil {
			return nil, err
		}
	}
	written, err := batch.Commit(ctx)
	if err != nil {
		return nil, err
	}
	frame := int(written.StoredBytes) / n
	object := bytes.Repeat(data, (n*frame)/len(data)+1)
	if err := bucket.Put(ctx, "bare", bytes.NewReader(object)); err != nil {
		return nil, err
	}
	client, err := minio.New(s.Addr, &minio.Options{Creds: credentials.NewStaticV4(AccessKey, SecretKey, ""), Region: "us-east-1"})
	if err != nil {
		return nil, err
	}
	signed, err := client.PresignedGetObject(ctx, Bucket, prefix+"/bare", time.Hour, nil)
	if err != nil {
		return nil, err
	}
	plain := &http.Client{Transport: &http.Transport{}}
	defer plain.CloseIdleConnections()
	reader := st.Reader(written.Packs, chunks)
	for i, c := range chunks {
		var t Touch
		began := time.Now()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, signed.String(), nil)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", i*frame, (i+1)*frame-1))
		resp, err := plain.Do(req)
		if err != nil {
			return nil, err
		}
		got, err := io.ReadFull(resp.Body, data[:frame])
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusPartialContent {
			return nil, fmt.Errorf("bare read: %s, %d bytes, %w", strings.TrimSpace(resp.Status), got, err)
		}
		t.Bare = time.Since(began)
		began = time.Now()
		if tier, err := reader.ReadChunk(ctx, c, data); err != nil || tier != store.FromOrigin {
			return nil, fmt.Errorf("first touch: from tier %d, %w", tier, err)
		}
		t.Chunk = time.Since(began)
		touches = append(touches, t)
	}
	return touches, nil
}

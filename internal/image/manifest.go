package image

import (
	"bytes"
	"encoding/json"
	"slices"
	"time"

	"brisk.dev/brisk/internal/fault"
	"brisk.dev/brisk/internal/image/erofs"
	"brisk.dev/brisk/internal/store"
)

// ManifestVersion is the version of the manifests that this Brisk writes, and the
// only one that it reads.
const ManifestVersion = 1

// maxManifest bounds a manifest that is read back, in bytes.
const maxManifest = 16 << 20

// Manifest binds an image together. The fields up to Chunks are the content and
// make the digest; the others say where the content lies and describe it.
type Manifest struct {
	Version int      `json:"version"`
	Config  Config   `json:"config"`
	Meta    BlobRef  `json:"meta"`
	Chunks  TableRef `json:"chunks"`

	Packs        []store.Digest `json:"packs,omitempty"` // that hold the chunks, sorted
	DeviceBlocks uint32         `json:"device_blocks"`   // of 4 KiB
	Files        int64          `json:"files"`           // of all kinds; hard links count once
	Bytes        int64          `json:"bytes"`           // sum of the files' sizes
	Created      time.Time      `json:"created"`         // to the second, UTC

	// Check is the digest of the manifest's canonical JSON without this field: it
	// finds damage in what the image's digest does not cover.
	Check store.Digest `json:"check"`
}

// BlobRef names a blob of the store.
type BlobRef struct {
	Digest store.Digest `json:"digest"`
	Size   int64        `json:"size"` // bytes
}

// TableRef names the blob of the chunk table.
type TableRef struct {
	Digest store.Digest `json:"digest"`
	Count  int64        `json:"count"` // of chunks
}

// Digest is the image's: that of the canonical JSON of version, config, meta and chunks.
func (m *Manifest) Digest() store.Digest {
	return store.Sum(canonical(struct {
		Version int      `json:"version"`
		Config  Config   `json:"config"`
		Meta    BlobRef  `json:"meta"`
		Chunks  TableRef `json:"chunks"`
	}{m.Version, m.Config, m.Meta, m.Chunks}))
}

// Encode gives the canonical JSON, with Check set.
func (m *Manifest) Encode() []byte {
	c := *m
	c.Created = m.Created.UTC().Truncate(time.Second)
	c.Packs = slices.Clone(m.Packs)
	slices.SortFunc(c.Packs, func(a, b store.Digest) int { return bytes.Compare(a[:], b[:]) })
	c.Packs = slices.Compact(c.Packs)
	c.Check = store.Digest{}
	c.Check = store.Sum(canonical(c))
	return append(canonical(c), '\n')
}

// ParseManifest reads what Encode wrote, byte for byte; anything else is of class
// fault.Corrupt.
func ParseManifest(b []byte) (*Manifest, error) {
	if len(b) > maxManifest {
		return nil, fault.New(fault.Corrupt, "a manifest of %d bytes is too long", len(b))
	}
	var version struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(b, &version); err != nil {
		return nil, fault.New(fault.Corrupt, "not a manifest: %v", err)
	}
	if version.Version != ManifestVersion {
		return nil, fault.New(fault.Corrupt, "manifest of version %d; this Brisk reads %d", version.Version, ManifestVersion)
	}
	var m Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fault.New(fault.Corrupt, "not a manifest: %v", err)
	}
	if !bytes.Equal(m.Encode(), b) {
		return nil, fault.New(fault.Corrupt, "the manifest is damaged: its check does not match")
	}
	if m.Meta.Size <= 0 || m.Meta.Size > erofs.MaxMetadata || m.Files <= 0 || m.Bytes < 0 || m.Chunks.Count < 0 || m.Chunks.Count > maxTableCount {
		return nil, fault.New(fault.Corrupt, "the manifest has sizes that cannot be")
	}
	return &m, nil
}

// canonical is JSON as encoding/json writes it for these types: fields in the
// order of their declaration, map keys sorted, no white space, no HTML escapes.
func canonical(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic("image: a manifest that JSON cannot hold: " + err.Error()) // no such type is in it
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// clean makes a Config one that JSON gives back as it is: OCI configurations may
// contain bytes that are not UTF-8.
func (c Config) clean() (out Config) {
	if err := json.Unmarshal(canonical(c), &out); err != nil {
		panic("image: a config that JSON cannot hold: " + err.Error())
	}
	return out
}

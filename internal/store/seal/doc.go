// Package seal is the cryptography of a store: it makes what leaves the process,
// for a bucket or for another machine, opaque to whoever lacks the workspace's
// key. It knows bytes, digests and names, and no store. docs/format/seal.md has
// the formats, docs/security.md says what they protect and what they do not.
//
// # One secret, one construction
//
// A workspace has one secret of 32 random bytes, in a file of the [Keyring].
// Every key is derived from it with BLAKE3's key derivation, under a context
// string of its own; there is no other state, so that machines with the same
// secret need not agree on anything.
//
// Whatever is sealed is sealed the same way: AES-256-GCM with a key of that
// content's or object's own and a nonce that is a MAC of the plaintext
// ([Keys.SealFrame], [Keys.SealObject], [Keys.SealName]). So sealing is
// deterministic, which is what deduplication and idempotent writing want, and
// equality is all that it gives away.
//
// # Why the nonce is a MAC
//
// A convergent key depends on the content alone, and it is tempting to use it
// with a constant nonce, since one key seals one content. But what is sealed is
// not the content: it is a zstd frame of it, and another version of the
// compressor, or the decision to store it plain, makes another frame of the same
// content. Two plaintexts under one key and nonce would give away their
// difference and the authentication key of GCM. With a nonce that depends on the
// frame, two frames have two nonces. It costs one keyed BLAKE3 of the frame and
// 12 bytes, and no random numbers.
//
// # Epochs
//
// The key of a frame depends also on an epoch, a number that is time in units of
// [EpochLength], as the salt in "On-demand Container Loading in AWS Lambda"
// (arXiv 2305.13162). Content is deduplicated within an epoch only, which bounds
// how much one lost or damaged chunk can take with it. Every epoch can be read
// for ever.
//
// All of it is safe for concurrent use and blocks on nothing, but for the
// Keyring, which reads and writes small files.
package seal

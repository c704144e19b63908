// Package fidelity holds images to what other tools make of them. An image is
// imported and mounted, and every file is compared with the same image as a
// reference unpacks it (umoci, of the Open Containers project), attribute by
// attribute: kind, mode, owner, time to the nanosecond, size, device number,
// target, hard links, extended attributes, content.
//
//   - TestNasty: images made by hand of what breaks importers.
//   - TestReal: images as people build them, of Debian packages (scripts/fidelity-images.sh
//     makes them once per machine with mmdebstrap and umoci).
//   - TestDirectories: random trees on a real filesystem, imported as directories.
//   - TestPOSIX: what system calls promise on a read-only filesystem, asked of a mount.
//
// Each is done on both kinds of mount: lazily, data coming through FUSE, and
// natively, straight from the slab.
//
// They need root. Each works in directories of its own.
package fidelity

// Package image is what an image is: a tree of files in chunks, its metadata as
// an EROFS filesystem, and a manifest that binds them. The glossary, in the order
// in which an image comes into being:
//
//   - A Tree is a root filesystem in memory. Importers build it, node by node
//     (Adder puts file contents into the store) or from a tar (Tree.ApplyTar), in
//     which whiteouts of lower layers count. Nothing in a tar is ever followed or
//     created outside the tree.
//   - The device is the order in which an image's distinct chunks lie behind one
//     another, each at a multiple of 4 KiB. The chunk table lists it. Blocks
//     reads the device: lazyfs exports it as the file that EROFS finds data in.
//   - The metadata is the tree as EROFS (package erofs), addressing the device.
//   - The Manifest names both by digest, with the Config. Its digest is the
//     image's: equal content has an equal digest, wherever it is packed.
//   - Images is the registry: per workspace manifests and the names that people gave
//     them, which are records of the workspace's store, so that all machines of one
//     origin have the same. docs/format/image.md has all formats.
//   - A Profile is what starts of one entry point on an image read, in order. It is
//     learnt from recordings (Blocks.Record) by Profiles, which also brings what it
//     lists before the next start asks for it, and writes hot packs of it.
//
// # What it promises
//
// Images.Write returns when the image survives a power loss, and until then no
// garbage collection takes what it has written. Everything local is a cache of the
// origin and is checked by digest whenever it is read from disk; what is damaged is
// fetched again if the origin has it, and is an error of class fault.Corrupt
// otherwise. While the origin does not answer, what is local is enough for whatever
// needs no more.
//
// # Who may block whom
//
// A Tree belongs to one goroutine at a time. Images, Image and Blocks are safe
// for concurrent use. Blocks.ReadAt blocks on the store only, and never holds a
// lock while it does; a Start (Profiles.Begin) works in the background and keeps
// nobody waiting; names and manifests change under one lock per registry,
// which is held over small local files and small reads and writes of the origin.
package image

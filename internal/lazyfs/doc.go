// Package lazyfs mounts images as root filesystems whose data arrives when it is
// read.
//
// # What is mounted
//
// An image is a piece of EROFS metadata, complete and small, and its data, which
// the metadata knows as an external device of so many blocks. The kernel mounts
// the metadata file itself, so lookups, stat, readdir, links and xattrs never
// leave it. The device is a file in a FUSE filesystem that this package serves:
//
//	RUN/fuse/ID     one flat directory, one read-only file per mounted image
//	RUN/images/ID   the EROFS mounts: what sandboxes use as their root
//
// A read at an offset of RUN/fuse/ID becomes one BlockReader.ReadAt. An image is
// mounted once, whatever number of sandboxes use it.
//
// An image whose data is all here, in a file, can be mounted over that file itself
// (Image.Device), at RUN/images/ID-PLACES: the same path, without FUSE and without
// this process. Both kinds of mount may be there at once; who uses the one is not
// moved to the other.
//
// # Who caches what
//
//   - Files' pages: the page cache of the EROFS mount, shared by all its users,
//     kept while the mount is. There is no second copy: EROFS reads the FUSE file
//     or the file with the data directly (O_DIRECT), and so do loop devices. An
//     image that is mounted both ways has its pages twice.
//   - Names and attributes of RUN/fuse: the kernel, for a day. They are functions
//     of an image's ID and never change.
//   - This package: nothing. Chunks are the BlockReader's affair.
//
// # What it promises
//
// A read gives the image's bytes or EIO: never zeros in their place, never fewer.
// A page that could not be read is not cached; the next reader asks again. For a
// native mount this is as true as what Mount was told: nobody compares what the
// disk gives with a digest, and a hole in the file reads as zeros. So whoever mounts
// natively has checked the data before, keeps it where it is, and scrubs it.
//
// Direct reads are part of that promise. EROFS over files, as released in Linux
// 6.12 and for long after, takes a short read for the end of the device and fills
// up with zeros; and a buffered read is short whenever its first page is there and
// the second cannot be read. A direct read of a FUSE file with FUSE_ASYNC_DIO fails
// as a whole if any of its parts does. A kernel that does not know the option gets
// loop devices, which retry what comes short.
//
// # What may block whom
//
//   - A reader waits for its chunk, at most Options.Deadline, unless it is killed.
//     Other signals wait with it: the failure of one read would reach everybody
//     who waits for the same page. A process that hangs in a page fault may also
//     hang those who look at its memory, ps among them.
//   - Reads do not wait for each other but for memory: a quarter of Options.Memory
//     per image, so that one whose origin hangs leaves room for others.
//   - Mount and Release wait for no data. Sweep, Close and the kernel's own
//     unmount may wait for reads ahead that are still in flight: up to Deadline for
//     Sweep; Close cancels them.
//   - A BlockReader must not read from the mounts: it would wait for itself. Nor
//     may anything in the server's process map a file of its own mounts, or
//     execute one: a goroutine in a page fault cannot be stopped, and with the
//     first garbage collection all others wait for it, the ones that would answer
//     included. Plain reads and stat are safe.
//
// # Death of the server
//
// The FUSE connection lives as long as somebody has its descriptor open. That is
// the holder: a tiny process (RunHolder), child of the first server, in its mount
// namespace but in a session of its own. After a kill -9 of the server, readers
// wait. The next server finds the mount namespace by HolderPID, joins it (package
// mountns), and Open gets the descriptor from holder.sock and has the kernel send
// again all requests that went unanswered. It learns which images there are from
// RUN/images, and what they consist of from Options.Lookup, at the first read.
// Recovered mounts have no hold (Mount.Release) on them; an image that is still
// mounted in some sandbox's own namespace is served until that is gone.
//
// If no server comes within Options.Linger, or after SIGTERM, the holder aborts the
// connection (readers get EIO), unmounts everything and ends. If the holder itself
// is killed, the server starts another and nobody notices.
//
// Native mounts need nobody. They are in the holder's namespace, and so known to
// the next server; without a holder they go with the last process that has them.
//
// Kernels before 6.9 cannot send requests again; there, and with Options.Compat,
// there is no holder: the connection ends with the server, reads give EIO, and
// the next server starts afresh. Kernels before 6.12 mount through loop devices,
// which clear themselves when the last user is gone.
//
// # Traps
//
//   - Nothing in the server's process may open a file of RUN/fuse but through apart:
//     it could not be killed while it waits for its own answer.
//   - Mounts are nosuid and nodev. A gVisor sandbox reads files through its
//     gofer and honours set-uid bits itself, so this costs its guests nothing.
//   - Everything below RUN is for root alone (0700).
//   - One FS per directory; whoever opens needs a lock of its own (the server's
//     is DATA/lock). A second Open waits for the first to go, and then says so.
package lazyfs

# What setup.sh fetches or builds, at which version. Sourced, not run.
# shellcheck shell=bash disable=SC2034

# Go. GO_MINIMUM is what go.mod and tools/runsc/go.mod ask for; GO_VERSION is
# what is fetched where that is missing. GO_SUM is, in hexadecimal, the h1: hash
# of golang.org/toolchain v0.0.1-goVERSION.linux-amd64 in the checksum database.
GO_MINIMUM=1.26.3
GO_VERSION=1.26.8
GO_SUM=64e9867b53a77d110330875bd508b81bd252b833c12c613164c4389e2b354573

# runsc: the source is pinned by tools/runsc/go.mod and go.sum. A snapshot
# restores only under the version that made it, so the name changes with the source.
RUNSC_VERSION=brisk-20260701.1

LINT_VERSION=v2.15.0

# The S3 server that the tests start.
VERSITYGW_VERSION=v1.8.0

# Debian's keys, as a package of Debian 12; KEYRING_SUM is the file's SHA-256.
# KEYRING_MINIMUM is the first that knows Debian 12.
KEYRING_MINIMUM=2023
KEYRING_VERSION=2023.3+deb12u2
KEYRING_SUM=f699e2f88dca05212f2a452b58475f2993cb6993dfbafb1d0205a3291eb8b4b8

# Debian packages. mmdebstrap builds base images and gpgv checks what it fetches,
# python3 runs the SDK, kmod loads modules; the tests check metadata with
# erofs-utils, fill small filesystems made by e2fsprogs, compare with umoci, build with buildah, and need a C compiler for
# the race detector.
RUN_PACKAGES=(ca-certificates curl debian-archive-keyring gpgv kmod mmdebstrap mount python3 util-linux)
TEST_PACKAGES=(e2fsprogs erofs-utils gcc libc6-dev python3-venv umoci buildah)

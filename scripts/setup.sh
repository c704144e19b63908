#!/usr/bin/env bash
# setup.sh PART...: makes this machine able to build, run or test Brisk. It
# installs only what is missing; when nothing is, it takes a fraction of a second.
#
# Parts:
#   build    a Go that is new enough
#   runsc    the pinned runsc, as bin/runsc
#   run      what `make run` needs: root, kernel features, packages, build, runsc
#   test     what `make test` needs: all of run, a C compiler, a Python environment, versitygw
#   s3       the pinned versitygw, an S3 server for tests and benchmarks
#   lint     the pinned golangci-lint
#
# What it fetches or builds lies in the cache, named by version, so that other
# clones find it: $BRISK_CACHE, else /var/cache/brisk for root, else
# ~/.cache/brisk. Links to it are put into .cache/bin, which the Makefile puts in
# front of PATH. Nothing else on the machine is changed, but for Debian packages.
#
# Exit status: 0, or 6 when the machine lacks something; the last line then says
# what to do.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/pins.sh
. scripts/say.sh

if [ -z "${HOME:-}" ]; then HOME=$(getent passwd "$(id -u)" | cut -d: -f6); export HOME; fi
if [ "$(id -u)" = 0 ]; then CACHE=${BRISK_CACHE:-/var/cache/brisk}; else CACHE=${BRISK_CACHE:-$HOME/.cache/brisk}; fi
BIN=.cache/bin
mkdir -p "$BIN" bin
PATH=$PWD/$BIN:$PATH

# --- the machine -----------------------------------------------------------

need_x86() {
  [ "$(uname -s) $(uname -m)" = "Linux x86_64" ] ||
    lacks "this is $(uname -s) on $(uname -m), and Brisk runs on Linux on x86-64 only so far" "use such a machine."
}

need_root() {
  [ "$(id -u)" = 0 ] || lacks "this needs root (namespaces, mounts, cgroups)" "run it again as root: sudo make $MAKE_GOAL"
}

# filesystem NAME KCONFIG: loads the module if it is not there yet.
filesystem() {
  grep -qw "$1" /proc/filesystems && return
  modprobe -q "$1" 2>/dev/null || true
  grep -qw "$1" /proc/filesystems ||
    lacks "the running kernel $(uname -r) has no $1 filesystem" \
      "boot a distribution's kernel ($2=m or y); on Ubuntu: apt-get install linux-modules-extra-$(uname -r)"
}

need_kernel() {
  local major minor
  IFS=.- read -r major minor _ < <(uname -r)
  [ $((major * 1000 + minor)) -ge 5016 ] ||
    lacks "the running kernel is $(uname -r), and Brisk needs 5.16 or newer" "boot a newer one; on Ubuntu 22.04: apt-get install linux-generic-hwe-22.04, and reboot."
  filesystem erofs CONFIG_EROFS_FS
  filesystem fuse CONFIG_FUSE_FS
  [ -c /dev/fuse ] || lacks "there is no /dev/fuse" "in a container, pass it in (--device /dev/fuse); else: modprobe fuse"
}

# packages NAME...: installs the Debian packages that are missing.
packages() {
  local missing=() name
  { command -v dpkg-query && command -v apt-get; } >/dev/null ||
    lacks "this is not Debian or Ubuntu, and setup knows no other distribution" "install these yourself, or use Debian 12, Ubuntu 22.04 or later: $*"
  local installed
  installed=" $(dpkg-query -W -f '${db:Status-Status}:${Package} ' "$@" 2>/dev/null || true)"
  for name; do
    case $installed in *" installed:$name "*) ;; *) missing+=("$name") ;; esac
  done
  [ ${#missing[@]} = 0 ] && return
  need_root
  say "installing with apt-get: ${missing[*]}"
  apt_install "${missing[@]}" && return
  say "once more, with fresh package lists"
  apt-get -q -o DPkg::Lock::Timeout=120 update </dev/null >"$LOG" 2>&1 || true
  apt_install "${missing[@]}" && return
  tail -n 5 "$LOG" >&2
  lacks "apt-get could not install ${missing[*]}" "see the lines above; with a network that works, this does it: apt-get update && apt-get install ${missing[*]}"
}

apt_install() {
  DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120 install --no-install-recommends "$@" </dev/null >"$LOG" 2>&1
}

# debian_keys: Ubuntu 22.04's keyring is older than Debian 12 and cannot check it.
debian_keys() {
  local have deb=debian-archive-keyring_${KEYRING_VERSION}_all.deb
  have=$(dpkg-query -W -f '${Version}' debian-archive-keyring)
  dpkg --compare-versions "$have" ge "$KEYRING_MINIMUM" && return
  say "debian-archive-keyring $have is older than Debian 12: installing $KEYRING_VERSION from Debian"
  scratch "$CACHE/keyring"
  {
    curl -fsSL --retry 3 --connect-timeout 30 -o "$SCRATCH/$deb" "http://deb.debian.org/debian/pool/main/d/debian-archive-keyring/$deb" &&
      echo "$KEYRING_SUM  $SCRATCH/$deb" | sha256sum --quiet -c - &&
      dpkg -i "$SCRATCH/$deb" </dev/null >"$LOG" 2>&1
  } ||
    lacks "Debian's keys could not be installed" "install debian-archive-keyring $KEYRING_MINIMUM or newer yourself (from packages.debian.org), and run this again."
  rm -rf "$SCRATCH"
}

# --- Go --------------------------------------------------------------------

# new_enough GO: whether that go itself, not one that it would fetch, is at least GO_MINIMUM.
new_enough() {
  local version
  version=$(GOTOOLCHAIN=local GOFLAGS='' "$1" env GOVERSION 2>/dev/null) || return 1
  version=${version%% *}
  version=${version#go}
  [ "$(printf '%s\n' "$GO_MINIMUM" "$version" | sort -V | head -n 1)" = "$GO_MINIMUM" ]
}

need_go() {
  local go home=$CACHE/go/$GO_VERSION
  go=$(command -v go || true) # .cache/bin's, after the first time
  if [ -n "$go" ] && new_enough "$go"; then
    link "$go" go
    [ -x "$(dirname "$go")/gofmt" ] && link "$(dirname "$go")/gofmt" gofmt
    return
  fi
  if [ ! -x "$home/bin/go" ]; then
    if [ -n "$go" ]; then say "the installed Go ($go) is older than $GO_MINIMUM"; else say "no Go is installed"; fi
    fetch_go "$home"
  fi
  link "$home/bin/go" go
  link "$home/bin/gofmt" gofmt
}

# fetch_go HOME: the toolchain as the Go module proxy gives it, checked against
# its entry in the checksum database (a hash over the hashes of all its files).
fetch_go() {
  local home=$1 proxy url sum name=golang.org/toolchain@v0.0.1-go$GO_VERSION.linux-amd64
  packages ca-certificates curl unzip
  proxy=$(printf %s "${GOPROXY:-}" | tr ',|' '\n' | grep -m 1 '^https\?:' || echo https://proxy.golang.org)
  url=${proxy%/}/golang.org/toolchain/@v/${name#*@}.zip
  say "fetching Go $GO_VERSION (70 MB) from $proxy"
  scratch "$home"
  curl -fsSL --retry 3 --connect-timeout 30 -o "$SCRATCH/go.zip" "$url" ||
    lacks "Go $GO_VERSION could not be fetched from $url" "mend the network or the proxy settings (https_proxy, GOPROXY), or install Go $GO_MINIMUM or newer from https://go.dev/dl and run this again."
  unzip -q "$SCRATCH/go.zip" -d "$SCRATCH/tree"
  sum=$(cd "$SCRATCH/tree" && find . -type f -printf '%P\0' | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d' ' -f1)
  [ "$sum" = "$GO_SUM" ] ||
    lacks "what $proxy gave as Go $GO_VERSION has another checksum ($sum) than the one in scripts/pins.sh" "do not use it; find out what stands between this machine and proxy.golang.org."
  chmod -R a+rX "$SCRATCH/tree/$name"
  chmod a+x "$SCRATCH/tree/$name"/bin/* "$SCRATCH/tree/$name"/pkg/tool/*/*
  publish "$SCRATCH/tree/$name" "$home"
}

# --- things built from source ------------------------------------------------

need_runsc() {
  local home=$CACHE/runsc/$RUNSC_VERSION began=$SECONDS
  if [ ! -x "$home/runsc" ]; then
    need_go
    say "building runsc $RUNSC_VERSION (gVisor): some minutes of work, once for this machine"
    scratch "$home"
    fetch_modules tools/runsc
    job "building runsc" scripts/build-runsc.sh "$SCRATCH" || lacks "runsc could not be built" "see the lines above, then run this again."
    publish "$SCRATCH/out" "$home"
    say "runsc is built ($((SECONDS - began)) s)"
  fi
  [ bin/runsc -ef "$home/runsc" ] || ln -sfn "$home/runsc" bin/runsc
}

need_lint() { need_tool golangci-lint "$LINT_VERSION" github.com/golangci/golangci-lint/v2/cmd/golangci-lint; }
need_s3() { need_tool versitygw "$VERSITYGW_VERSION" github.com/versity/versitygw/cmd/versitygw; }

# need_tool NAME VERSION PACKAGE: a program that go install makes, as NAME.
need_tool() {
  local name=$1 home=$CACHE/$1/$2
  if [ ! -x "$home/$name" ]; then
    need_go
    say "building $name $2: some minutes of work, once for this machine"
    scratch "$home"
    job "building $name" env CGO_ENABLED=0 GOBIN="$SCRATCH/out" go install -ldflags "-s -w" "$3@$2" ||
      lacks "$name could not be built" "see the lines above, then run this again."
    publish "$SCRATCH/out" "$home"
  fi
  link "$home/$name" "$name"
}

# fetch_modules DIR: before a build, so that a missing network has its own message.
fetch_modules() {
  (cd "$1" && go mod download) ||
    lacks "Go modules could not be fetched" "mend the network or the proxy settings (https_proxy, GOPROXY), and run this again."
}

# --- Python ------------------------------------------------------------------

need_python() {
  local want=sdk/python/requirements-dev.txt venv=.cache/venv
  cmp -s "$want" "$venv/brisk-requirements" && [ -x "$venv/bin/python" ] && return
  say "making a Python environment for the tests in $venv"
  rm -rf "$venv"
  /usr/bin/python3 -m venv "$venv" ||
    lacks "a Python environment could not be made in $venv" "apt-get install --reinstall python3-venv, and run this again."
  "$venv/bin/python" -m pip install -q --disable-pip-version-check -r "$want" </dev/null ||
    lacks "pip could not install what $want lists" "mend the network or pip's configuration, and run this again."
  cp "$want" "$venv/brisk-requirements"
}

# --- small parts ---------------------------------------------------------------

# scratch HOME: $SCRATCH is a new directory beside HOME, for publish to rename from.
scratch() { mkdir -p "$(dirname "$1")" && SCRATCH=$(mktemp -d "$1.tmp.XXXXXX"); }

# publish DIR HOME: DIR becomes HOME in one step; if another setup was quicker, its result stays.
publish() {
  sync -f "$1"
  mv -T "$1" "$2" 2>/dev/null || [ -d "$2" ] || lacks "$2 could not be written" "see to the disk."
  rm -rf "$SCRATCH"
}

# link TARGET NAME: .cache/bin/NAME leads to TARGET.
link() { [ "$BIN/$2" -ef "$1" ] || ln -sfn "$(realpath "$1")" "$BIN/$2"; }

# A job is a process group of its own, which Ctrl-C does not reach.
finish() {
  [ -z "$JOB" ] || kill -- "-$JOB" 2>/dev/null || true
  rm -rf "$LOG" "$SCRATCH"
}
LOG=$(mktemp) SCRATCH='' JOB=''
trap finish EXIT
trap 'exit 130' INT TERM
MAKE_GOAL=${MAKE_GOAL:-$1}

for part; do
  case $part in
    build) need_x86; need_go ;;
    runsc) need_x86; need_runsc ;;
    lint) need_x86; need_lint ;;
    s3) need_x86; need_s3 ;;
    run) need_x86; need_root; need_kernel; packages "${RUN_PACKAGES[@]}"; debian_keys; need_go; need_runsc ;;
    test) need_x86; need_root; need_kernel; packages "${RUN_PACKAGES[@]}" "${TEST_PACKAGES[@]}"; debian_keys; need_go; need_runsc; need_s3; need_python ;;
    *) echo "setup: there is no part $part" >&2; exit 2 ;;
  esac
done

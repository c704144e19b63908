#!/usr/bin/env bash
# fidelity-images.sh: prints the path of an OCI layout with images as people build
# them, one tag each, and makes it if it is not there (some minutes, once per
# machine). mmdebstrap makes the base; packages are installed in a chroot, and
# umoci turns what that changed into a layer, whiteouts included.
#
# It is named by what it follows from, this script. Needs root and a Debian mirror.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/say.sh

# tag: packages. All but the first two are layers on "debian".
images=(
  "debian:"
  "trixie:"
  "python:python3-numpy python3-requests"
  "node:nodejs"
  "nginx:nginx-light"
  "redis:redis-server"
  "postgres:postgresql-15"
  "git:git openssh-client"
  "ruby:ruby"
  "php:php-cli"
  "setuid:sudo iputils-ping passwd libcap2-bin" # set-uid programs, file capabilities
  "locale:locales tzdata"
)

home=${XDG_CACHE_HOME:-$HOME/.cache}/brisk/fidelity
at=$home/$(sha256sum <"${BASH_SOURCE[0]}" | cut -c1-16)
mkdir -p "$home"
exec 9>"$home/lock"
flock 9 # of several at once, one builds
if [ ! -d "$at" ]; then
  work=$(mktemp -d "$home/.new-XXXXXX")
  finish() {
    umount -l "$work"/*/rootfs/proc 2>/dev/null || true
    rm -rf "$work"
  }
  trap finish EXIT
  umoci init --layout "$work/layout"

  # layer TAG: what the bundle holds now becomes the tag's next layer.
  layer() { umoci repack --no-history --refresh-bundle --image "$work/layout:$1" "$work/$1"; }

  # bundle TAG [FROM]: the image TAG, empty or equal to FROM, unpacked.
  bundle() {
    if [ -n "${2:-}" ]; then umoci tag --image "$work/layout:$2" "$1"; else umoci new --image "$work/layout:$1"; fi
    umoci unpack --image "$work/layout:$1" "$work/$1"
  }

  for image in "${images[@]}"; do
    tag=${image%%:*} packages=${image#*:}
    say "making the test image $tag"
    {
      case $tag in
        debian | trixie)
          suite=bookworm
          [ "$tag" = debian ] || suite=$tag
          bundle "$tag"
          mmdebstrap -q --variant=minbase --aptopt='APT::Sandbox::User "root"' "$suite" - | tar -x --numeric-owner --xattrs --xattrs-include='*' -C "$work/$tag/rootfs"
          ;;
        *)
          bundle "$tag" debian
          root=$work/$tag/rootfs
          cp /etc/resolv.conf "$root/etc/resolv.conf"
          printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d" # no services
          chmod +x "$root/usr/sbin/policy-rc.d"
          mount -t proc proc "$root/proc"
          # shellcheck disable=SC2086
          DEBIAN_FRONTEND=noninteractive LC_ALL=C chroot "$root" sh -c 'apt-get -q update && apt-get -q -y install --no-install-recommends "$@"' sh $packages
          umount "$root/proc"
          layer "$tag"
          # As Dockerfiles do, too late: a layer of whiteouts.
          rm -rf "$root"/var/lib/apt/lists/* "$root"/usr/share/doc/* "$root"/var/cache/apt "$root/usr/sbin/policy-rc.d"
          ;;
      esac
      layer "$tag"
      [ "$tag" = debian ] || rm -rf "${work:?}/$tag"
    } >"$work/log" 2>&1 </dev/null || {
      tail -n 20 "$work/log" >&2
      exit 1
    }
  done
  umoci gc --layout "$work/layout"
  mv -T "$work/layout" "$at"
  find "$home" -mindepth 1 -maxdepth 1 -type d ! -path "$at" ! -path "$work" -mtime +2 -exec rm -rf {} + # of scripts of the past
fi
touch "$at"
printf '%s\n' "$at"

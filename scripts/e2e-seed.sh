#!/usr/bin/env bash
# e2e-seed.sh: prints the directory of the end-to-end tests' seed, and makes it if
# it is not there: a data directory that holds the image brisk.Image.debian_slim()
# as Brisk itself has built it (which takes 40 s), and nothing else. It is named by
# what it follows from, the builder and the formats, and is shared: use a copy
# (cp -a --reflink=auto).
#
# $BRISK_E2E_SEED names one that is to be used instead; $BRISK_BIN is the brisk that
# builds (default bin/brisk). Needs root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ -n "${BRISK_E2E_SEED:-}" ]; then
  printf '%s\n' "$BRISK_E2E_SEED"
  exit
fi
brisk=$(realpath "${BRISK_BIN:-bin/brisk}")
inputs=$(find internal/image/build docs/format \( -name '*.go' ! -name '*_test.go' -o -name '*.md' \) -print0 | LC_ALL=C sort -z | xargs -0 cat | sha256sum)
home=${XDG_CACHE_HOME:-$HOME/.cache}/brisk/e2e
seed=$home/${inputs:0:16}

mkdir -p "$home"
exec 9>"$home/lock"
flock 9 # of several at once, one builds
if [ ! -d "$seed" ]; then
  work=$(mktemp -d "$home/.new-XXXXXX")
  finish() {
    "$brisk" down --data "$work/data" 9>&- || true
    rm -rf "$work"
  }
  trap finish EXIT
  cat >"$work/seed.py" <<'PYTHON'
import brisk

app = brisk.App("seed")


@app.function(block_network=True, enable_memory_snapshot=False)
def nothing() -> None:
    pass
PYTHON
  # The server must not inherit the lock.
  "$brisk" run --data "$work/data" "$work/seed.py" >&2 9>&-
  "$brisk" down --data "$work/data" 9>&-
  (cd "$work/data" && rm -rf blobs calls code functions log scratch sdk snapshots)
  mv -T "$work/data" "$seed"
  find "$home" -mindepth 1 -maxdepth 1 -type d -mtime +2 -exec rm -rf {} + # of builders of the past
fi
touch "$seed"
printf '%s\n' "$seed"

#!/usr/bin/env bash
# run.sh: what `make run` shows: Brisk is started on a data directory of its own,
# builds an image, runs the examples cold, restored and warm, prints what that
# took, and is gone at the end, whatever happened.
#
# $BRISK_DATA names the data directory (default .cache/run, which is kept, so that
# the second time builds no image).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/say.sh

BRISK_DATA=$(realpath -m "${BRISK_DATA:-.cache/run}")
export BRISK_DATA
mkdir -p "$BRISK_DATA"

# The server of an earlier run that was killed may be an older build.
bin/brisk down --data "$BRISK_DATA" >/dev/null 2>&1 || true

finish() {
  local status=$?
  trap '' INT TERM
  bin/brisk down --data "$BRISK_DATA" >&2 || status=$?
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM

say "data directory: $BRISK_DATA (kept; delete it to start over)"
found=$(bin/brisk doctor --data "$BRISK_DATA") || { printf '%s\n' "$found" >&2; lacks "this machine cannot run Brisk yet" "do what the lines above say, and run this again."; }
say "examples/hello.py"
bin/brisk run --data "$BRISK_DATA" examples/hello.py
say "examples/stats.py"
bin/brisk run --data "$BRISK_DATA" examples/stats.py
go run ./bench/demo -data "$BRISK_DATA"

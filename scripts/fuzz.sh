#!/usr/bin/env bash
# fuzz.sh TIME [PATTERN]: runs each fuzz test whose name matches, for TIME each
# (as in go test -fuzztime). A failing input is left in the package's testdata, and
# so are the smallest of those that reached new code: all runs of the tests try them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/say.sh

# keep PACKAGE NAME: up to 16 inputs of at most 4 KiB.
keep() {
  local found kept=$1/testdata/fuzz/$2
  found=$(go env GOCACHE)/fuzz/$(go list "$1")/$2
  [ -d "$found" ] || return 0
  mkdir -p "$kept"
  find "$found" -type f -size -9 -printf '%s %p\n' | sort -n | cut -d ' ' -f 2 | while read -r input; do
    [ "$(find "$kept" -type f | wc -l)" -lt 16 ] || break
    [ -e "$kept/${input##*/}" ] || cp "$input" "$kept/"
  done
}

grep -roP --include='*_test.go' '^func \KFuzz\w+' internal | sort | grep -E ":${2:-}" | while IFS=: read -r file name; do
  package=./$(dirname "$file")
  say "$name in $package, $1"
  go test -run '^$' -fuzz "^$name\$" -fuzztime "$1" "$package" </dev/null
  keep "$package" "$name"
done

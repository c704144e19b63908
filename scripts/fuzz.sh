#!/usr/bin/env bash
# fuzz.sh TIME [PATTERN]: runs each fuzz test whose name matches, for TIME each
# (as in go test -fuzztime). A failing input is left in the package's testdata.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/say.sh

grep -roP --include='*_test.go' '^func \KFuzz\w+' internal | sort | grep -E ":${2:-}" | while IFS=: read -r file name; do
  package=./$(dirname "$file")
  say "$name in $package, $1"
  go test -run '^$' -fuzz "^$name\$" -fuzztime "$1" "$package" </dev/null
done

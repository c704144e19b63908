#!/usr/bin/env bash
# test.sh [STAGE...]: runs the stages that are named, or all, one after another,
# to the end even if one fails, and ends with the sum.
#
#   lint      golangci-lint, with formatting
#   go        the Go tests, with the race detector; those that try many cases in
#             order (rapid, crashes, damage) try few with it, and all without
#   fidelity  images against what other tools make of them
#   python    the SDK: ruff, mypy, pytest
#   e2e       the built bin/brisk from outside: Go's and the SDK's end-to-end tests
#
# What is needed has been put there by setup.sh. Exit status: 0, or 1 when
# something failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
. scripts/say.sh
PATH=$PWD/.cache/bin:$PATH
export BRISK_BIN=$PWD/bin/brisk BRISK_RUNSC=$PWD/bin/runsc BRISK_VERSITYGW=$PWD/.cache/bin/versitygw

WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'exit 130' INT TERM
: >"$WORK/tally"
failed=() began=$SECONDS

summary() { "$WORK/testsummary" "$@"; }

# go_test NAME ARGS...: go test with a readable report.
go_test() { summary go -tally "$WORK/tally" "$@"; }

# check NAME COMMAND...: runs a check that is silent when all is well.
check() {
  local name=$1 at=$SECONDS
  shift
  "$@" || return
  echo "$name: ok ($((SECONDS - at)) s)"
}

# py NAME ARGS...: pytest with a readable report. Its status 5 is "no tests".
py() {
  local name=$1 status=0
  shift
  (cd sdk/python && ../../.cache/venv/bin/python -m pytest -q -p no:cacheprovider --no-header --junitxml="$WORK/report.xml" "$@") || status=$?
  [ "$status" = 5 ] && status=0
  summary junit -tally "$WORK/tally" "$name" "$WORK/report.xml" && [ "$status" = 0 ]
}

stage_lint() {
  check "golangci-lint" golangci-lint run ./...
}

stage_go() {
  local packages thorough status=0
  mapfile -t packages < <(go list ./... | grep -v '/test/')
  # They wait for the disk and for sandboxes more than for a processor.
  go_test "go, race detector" -race -short -p $((2 * $(nproc))) -timeout 15m "${packages[@]}" || status=1
  mapfile -t thorough < <(grep -rlE --include='*_test.go' 'rapid\.Check\(|testing\.Short\(\)' cmd internal bench | xargs -n1 dirname | sort -u)
  go_test "go, every case" -timeout 15m "${thorough[@]/#/./}" || status=1
  return "$status"
}

stage_fidelity() {
  local images
  images=$(scripts/fidelity-images.sh) || return
  BRISK_FIDELITY_IMAGES=$images go_test "fidelity" -count=1 -timeout 15m ./test/fidelity
}

stage_python() {
  local venv=$PWD/.cache/venv/bin status=0
  (cd sdk/python && check ruff "$venv/ruff" check -q --no-cache . && check mypy "$venv/mypy" --no-error-summary --cache-dir ../../.cache/mypy) || status=1
  py "python" || status=1
  return "$status"
}

stage_e2e() {
  local status=0
  BRISK_E2E_SEED=$(scripts/e2e-seed.sh) || return # both start with an image that is built
  export BRISK_E2E_SEED
  go_test "end to end" -count=1 -timeout 20m ./test/e2e || status=1
  # Once more what depends on how images are mounted, but for what tries both by itself.
  BRISK_COMPAT=1 go_test "end to end, older kernels" -count=1 -timeout 20m \
    -run '^Test(Builds?Of|Container|Damaged|DiskFullDuring|FunctionFiles|FunctionNetwork|FunctionsOn|Images|KillOf|Large|Removed|Shutdown|Snapshot)' \
    -skip '^TestKillOf(TheServerAtAnyMoment|TheHolder|TheServerOnOlderKernels|TheUsersPython)$' ./test/e2e || status=1
  go_test "cluster" -count=1 -timeout 10m ./test/cluster || status=1
  py "python, end to end" -m e2e || status=1
  return "$status"
}

go build -o "$WORK/testsummary" ./internal/tools/testsummary || exit 1
[ $# -gt 0 ] || set -- lint go fidelity python e2e
for stage; do
  say "$stage"
  "stage_$stage" || failed+=("$stage")
done

printf '\n'
total=$(summary total "$WORK/tally")
printf '%s (%d s)\n' "$total" $((SECONDS - began))
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}; one alone: make test-${failed[0]}"
  exit 1
fi

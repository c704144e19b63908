# How the scripts talk: progress and diagnostics to stderr, one line each.
# Sourced, not run.
# shellcheck shell=bash disable=SC2034

SAY=$(basename "$0" .sh)

say() { printf '%s: %s\n' "$SAY" "$*" >&2; }

# lacks WHAT FIX: ends the script because the machine lacks something.
lacks() {
  printf '%s: %s; %s\n' "$SAY" "$1" "$2" >&2
  exit 6
}

# job WHAT PROGRAM...: runs a program with a sign of life, every second on a
# terminal, every 30 seconds elsewhere, in place of its output, whose end is shown
# if it fails. $JOB is its process group meanwhile; $LOG is a file for the output.
job() {
  local what=$1 began=$SECONDS every=30 status=0
  shift
  [ -t 2 ] && every=1
  set -m
  "$@" </dev/null >"$LOG" 2>&1 &
  JOB=$!
  set +m
  while kill -0 "$JOB" 2>/dev/null; do
    sleep 1
    [ $(((SECONDS - began) % every)) = 0 ] || continue
    if [ -t 2 ]; then printf '\r%s: %s, %d s ' "$SAY" "$what" $((SECONDS - began)) >&2; else say "$what, $((SECONDS - began)) s"; fi
  done
  [ -t 2 ] && printf '\r\033[K' >&2
  wait "$JOB" || status=$?
  [ "$status" = 0 ] || tail -n 20 "$LOG" >&2
  JOB=''
  return "$status"
}

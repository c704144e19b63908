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

# wait_for PID WHAT: waits for a background job of this shell, with a sign of
# life: every second on a terminal, every 30 seconds elsewhere. $JOB is its PID
# meanwhile.
wait_for() {
  local began=$SECONDS every=30 status=0
  JOB=$1
  [ -t 2 ] && every=1
  while kill -0 "$1" 2>/dev/null; do
    sleep 1
    if [ $(((SECONDS - began) % every)) = 0 ]; then
      if [ -t 2 ]; then printf '\r%s: %s, %d s ' "$SAY" "$2" $((SECONDS - began)) >&2; else say "$2, $((SECONDS - began)) s"; fi
    fi
  done
  [ -t 2 ] && printf '\r\033[K' >&2
  wait "$1" || status=$?
  JOB=''
  return "$status"
}

#!/usr/bin/env bash
# build-runsc.sh DIR: builds runsc as DIR/out/runsc, for setup.sh. The source is
# what tools/runsc/go.mod and go.sum pin, in a copy into which gVisor's seccomp
# filter is put ready-made (see tools/runsc/precompile).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/pins.sh
export CGO_ENABLED=0

cd tools/runsc
cp -r "$(go list -m -f '{{.Dir}}' gvisor.dev/gvisor)" "$1/gvisor"
chmod -R u+w "$1/gvisor"
cp -r go.mod go.sum precompile "$1"
cd "$1"
go mod edit -replace gvisor.dev/gvisor=./gvisor

go run -trimpath ./precompile >filter.go
mv filter.go gvisor/runsc/boot/filter/filter_precompiled.go
go build -buildvcs=false -trimpath -o out/runsc \
  -ldflags "-s -w -X gvisor.dev/gvisor/runsc/version.version=$RUNSC_VERSION" gvisor.dev/gvisor/runsc

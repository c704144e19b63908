# Brisk. `make` alone lists the targets; each line of help is the comment behind
# a target's name. scripts/setup.sh installs what a target needs and the machine
# lacks.

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
SHELL := /bin/bash
export PATH := $(CURDIR)/.cache/bin:$(PATH)
export MAKE_GOAL := $(firstword $(MAKECMDGOALS))

# The machine's own checkout may belong to somebody else than who builds, so the
# version is asked for here, where that is no error, and not by go build.
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
SETUP := scripts/setup.sh

.PHONY: help
help:
	@awk 'BEGIN { FS = ":.*## " } /^# == / { printf "%s%s\n", gap, substr($$0, 6); gap = "\n" } /^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

# == For everybody

.PHONY: run
run: setup-run brisk ## install what is missing, start Brisk, run the examples, print what that took (root)
	@scripts/run.sh

.PHONY: test
test: setup-test setup-lint brisk ## all checks and tests, with a summary (root)
	@scripts/test.sh

.PHONY: build
build: setup-build brisk ## leave bin/brisk

# == For working on it

.PHONY: lint
lint: setup-lint setup-build ## formatting, golangci-lint
	@scripts/test.sh lint

.PHONY: test-race test-go
test-go: test-race
test-race: setup-test ## the Go tests, with the race detector (root)
	@scripts/test.sh go

.PHONY: test-fidelity
test-fidelity: setup-test ## images against what umoci, tar and the kernel make of them (root)
	@scripts/test.sh fidelity

.PHONY: test-python
test-python: setup-test ## the SDK: ruff, mypy, pytest
	@scripts/test.sh python

.PHONY: test-e2e
test-e2e: setup-test brisk ## the end-to-end tests (root)
	@scripts/test.sh e2e

.PHONY: test-lint
test-lint: lint

.PHONY: fmt
fmt: setup-lint ## format the Go code
	@golangci-lint fmt

.PHONY: fuzz
fuzz: setup-build ## fuzz each decoder for FUZZTIME (default 10s)
	@scripts/fuzz.sh $(or $(FUZZTIME),10s)

.PHONY: bench-cold
bench-cold: setup-run brisk ## measure cold starts against bare runsc; writes bench/results/cold.json (root)
	@go run ./bench/cold

.PHONY: bench-images
bench-images: setup-run brisk ## measure images against extracted files and tar; writes bench/results/images.json (root)
	@go run ./bench/images

.PHONY: runsc
runsc: ## leave the pinned runsc in bin/runsc (two minutes, once)
	@$(SETUP) runsc

.PHONY: doctor
doctor: brisk ## what this machine lacks for Brisk, if anything
	@bin/brisk doctor

.PHONY: clean
clean: ## delete what was built here; the machine's cache of Go, runsc and linters stays
	rm -rf bin .cache

# Parts of the above

.PHONY: brisk
brisk: setup-build
	@go build -buildvcs=false -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/brisk ./cmd/brisk

.PHONY: setup-build setup-run setup-test setup-lint
setup-build setup-run setup-test setup-lint: setup-%:
	@$(SETUP) $*

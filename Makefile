# make help lists what there is. Only Go modules and Debian packages are ever downloaded.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Narrow the tests: make test PKG=./publisher/... RUN=TestDo
PKG ?= ./...
RUN ?=
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

.PHONY: help
help: ## list these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | while IFS=$$'\t' read -r t d; do printf '  make %-15s %s\n' "$$t" "$$d"; done

.PHONY: build
build: ## build bin/retry-consumer
	@scripts/need-go
	go build -trimpath -ldflags "-X main.version=$(VERSION)" -o bin/retry-consumer ./cmd/retry-consumer

.PHONY: test
test: ## run the tests against real servers, with the race detector (PKG=./publisher/... RUN=TestDo narrow them)
	@PKG='$(PKG)' RUN='$(RUN)' scripts/test

.PHONY: lint
lint: ## gofmt, vet, staticcheck, the bans of retry/, the direction of imports
	@scripts/lint

.PHONY: demo
demo: build ## start the servers and run the pipeline for real, with a downstream that misbehaves and a consumer killed
	@scripts/services up
	@env=$$(scripts/services env); eval "$$env"; exec bin/retry-consumer demo

.PHONY: chaos
chaos: ## run the pipeline under faults and check what was promised (CHAOS_SECONDS=60 CHAOS_SEED=... CHAOS_FLAGS=-v)
	@scripts/chaos

.PHONY: chaos-broken
chaos-broken: ## the same on a build without fencing, which must be found out
	@scripts/chaos --broken

.PHONY: services-up
services-up: ## start RabbitMQ and Postgres for development; twice is harmless
	@scripts/services up

.PHONY: services-down
services-down: ## stop them; their data stays (scripts/services down --purge deletes it)
	@scripts/services down

.PHONY: fmt
fmt: ## format all Go files
	@scripts/need-go
	@git ls-files --cached --others --exclude-standard --deduplicate -- '*.go' | while read -r f; do if [[ -f $$f ]]; then echo "$$f"; fi; done | xargs -r gofmt -w

.PHONY: clean
clean: ## delete what was built; the servers and their data stay
	rm -rf bin coverage.out

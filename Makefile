# `make` lists the targets. Nothing needs make: the commands below are what CI and people type.

.DEFAULT_GOAL := help
.PHONY: help build test short race lint generate wasm guest kernel verify-kernel busybox disk bench fuzz ci clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r target text; do printf '  %-14s %s\n' "$$target" "$$text"; done

build: ## the program, ./agentvm
	CGO_ENABLED=0 go build -trimpath -o agentvm ./cmd/agentvm

test: ## all tests; boots machines
	go test ./...

short: ## the tests that boot no machine
	go test -short ./...

race: ## the host packages under the race detector
	.ci/run race

lint: ## format, vet on every system, staticcheck
	.ci/run format vet lint

generate: ## instruction tables and RPC code, from instructions.tbl and agentvm.capnp (needs capnproto)
	go run ./scripts/isagen
	rpc/generate.sh

wasm: ## emulator/machine.wasm and machine.json (needs clang-19, lld-19)
	emulator/build.sh

guest: ## the supervisor and its manifest (needs zstd)
	guest/build.sh

kernel: ## the guest's kernel from Debian's source package, about ten minutes (tools: kernel/build.sh)
	kernel/build.sh

verify-kernel: ## build the kernel again and compare it with the committed one
	kernel/verify.sh

busybox: ## the built-in root from Debian's busybox-static (needs apt)
	images/busybox/build.sh

disk: ## the empty file system of named machines (needs e2fsprogs, zstd)
	disk/build.sh

bench: ## the figures of docs/specification.md, with QEMU beside them (tools: integration/bench)
	go run ./integration/bench
	go test -run '^$$' -bench '^(BenchmarkLink|BenchmarkTCP|BenchmarkReplyCached|BenchmarkAppend)' ./netstack ./nat ./dns ./journal

fuzz: ## every fuzz target for FUZZTIME each
	FUZZTIME=$${FUZZTIME:-1m} .ci/run fuzz

ci: ## everything that has to pass before a change lands
	.ci/run

clean: ## the program that `make build` made
	rm -f agentvm

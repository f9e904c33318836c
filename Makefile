# `make` lists the targets. Nothing needs make: the commands below are what CI and people type.

.DEFAULT_GOAL := help
.PHONY: arm64-programs help build test short race lint generate wasm guest kernel verify-kernel busybox disk buildah lockstep chaos upgrade-test bench debian-image debian-native fuzz fuzz-devices e2b-sdk gateway test-kubernetes mcp-conformance harness release release-test ci nightly clean

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r target text; do printf '  %-16s %s\n' "$$target" "$$text"; done

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

generate: ## instruction tables, types of clients and RPC code (needs capnproto)
	go run ./scripts/isagen
	go run ./scripts/clients
	internal/guest/capnprpc/generate.sh

wasm: ## internal/machine: machine.wasm, machine-arm64.wasm, standalone*.wasm.zst and machine.json (needs clang-19, lld-19, zstd)
	internal/machine/build.sh

guest: ## the supervisor and its manifest (needs zstd)
	internal/guest/build.sh

kernel: ## the guests' kernels from Debian's source package, about ten minutes each (tools: internal/machine/kernel/build.sh)
	internal/machine/kernel/build.sh riscv64
	internal/machine/kernel/build.sh arm64

verify-kernel: ## build the kernels again and compare them with the committed ones
	internal/machine/kernel/verify.sh

busybox: ## the built-in root from Debian's busybox-static (needs apt)
	images/busybox/build.sh

disk: ## the empty file system of named machines (needs e2fsprogs, zstd)
	internal/storage/disk/build.sh

buildah: ## ten Dockerfiles built by agentvm and by buildah give the same images (as root; needs buildah, bzip2 and Alpine's releases)
	AGENTVM_TEST_BUILDAH=1 go test -count 1 -timeout 20m -run '^TestSameAsBuildah$$' ./internal/imagebuild

lockstep: ## Debian's programs interpreted and translated side by side for MILLIONS of instructions (4000), with the archive at DEBIAN_IMAGE
	AGENTVM_LOCKSTEP_IMAGE=$(DEBIAN_IMAGE) AGENTVM_LOCKSTEP=$${MILLIONS:-4000} go test -v -count 1 -timeout 0 ./integration/lockstep

chaos: ## daemons killed, also while files are saved, guests that restart themselves, bursts of connections: ROUNDS times each (1000)
	AGENTVM_CHAOS_ROUNDS=$${ROUNDS:-1000} go test -v -count 1 -timeout 0 ./integration/chaos

upgrade-test: ## what an earlier version has stored, used by this one; the earlier is built from git, OLD (4eeb548)
	integration/upgrade/test.sh $(OLD)

bench: ## the figures of docs/measurements/specification.md, with QEMU beside them (tools: integration/bench)
	go run ./integration/bench
	go test -run '^$$' -bench '^(BenchmarkLink|BenchmarkTCP|BenchmarkReplyCached|BenchmarkAppend)' ./netstack ./nat ./internal/network/dns ./internal/storage/journal

DEBIAN_IMAGE ?= $(HOME)/.cache/agentvm-bench/programs.tar
DEBIAN_NATIVE ?= $(HOME)/.cache/agentvm-bench/native.tar

debian-native: ## the same programs for this host's processor, at DEBIAN_NATIVE, for -native of the same part
	dir=$$(mktemp -d) && integration/bench/debian.sh --arch $$(dpkg --print-architecture) --programs $(DEBIAN_NATIVE) "$$dir/root"; code=$$?; rm -rf "$$dir"; exit $$code

debian-image: ## the archive for go run ./integration/bench -run programs -programs FILE, at DEBIAN_IMAGE (needs apt and deb.debian.org)
	dir=$$(mktemp -d) && integration/bench/debian.sh --programs $(DEBIAN_IMAGE) "$$dir/root"; code=$$?; rm -rf "$$dir"; exit $$code

ARM64_IMAGE ?= $(HOME)/.cache/agentvm-bench/arm64.tar

$(ARM64_IMAGE):
	integration/bench/arm64.sh $@

arm64-programs: $(ARM64_IMAGE) ## what people run on linux/arm64, tried here and on QEMU: docs/measurements/arm64.md (needs apt, deb.debian.org, npm, qemu-system-aarch64; an hour or more)
	go run ./integration/bench -run '^arm64$$' -arm64 $(ARM64_IMAGE) -update

fuzz: ## every fuzz target for FUZZTIME each
	FUZZTIME=$${FUZZTIME:-1m} .ci/run fuzz

fuzz-devices: ## libFuzzer on the devices, FUZZTIME seconds for each (needs clang-19, libclang-rt-19-dev)
	internal/machine/fuzz.sh

e2b-sdk: ## E2B's own SDK against agentvm e2b (needs node, npm with a registry); E2B_MEASURE=1 for figures
	internal/api/e2b/sdk.sh

gateway: ## agentvm-gateway, ./agentvm-gateway, and its tests, which need no cluster
	CGO_ENABLED=0 go -C cmd/agentvm-gateway build -trimpath -ldflags '-s -w' -o ../../agentvm-gateway .
	go -C cmd/agentvm-gateway vet ./...
	go -C cmd/agentvm-gateway test -count 1 ./...

test-kubernetes: ## the gateway and deploy/ in a real cluster (needs root and Debian's etcd-server, containerd, runc ...; builds Kubernetes once: integration/kubernetes/test.sh)
	go -C integration/kubernetes/cluster test -count=1 ./admission
	integration/kubernetes/test.sh -test.v -test.timeout 150m

mcp-conformance: ## the protocol's own tests against agentvm mcp (needs npm with a registry)
	internal/api/mcp/conformance.sh

harness: ## the adapters of integration/harness with the packages that they are for, and the TypeScript client (needs npm with a registry)
	dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && npm install --silent --no-audit --no-fund --no-save --prefix "$$dir" node@22 deepagents@1.14.1 @openai/agents@0.20.0 && \
		AGENTVM_TEST_NODE_MODULES="$$dir/node_modules" go test -count 1 -timeout 30m -v ./integration/harness

RELEASE ?= release-$(VERSION)

release: ## the artifacts of a release, VERSION=v1.2.3, in the new directory RELEASE (release-v1.2.3): docs/internals/release.md
	go run ./scripts/release -version "$(VERSION)" -o "$(RELEASE)"

release-test: ## a release of all platforms made twice and looked at; on Linux, the container's part as root and with Alpine's releases (ten minutes or more)
	AGENTVM_TEST_RELEASE=all go test -v -count 1 -timeout 90m ./scripts/release

ci: ## everything that has to pass before a change lands
	.ci/run

nightly: ## what takes long and seldom finds anything: fuzzing, killed daemons, other builders (hours; `.ci/run list`)
	.ci/run nightly

clean: ## the program that `make build` made
	rm -f agentvm

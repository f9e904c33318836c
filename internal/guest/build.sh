#!/bin/sh
# build.sh [OUT]: build the supervisor for each architecture of VMs. Without OUT it replaces the committed artifacts, ARCHITECTURE.zst in
# internal/guest/supervisor, and their manifest (needs zstd); with OUT it only writes the uncompressed programs there, as OUT/ARCHITECTURE,
# for CI to compare and others to try.
#
# The same sources, module versions and Go version give the same bytes: no paths, no version control data, no build id.
set -eu
cd "$(dirname "$0")/../.."
dir=internal/guest/supervisor
out=${1:-$(mktemp -d)}
mkdir -p "$out"
for architecture in riscv64 arm64; do
	CGO_ENABLED=0 GOOS=linux GOARCH=$architecture GORISCV64=rva20u64 GOARM64=v8.0 GOFLAGS= \
		go build -trimpath -buildvcs=false -ldflags='-s -w -buildid=' -o "$out/$architecture" ./cmd/agentvm-guest
	[ $# -eq 0 ] || continue
	zstd -q -19 -f --no-check "$out/$architecture" -o $dir/$architecture.zst
done
[ $# -eq 0 ] || exit 0
rm -rf "$out"
go test ./$dir -run 'TestManifest$' -update

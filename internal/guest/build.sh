#!/bin/sh
# build.sh [OUT]: build the supervisor. Without OUT it replaces the committed artifact, internal/guest/supervisor/agentvm-guest.zst,
# and its manifest (needs zstd); with OUT it only writes the uncompressed program there, for CI to compare and others to try.
#
# The same sources, module versions and Go version give the same bytes: no paths, no version control data, no build id.
set -eu
cd "$(dirname "$0")/../.."
dir=internal/guest/supervisor
out=${1:-$(mktemp)}
CGO_ENABLED=0 GOOS=linux GOARCH=riscv64 GORISCV64=rva20u64 GOFLAGS= \
	go build -trimpath -buildvcs=false -ldflags='-s -w -buildid=' -o "$out" ./cmd/agentvm-guest
[ $# -eq 0 ] || exit 0
zstd -q -19 -f --no-check "$out" -o $dir/agentvm-guest.zst
rm -f "$out"
go test ./$dir -run 'TestManifest$' -update

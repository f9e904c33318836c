#!/bin/sh
# generate.sh: processv1/process.proto to Go code. Needs protoc (Debian's protobuf-compiler, libprotobuf-dev).
# The plugin is of the version that go.mod names.
set -eu
cd "$(dirname "$0")"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
module=google.golang.org/protobuf
GOBIN=$tmp go install "$module/cmd/protoc-gen-go@$(go list -m -f '{{.Version}}' $module)"
PATH=$tmp:$PATH protoc --go_out=. --go_opt=paths=source_relative processv1/process.proto

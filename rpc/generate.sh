#!/bin/sh
# generate.sh: agentvm.capnp to wire/agentvm.capnp.go. Needs Debian's capnproto. The Go plugin is built from the version
# that go.mod names, so that generated code and runtime always match. CI runs this and compares.
set -eu
cd "$(dirname "$0")"
module=capnproto.org/go/capnp/v3
dir=$(go list -m -f '{{.Dir}}' $module)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
GOBIN=$tmp go install "$module/capnpc-go@$(go list -m -f '{{.Version}}' $module)"
mkdir -p wire
capnp compile -I "$dir/std" -o- agentvm.capnp | (cd wire && "$tmp/capnpc-go" -schemas=false -structstrings=false)
gofmt -w wire/agentvm.capnp.go

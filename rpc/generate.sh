#!/bin/sh
# generate.sh: the schemas here to wire/NAME.capnp.go. Needs Debian's capnproto. The Go plugin is built from the version
# that go.mod names, so that generated code and runtime always match. CI runs this and compares.
set -eu
cd "$(dirname "$0")"
module=capnproto.org/go/capnp/v3
dir=$(go list -m -f '{{.Dir}}' $module)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
GOBIN=$tmp go install "$module/capnpc-go@$(go list -m -f '{{.Version}}' $module)"
mkdir -p wire
for schema in *.capnp; do
	capnp compile -I "$dir/std" -o- "$schema" | (cd wire && "$tmp/capnpc-go" -schemas=false -structstrings=false)
	gofmt -w "wire/$schema.go"
done

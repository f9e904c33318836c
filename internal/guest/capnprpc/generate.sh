#!/bin/sh
# generate.sh: schemas of packages below internal/ to Go code: PACKAGE/NAME.capnp to PACKAGE/NAMEwire/NAME.capnp.go. Needs
# Debian's capnproto. The Go plugin is built from the version that go.mod names, so that generated code and runtime always match. CI
# runs this and compares.
set -eu
cd "$(dirname "$0")/../.."
root=$PWD
module=capnproto.org/go/capnp/v3
dir=$(go list -m -f '{{.Dir}}' $module)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
GOBIN=$tmp go install "$module/capnpc-go@$(go list -m -f '{{.Version}}' $module)"
for schema in guest/capnprpc/stream guest/guestrpc/guest daemon/daemonrpc/daemon; do
	name=${schema##*/}
	mkdir -p "${schema}wire"
	(cd "${schema%/*}" && capnp compile -I "$dir/std" -I "$root" -o- "$name.capnp" | (cd "${name}wire" && "$tmp/capnpc-go" -schemas=false -structstrings=false))
	gofmt -w "${schema}wire/$name.capnp.go"
done

#!/bin/sh
# Runs E2B's own SDK against this tree: make e2b-sdk. Needs node, and npm with a registry. E2B_MEASURE=1 measures, too.
# `sdk.sh --install DIR` only puts the SDK and the program that calls it there.
set -eu
version=${E2B_VERSION:-2.51.0}
image=${E2B_IMAGE:-busybox}
here=$(cd "$(dirname "$0")" && pwd)
install() {
	command -v node >/dev/null && npm install --silent --no-audit --no-fund --prefix "$1" "e2b@$version" >"$1/npm" 2>&1 && cp "$here/testdata/sdk.mjs" "$1/sdk.mjs" && return
	echo "skipped: node is missing, or npm reaches no registry with e2b@$version" >&2
	exit 0
}
if [ "${1:-}" = --install ]; then
	mkdir -p "$2"
	install "$2"
	exit
fi
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || { kill -INT "$server" && wait "$server" || :; }; rm -rf "$dir"' EXIT
install "$dir"
(cd "$here/../../.." && go build -o "$dir/agentvm" ./cmd/agentvm)
mkdir -m 700 "$dir/store"
export AGENTVM_STORE="$dir/store" E2B_API_KEY=e2b_0123456789abcdef0123456789 E2B_GUIDE="$here/../../../docs/guide/e2b.md"
(umask 077 && echo "$E2B_API_KEY" >"$dir/key")
"$dir/agentvm" e2b --listen 127.0.0.1:0 --key-file "$dir/key" --image "$image" 2>"$dir/log" &
server=$!
for _ in $(seq 100); do
	url=$(sed -n 's/.*E2B_API_URL=\([^ ]*\) .*/\1/p' "$dir/log")
	[ -z "$url" ] || break
	sleep 0.1
done
[ -n "$url" ] || { cat "$dir/log" >&2; exit 1; }
E2B_API_URL=$url E2B_SANDBOX_URL=$url node "$dir/sdk.mjs"

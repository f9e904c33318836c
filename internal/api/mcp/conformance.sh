#!/bin/sh
# Runs the Model Context Protocol's own conformance tests against this tree: make mcp-conformance. Needs npm with a registry. Most of its scenarios want a
# server that has tools, resources and prompts made for them; those here hold for any server. MCP_SCENARIOS names others.
set -eu
version=${MCP_CONFORMANCE_VERSION:-0.1.16}
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
server= proxy=
trap 'for p in $proxy $server; do kill -TERM "$p" && wait "$p" || :; done; [ ! -x "$dir/agentvm" ] || "$dir/agentvm" rm -f conformance 2>/dev/null || :; rm -rf "$dir"' EXIT
if ! npm install --silent --no-audit --no-fund --prefix "$dir" "@modelcontextprotocol/conformance@$version" node@22 >"$dir/npm" 2>&1; then
	echo "skipped: npm is missing, or reaches no registry with @modelcontextprotocol/conformance@$version" >&2
	exit 0
fi
node="$dir/node_modules/node/bin/node"
(cd "$here/../../.." && go build -o "$dir/agentvm" ./cmd/agentvm)
mkdir -m 700 "$dir/store"
export AGENTVM_STORE="$dir/store" TOKEN=conformance-0123456789
echo "$TOKEN" >"$dir/token"
touch "$dir/log" "$dir/proxy"
"$dir/agentvm" mcp --vm conformance --http 127.0.0.1:0 --token-file "$dir/token" 2>"$dir/log" &
server=$!
await() { # the address that a log has
	for _ in $(seq 100); do
		url=$(sed -n 's|.*\(http://127.0.0.1:[0-9]*\)/mcp.*|\1|p' "$1")
		[ -z "$url" ] || return 0
		sleep 0.1
	done
	cat "$1" >&2
	return 1
}
await "$dir/log"
# The tests send no token: this adds it, and passes on everything else as it is.
"$node" -e '
const http = require("node:http"), to = new URL(process.argv[1]);
http.createServer((from, answer) => {
  const headers = { ...from.headers, authorization: "Bearer " + process.env.TOKEN };
  from.pipe(http.request({ host: to.hostname, port: to.port, path: from.url, method: from.method, headers }, (r) => {
    answer.writeHead(r.statusCode, r.headers);
    r.pipe(answer);
  }));
}).listen(0, "127.0.0.1", function () { console.log(`http://127.0.0.1:${this.address().port}/mcp`); });' "$url" >"$dir/proxy" &
proxy=$!
await "$dir/proxy"
failed=0
for scenario in ${MCP_SCENARIOS:-server-initialize ping logging-set-level tools-list resources-list prompts-list server-sse-polling server-sse-multiple-streams dns-rebinding-protection}; do
	if (cd "$dir" && "$node" node_modules/@modelcontextprotocol/conformance/dist/index.js server --url "$url/mcp" --scenario "$scenario") >"$dir/out" 2>&1; then
		echo "pass $scenario"
	else
		echo "FAIL $scenario"
		tail -n 30 "$dir/out"
		failed=1
	fi
done
exit $failed

#!/usr/bin/env bash
# A VM that one build of agentvm suspends into an object store continues with another one, and back:
#
#   state.sh DIR FIRST SECOND     DIR is empty and is left with the stores; FIRST and SECOND are agentvm for systems that run here
#
#   integration/systems/state.sh "$(mktemp -d)" ./agentvm ./agentvm-arm64
set -euo pipefail
[ $# = 3 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 2; }
dir=$(cd "$1" && pwd)
export AGENTVM_STATE_KEY=$dir/key
mkdir -m 700 "$dir/first" "$dir/second"
(umask 077 && "$2" snapshot key >"$AGENTVM_STATE_KEY")
state=file://$dir/objects

on() { AGENTVM_STORE=$dir/$1 timeout "${SMOKE_LIMIT:-300}" "${@:2}" </dev/null; }
end() {
	on first "$first" rm -f one three >/dev/null 2>&1 || true
	on second "$second" rm -f two >/dev/null 2>&1 || true
}
first=$2 second=$3
trap end EXIT

on first "$first" start one --image busybox --memory 128M --net none
on first "$first" exec -n one 'echo on disk >/root/file; echo in memory >/run/file; (while :; do sleep 1; done) & echo $! >/run/pid'
on first "$first" snapshot create --state "$state" --stop one vm
on second "$second" snapshot restore --state "$state" --keep-programs vm two
out=$(on second "$second" exec -n two 'cat /root/file /run/file; kill -0 $(cat /run/pid) && echo runs; echo more >>/root/file')
[ "$out" = $'on disk\nin memory\nruns' ] || { echo "FAILED: the second build has: $out" >&2; exit 1; }
on second "$second" snapshot create --state "$state" --stop two vm
on first "$first" snapshot restore --state "$state" vm three
out=$(on first "$first" exec -n three 'cat /root/file /run/file')
[ "$out" = $'on disk\nmore\nin memory' ] || { echo "FAILED: back on the first build: $out" >&2; exit 1; }
echo "a VM went from $(basename "$first") to $(basename "$second") and back"

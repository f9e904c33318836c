#!/usr/bin/env bash
# What an earlier version of agentvm has stored is used by this one:
#
#   test.sh [COMMIT]     COMMIT is what the earlier version is built from (default: one before the formats of today)
set -euo pipefail
cd "$(dirname "$0")/../.."
commit=${1:-4eeb548}
if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
	echo "upgrade: this clone does not have commit $commit: git fetch --unshallow" >&2
	[ "${CI:-}" != true ]
	exit
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/source"
git archive "$commit" | tar -x -C "$work/source"
go -C "$work/source" build -o "$work/agentvm" ./cmd/agentvm
AGENTVM_OLD_PROGRAM=$work/agentvm go test -v -count 1 -timeout 30m ./integration/upgrade

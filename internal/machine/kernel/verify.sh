#!/bin/sh
# Rebuilds the guest kernel and compares it with the committed one, byte for byte.
#
#   internal/machine/kernel/verify.sh [WORK]      WORK: scratch directory of build.sh (default: a fresh one, removed afterwards)
set -eu

here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$here/build.sh" "${1:-$scratch/work}" "$scratch/out"

for file in Image.zst provenance.json; do
	cmp "$here/$file" "$scratch/out/$file" && continue
	echo "verify.sh: the committed $file is not what its sources build. What differs in the records:" >&2
	diff -u "$here/provenance.json" "$scratch/out/provenance.json" >&2 || true
	exit 1
done
echo "kernel: rebuilt, identical"

#!/bin/sh
# Rebuilds the guest's kernels and compares them with the committed ones, byte for byte.
#
#   internal/machine/kernel/verify.sh [WORK]      WORK: scratch directory of build.sh (default: a fresh one, removed afterwards)
set -eu

here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

for architecture in riscv64 arm64; do
	"$here/build.sh" $architecture "${1:-$scratch/work}" "$scratch/out"
	for file in $architecture.zst $architecture.json; do
		cmp "$here/$file" "$scratch/out/$file" && continue
		echo "verify.sh: the committed $file is not what its sources build. What differs in the records:" >&2
		diff -u "$here/$architecture.json" "$scratch/out/$architecture.json" >&2 || true
		exit 1
	done
done
echo "kernels: rebuilt, identical"

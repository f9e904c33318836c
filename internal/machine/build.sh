#!/bin/sh
# Builds the machines from src/, byte-reproducibly, with Debian's clang-19 and lld-19: machine.wasm for riscv64, machine-arm64.wasm, and, compressed by
# zstd, what few need: of the same sources standalone.wasm and standalone-arm64.wasm (src/common/standalone.c) and machine-arm64-harts.wasm
# (src/common/harts.c).
# usage: internal/machine/build.sh [RISCV64 [STANDALONE [ARM64 [STANDALONE_ARM64 [ARM64_HARTS]]]]]   Without names it replaces the committed modules
#                                     and machine.json, which says what they were made from; else it only writes the modules that have a name
#                                     there. CFLAGS adds flags.
set -eu
cd "$(dirname "$0")"
for tool in clang-19 wasm-ld-19 zstd; do
    command -v "$tool" >/dev/null || { echo "build.sh: $tool is missing: apt-get install clang-19 lld-19 zstd" >&2; exit 1; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ $# -eq 0 ]; then
    riscv64=machine.wasm standalone=$work/standalone.wasm arm64=machine-arm64.wasm standalone_arm64=$work/standalone-arm64.wasm
    arm64_harts=$work/machine-arm64-harts.wasm
else
    riscv64=$1 standalone=${2:-} arm64=${3:-} standalone_arm64=${4:-} arm64_harts=${5:-}
fi
# -fno-jump-tables: a switch becomes a tree of conditional branches (docs/internals/rationale.md).
flags="--target=wasm32 -std=c17 -O3 -Wall -Wextra -Werror -ffreestanding -nostdlib
    -Isrc/common -mbulk-memory -msign-ext -mnontrapping-fptoint -mmutable-globals -fno-strict-aliasing -ffp-contract=off -fno-jump-tables"
#
# The loop of the interpreter takes a way through assembly: `br_if L` becomes `if; br L; end`. When several branches lead
# to L, wazero 1.12 compiles a br_if to five instructions (compare, setcc, movzx, test, jump), the other form always to two.
compile() {
    # shellcheck disable=SC2086 # flags are words
    case $1 in
    src/*/interpret.c)
        clang-19 $flags -Isrc/"$processor" ${CFLAGS:-} -S -o "$2.s" "$1"
        awk '/^\tbr_if[ \t]/ { print "\tif"; print "\tbr\t" $2 + 1; print "\tend_if"; next } { print }' "$2.s" >"$2.fused.s"
        clang-19 $flags -Wno-unused-command-line-argument -c -o "$2" "$2.fused.s"
        ;;
    *) clang-19 $flags -Isrc/"$processor" ${CFLAGS:-} -c -o "$2" "$1" ;;
    esac
}
# module PROCESSOR OUTPUT: compiles and links all its sources with what CFLAGS has.
module() {
    [ -n "$2" ] || return 0
    processor=$1 objects=
    for source in $(printf '%s\n' src/common/*.c src/"$processor"/*.c | LC_ALL=C sort -t/ -k3); do
        object=$work/$(basename "$source" .c).o
        compile "$source" "$object"
        objects="$objects $object"
    done
    # The hart lives between the stack and the data, see HART_ADDRESS in hart.h.
    # shellcheck disable=SC2086
    wasm-ld-19 --no-entry --strip-all --max-memory=4294901760 -z stack-size=65536 \
        --stack-first --global-base=1048576 ${LDFLAGS:-} -o "$work/module.wasm" $objects
    mv "$work/module.wasm" "$2"
}
module riscv64 "$riscv64"
module arm64 "$arm64"
(CFLAGS="${CFLAGS:-} -DAGENTVM_STANDALONE" && module riscv64 "$standalone" && module arm64 "$standalone_arm64")
# A module for several harts has atomic operations, and what an instance of it is for in two globals (src/common/harts.h).
clang-19 --target=wasm32 -c -o "$work/hart_base.o" src/common/hart_base.s
(CFLAGS="${CFLAGS:-} -DAGENTVM_HARTS -matomics" LDFLAGS="$work/hart_base.o --export=hart_base --export=__stack_pointer" && module arm64 "$arm64_harts")
[ $# -eq 0 ] || exit 0
for module in "$standalone" "$standalone_arm64" "$arm64_harts"; do
    zstd -q -19 -f --no-check "$module" -o "$(basename "$module").zst"
done

sha256() { sha256sum "$1" | cut -d' ' -f1; }

# One line of machine.json for each source; manifest_test.go has the same list.
sources() {
    comma=
    for file in build.sh a64/instructions.tbl riscv/instructions.tbl src/arm64/*.[ch] src/common/*.[chs] src/riscv64/*.[ch]; do
        printf '%b    "%s": "%s"' "$comma" "$file" "$(sha256 "$file")"
        comma=',\n'
    done
}

cat >machine.json <<EOF
{
  "artifact": "machine.wasm",
  "command": "internal/machine/build.sh",
  "licence": "Apache-2.0",
  "sha256": "$(sha256 machine.wasm)",
  "bytes": $(wc -c <machine.wasm),
  "standalone_sha256": "$(sha256 "$standalone")",
  "standalone_bytes": $(wc -c <"$standalone"),
  "arm64_sha256": "$(sha256 machine-arm64.wasm)",
  "arm64_bytes": $(wc -c <machine-arm64.wasm),
  "standalone_arm64_sha256": "$(sha256 "$standalone_arm64")",
  "standalone_arm64_bytes": $(wc -c <"$standalone_arm64"),
  "arm64_harts_sha256": "$(sha256 "$arm64_harts")",
  "arm64_harts_bytes": $(wc -c <"$arm64_harts"),
  "toolchain": {
    "clang-19": "$(clang-19 --version | sed -n 1p)",
    "wasm-ld-19": "$(wasm-ld-19 --version | sed -n 1p)"
  },
  "sources": {
$(sources)
  }
}
EOF

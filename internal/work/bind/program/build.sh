#!/bin/sh
# Builds client-riscv64 and client-arm64 from client.c with Debian's cross-compilers, byte-reproducibly.
set -eu
cd "$(dirname "$0")"

# build ARCHITECTURE TARGET OPTION...
build() {
    out=client-$1 gcc=$2-gcc
    shift 2
    command -v "$gcc" >/dev/null || { echo "build.sh: apt-get install gcc-riscv64-linux-gnu gcc-aarch64-linux-gnu" >&2; exit 1; }
    "$gcc" "$@" -Os -Wall -Wextra -Werror -ffreestanding -fno-builtin -fno-pic -no-pie \
        -fno-stack-protector -fno-asynchronous-unwind-tables -fno-tree-loop-distribute-patterns \
        -nostdlib -static -Wl,--build-id=none,-z,noexecstack -s -o "$out" client.c
}

build riscv64 riscv64-linux-gnu -march=rv64imac_zicsr -mabi=lp64 -mno-relax -mcmodel=medany
build arm64 aarch64-linux-gnu -march=armv8-a -mgeneral-regs-only
sha256sum client.c client-riscv64 client-arm64 >sums

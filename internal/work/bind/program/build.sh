#!/bin/sh
# Builds client from client.c with Debian's riscv64-linux-gnu-gcc, byte-reproducibly.
set -eu
cd "$(dirname "$0")"
command -v riscv64-linux-gnu-gcc >/dev/null || { echo "build.sh: apt-get install gcc-riscv64-linux-gnu" >&2; exit 1; }
riscv64-linux-gnu-gcc -march=rv64imac_zicsr -mabi=lp64 -Os -Wall -Wextra -Werror -ffreestanding -fno-builtin -fno-pic -no-pie \
    -fno-stack-protector -fno-asynchronous-unwind-tables -fno-tree-loop-distribute-patterns -mno-relax -mcmodel=medany \
    -nostdlib -static -Wl,--build-id=none,-z,noexecstack -s -o client client.c
sha256sum client.c client >sums

#!/bin/sh
# Fuzzes the devices with libFuzzer: coverage-guided, with the address and undefined-behaviour sanitizers.
# usage: internal/machine/fuzz.sh [DEVICE...]   console, rng, net, disk, share, balloon; without one, all of them, two at a time.
#                                       FUZZTIME is seconds for each (60), FUZZCORPUS a folder that keeps what is found
#                                       for the next time. An input that fails is left in the current folder.
# Needs Debian's clang-19 and libclang-rt-19-dev.
set -eu
start=$PWD
cd "$(dirname "$0")"
seconds=${FUZZTIME:-60}
seconds=${seconds%s}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
corpus=${FUZZCORPUS:-$work/corpus}
command -v clang-19 >/dev/null || { echo "fuzz.sh: clang-19 is missing: apt-get install clang-19 libclang-rt-19-dev" >&2; exit 1; }

# Without PIE, static data lies below 4 GiB: iovecs hold 32-bit addresses.
clang-19 -std=c17 -O1 -g -Wall -Wextra -Werror -Wno-unknown-attributes -Wno-ignored-attributes -DRAM_KIB=128 -fno-pie -no-pie \
    -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Wl,--wrap=virtqueue_give -o "$work/devices" \
    src/common/virtio.c src/common/virtqueue.c src/common/virtio_*.c src/common/vmgenid.c src/common/rtc.c src/common/devices.c src/test/devices_harness.c src/test/fuzz_devices.c

fuzz() {
    ln -sf devices "$work/$1"
    mkdir -p "$corpus/$1"
    if ASAN_OPTIONS=detect_leaks=0 ASAN_SYMBOLIZER_PATH=$(command -v llvm-symbolizer-19 || true) "$work/$1" -max_total_time="$seconds" -timeout=10 -max_len=2048 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$start/$1-" "$corpus/$1" src/test/corpus/"$1" >"$work/$1.log" 2>&1; then
        echo "$1: $(sed -n 's/^stat::number_of_executed_units: *//p' "$work/$1.log") executions in $seconds s, nothing found"
    else
        tail -n 60 "$work/$1.log"
        echo "fuzz.sh: $1 failed; its input is $start/$1-*" >&2
        return 1
    fi
}

[ $# -gt 0 ] || set -- console rng net disk share balloon
failed=0
while [ $# -gt 0 ]; do
    fuzz "$1" & first=$!
    second=
    if [ $# -gt 1 ]; then
        fuzz "$2" & second=$!
        shift
    fi
    shift
    wait $first || failed=1
    [ -z "$second" ] || wait $second || failed=1
done
exit $failed

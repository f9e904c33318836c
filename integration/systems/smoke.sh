#!/usr/bin/env bash
# The life of a VM by the command line, for builds of other systems that run here by an emulator of theirs:
#
#   smoke.sh DIR COMMAND...     DIR is empty and is left with the store and what was written; COMMAND is agentvm
#
#   integration/systems/smoke.sh "$(mktemp -d)" qemu-aarch64-static ./agentvm-arm64
#   WINEPREFIX=... SMOKE_WINE=1 integration/systems/smoke.sh "$(mktemp -d)" /usr/lib/wine/wine64 ./agentvm.exe
#
# Prints each step with its seconds; the first that fails ends it with 1. No step may take longer than SMOKE_LIMIT seconds (120).
set -uo pipefail
[ $# -ge 2 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2; }
dir=$(cd "$1" && pwd)
shift
agentvm=("$@")
limit=${SMOKE_LIMIT:-120}
# SMOKE_DISK is the size of the VM's disk, where a sparse file is not one and so its size costs time.
wine=${SMOKE_WINE:-}
image=busybox

# How the program spells a path of the host.
path() {
	if [ -n "$wine" ]; then printf 'Z:%s' "${1//\//\\}"; else printf '%s' "$1"; fi
}

AGENTVM_STORE=$(path "$dir/store")
export AGENTVM_STORE
mkdir "$dir/store" "$dir/files"
chmod 700 "$dir/store"
out=$dir/out
err=$dir/err

fail() {
	echo "FAILED: $step: $*" >&2
	echo "--- its output:" >&2
	tail -n 40 "$out" "$err" >&2
	exit 1
}

# run ARGUMENTS...: agentvm with output in $out and $err; the exit code is in $code. A Windows program ends lines with CR LF on a
# terminal only, so nothing is translated.
run() {
	timeout "$limit" "${agentvm[@]}" "$@" >"$out" 2>"$err"
	code=$?
	[ $code != 124 ] || fail "not done after $limit s: $*"
}

# piped ARGUMENTS...: run as the end of a pipe, which is a process of its own.
piped() { run "$@" && echo "$code" >"$dir/code"; }

ok() {
	run "$@" </dev/null
	[ $code = 0 ] || fail "exit code $code: $*"
}

# is TEXT: the whole of standard output, except for the last line's end.
is() { [ "$(cat "$out")" = "$1" ] || fail "standard output is not: $1"; }

has() { grep -qF -- "$1" "$out" || fail "standard output lacks: $1"; }

step=
began=$SECONDS
begin() {
	[ -z "$step" ] || printf '%4d s  %s\n' $((SECONDS - began)) "$step"
	step=$1 began=$SECONDS
}

end() {
	for name in first second third; do
		timeout 30 "${agentvm[@]}" rm -f "$name" >/dev/null 2>&1 </dev/null
	done
}
trap end EXIT

begin "exec: streams and exit code"
run exec --image $image 'echo out; echo err >&2; exit 7' </dev/null
[ $code = 7 ] || fail "exit code $code, want 7"
is out
grep -qx err "$err" || fail "standard error lacks: err"

begin "exec: standard input is binary and ends"
head -c 200000 /dev/urandom >"$dir/files/random"
# By a pipe: Wine 8 gives a program that inherits an open file no handle that can be asked what it is.
cat "$dir/files/random" | piped exec --image $image cat || exit 1
code=$(cat "$dir/code")
[ $code = 0 ] || fail "exit code $code"
cmp "$out" "$dir/files/random" || fail "the bytes are others"

begin "a mount with spaces and umlauts"
mounted="$dir/files/mein Ordner äöü"
mkdir "$mounted"
printf 'inside\n' >"$mounted/größe 1.txt"
ok exec --image $image -m "$(path "$mounted"):/src" 'cat "/src/größe 1.txt"; mkdir /src/neu; echo back >"/src/neu/zurück.txt"; mv /src/neu /src/"ganz neu"; ls /src'
is $'inside\nganz neu\ngröße 1.txt'
[ "$(cat "$mounted/ganz neu/zurück.txt")" = back ] || fail "what the guest wrote is not here"
run exec --image $image -m "$(path "$mounted"):/src:ro" 'touch /src/x' </dev/null
[ $code != 0 ] && [ ! -e "$mounted/x" ] || fail "a read-only mount was written"

begin "start"
ok start first --image $image ${SMOKE_DISK:+--disk-size "$SMOKE_DISK"}
run start first --image $image </dev/null
[ $code != 0 ] || fail "it was started twice"

begin "exec -n"
echo typed | piped exec -n first 'echo kept >/root/file; sync; cat; exit 3' || exit 1
code=$(cat "$dir/code")
[ $code = 3 ] || fail "exit code $code, want 3"
is typed

begin "job"
ok exec -d -n first 'echo from the job; exit 5'
id=$(tr -d '\r\n' <"$out")
run job logs -f first "$id" </dev/null
has "from the job"

begin "cp"
ok cp "$(path "$dir/files/random")" first:/root/random
ok cp first:/root/random "$(path "$dir/files/returned")"
cmp "$dir/files/random" "$dir/files/returned" || fail "the bytes are others"

begin "ps"
ok ps
has first
has running

begin "fork"
ok fork first second
ok exec -n second 'cat /root/file; hostname'
is $'kept\nsecond'

begin "snapshot"
ok snapshot create first saved
ok snapshot ls
has saved

begin "stop"
ok stop first
ok ps -a
has stopped

begin "restore"
ok snapshot restore saved third
ok exec -n third 'cat /root/file; sha256sum </root/random'
is "kept
$(sha256sum <"$dir/files/random")"

begin "start again"
ok start first
ok exec -n first 'cat /root/file'
is kept

begin "rm"
for name in first second third; do
	run rm -f $name </dev/null
	# Wine 8 cannot delete by FileDispositionInformationEx, which os.RemoveAll uses below a directory: a job's files stay.
	[ $code = 0 ] || { [ -n "$wine" ] && grep -qF 'Invalid function' "$err"; } || fail "exit code $code: rm -f $name"
done
ok snapshot rm saved
ok ps
! grep -qE 'first|second|third' "$out" || fail "a VM runs on"

begin done
trap - EXIT

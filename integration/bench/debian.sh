#!/bin/sh
# Puts programs of a port of Debian, with the libraries that they need, into a directory: for integration/bench -debian, or, of FILE, a tar
# archive of all programs that integration/bench -programs runs, an image of agentvm. With amd64 it makes their peer of the host's own processor.
#
#   integration/bench/debian.sh [--arch ARCH] [--more PACKAGES] [--programs FILE] DIR [SUITE]     ARCH: default riscv64; SUITE: of Debian, default sid
#
# Needs apt and dpkg-deb of any architecture, and not root. Packages are unpacked, and their scripts are not run.
set -eu
archive=
arch=riscv64
more=
if [ "$1" = --arch ]; then
	arch=$2
	shift 2
fi
if [ "$1" = --more ]; then
	more=$2
	shift 2
fi
if [ "$1" = --programs ]; then
	mkdir -p "$(dirname "$2")"
	archive=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
	shift 2
fi
mkdir -p "$1"
dir=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
: >"$work/status"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian ${2:-sid} main" >"$work/sources.list"
own() {
	apt-get -qq -o Dir::State="$work" -o Dir::State::status="$work/status" -o Dir::Cache="$work/cache" -o Dir::Etc::SourceList="$work/sources.list" \
		-o Dir::Etc::SourceParts=/dev/null -o APT::Architecture="$arch" -o APT::Architectures="$arch" -o APT::Sandbox::User= \
		-o APT::Install-Recommends=false -o Debug::NoLocking=true -o Acquire::Languages=none -o Acquire::CompressionTypes::Order::=gz "$@"
}
own update
cd "$work"
if [ -z "$archive" ]; then
	own download git libc6 libpcre2-8-0 zlib1g grep coreutils findutils dash libselinux1 libacl1 libattr1 libgmp10 libssl3t64 libzstd1 libcap2 libgcc-s1
else
	# shellcheck disable=SC2086 # packages are words
	own install --yes --download-only bash coreutils dash findutils gcc git grep gzip libc6-dev lua5.4 nodejs perl python3 ruby sed sqlite3 tar $more
	mv cache/archives/*.deb .
fi
for package in *.deb; do
	dpkg-deb -x "$package" "$dir"
done
for name in bin lib sbin; do
	ln -sfn "usr/$name" "$dir/$name"
done
# What the benchmark does not use, and of what it copies there should be little.
rm -rf "$dir"/usr/share/doc "$dir"/usr/share/man "$dir"/usr/share/locale "$dir"/usr/share/gitweb "$dir"/usr/share/bash-completion \
	"$dir"/usr/lib/git-core/git-daemon "$dir"/usr/lib/git-core/git-http* "$dir"/usr/lib/git-core/git-remote-* \
	"$dir"/usr/lib/git-core/git-imap-send "$dir"/usr/lib/git-core/git-shell "$dir"/usr/lib/git-core/git-credential*
[ -z "$archive" ] || tar -C "$dir" --sort=name --owner=0 --group=0 --numeric-owner -cf "$archive" .

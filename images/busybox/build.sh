#!/bin/sh
# Builds the built-in root file system: Debian's busybox-static for riscv64 with four bytes changed (see quicken), the links
# of `applets` and the files of root/ -> root.tar.gz and provenance.json.
#
#   images/busybox/build.sh [OUT]     OUT: where the two results go (default: this directory)
#
# The same inputs give the same bytes. Needs a Debian with apt, dpkg-deb, GNU tar and gzip; not root.
# BUSYBOX_DEB=file uses a package you already have. DEBIAN_MIRROR=url overrides the machine's own mirror.
set -eu

# The pin. To move it, see `gone` below.
package=busybox-static
version=1:1.37.0-6+b9
suite=trixie
deb_sha256=4add476d2b185c5b487c285b38d790f0881a7e4a8e2ddde835f917e770eb8633
busybox_sha256=659d3048d0849dcd03308ece5214c896f657dde1c76ab7a30e9727e3ed8d309b
# Where busybox has the tables of stack frames that its start code registers, and what is there: the first argument of the call in
# the first function of .init_array (readelf -x .init_array, objdump -d).
frames_offset=$((0x164130))
frames_bytes=10000000
built_using='busybox 1:1.37.0-6, glibc 2.41-12+deb13u4'
# Modification time of every file in the archive: that of busybox itself in the package.
SOURCE_DATE_EPOCH=1783876867

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:-$here}"
out=$(cd "${1:-$here}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

die() {
	echo "build.sh: $*" >&2
	exit 1
}

sha256() {
	sha256sum "$1" | cut -d' ' -f1
}

# The first Debian archive among the machine's own apt sources.
mirror() {
	[ -z "${DEBIAN_MIRROR:-}" ] || { echo "$DEBIAN_MIRROR"; return; }
	found=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 '/debian/$') ||
		die "no Debian mirror in this machine's apt sources: set DEBIAN_MIRROR"
	echo "$found"
}

# apt with its own state, for another suite and architecture than the machine's.
own_apt() {
	apt=$1
	shift
	"$apt" -o Dir::State="$work/apt" -o Dir::State::status="$work/apt/status" -o Dir::Cache="$work/apt/cache" \
		-o Dir::Etc::SourceList="$work/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null -o APT::Sandbox::User= \
		-o APT::Architecture=riscv64 -o APT::Architectures::=riscv64 -o Acquire::Languages=none "$@"
}

# Debian keeps the newest version of a package in a suite and drops the others.
gone() {
	echo "build.sh: $package $version is no longer offered in $suite. Offered now:" >&2
	own_apt apt-cache madison $package >&2 || true
	die "either take the pinned file from https://snapshot.debian.org/binary/$package/
and pass it as BUSYBOX_DEB=file, or move the pin:
  1. at the top of images/busybox/build.sh set version, deb_sha256 (apt-cache show prints it), built_using (Source and
     Built-Using of dpkg-deb -f), busybox_sha256 and SOURCE_DATE_EPOCH (sha256sum and stat -c %Y of usr/bin/busybox inside),
     frames_offset and frames_bytes;
  2. run images/busybox/build.sh, then go test ./images, then commit all of images/busybox together."
}

fetch() {
	mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial"
	: >"$work/apt/status"
	url=$(mirror)
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $url $suite main" >"$work/apt/sources.list"
	own_apt apt-get update -qq || die "cannot reach $suite on this machine's Debian mirror"
	(cd "$work" && own_apt apt-get download -qq "$package:riscv64=$version") || gone
	mv "$work/$package"_*.deb "$work/package.deb"
}

# Every applet of the list must exist. Only an emulator can tell; without one the list is taken as it is.
check_applets() {
	qemu=$(command -v qemu-riscv64-static || command -v qemu-riscv64) || return 0
	"$qemu" "$1" --list-full | sort >"$work/offered"
	missing=$(sort "$here/applets" | comm -23 - "$work/offered")
	[ -z "$missing" ] || die "busybox has no such applets (images/busybox/applets): $missing"
}

# The start code of a static program registers its tables of stack frames, for C++ and the cancelling of threads, and looks at
# each of them: 224,000 instructions, a third of a short command. BusyBox has no use for them, and a zero in the first place says
# that there are none. The licence requires a note about changes, which is beside it.
quicken() {
	found=$(od -An -tx1 -j "$frames_offset" -N 4 "$1" | tr -d ' ')
	[ "$found" = $frames_bytes ] || die "busybox has no tables of stack frames at $frames_offset, but $found"
	printf '\000\000\000\000' | dd of="$1" bs=1 seek="$frames_offset" conv=notrunc status=none
}

# Lays the tree out in $work/root.
assemble() {
	root=$work/root
	for dir in bin dev etc home mnt opt proc root run sbin srv sys tmp usr/bin usr/lib usr/local/bin usr/sbin \
		usr/share/doc/busybox var/cache var/log var/tmp var/spool; do
		mkdir -p "$root/$dir"
	done
	ln -s ../run "$root/var/run"
	cp -R "$here/root/." "$root/"
	cp "$work/deb/usr/share/doc/$package/copyright" "$root/usr/share/doc/busybox/copyright"
	cp "$work/deb/usr/bin/busybox" "$root/bin/busybox"
	quicken "$root/bin/busybox"
	cat >"$root/usr/share/doc/busybox/changes" <<EOF
/bin/busybox is that of Debian's $package $version, but that the four bytes at $frames_offset are zero: so it starts
without registering its tables of stack frames. Changed on 2026-11-22 by images/busybox/build.sh of agentvm.
EOF
	while read -r applet; do
		ln -s /bin/busybox "$root/$applet"
	done <"$here/applets"
	find "$root" -type d -exec chmod 755 {} +
	find "$root" -type f -exec chmod 644 {} +
	chmod 755 "$root/bin/busybox" "$root/usr/bin/nohup"
	chmod 700 "$root/root"
	chmod 1777 "$root/tmp" "$root/var/tmp"
}

pack() {
	tar -C "$work/root" --sort=name --format=ustar --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -c -f - . |
		gzip -n -9 >"$out/root.tar.gz"
}

# The hash of what this folder puts in, in the way that the test computes it.
sources_sha256() {
	(cd "$here" && sha256sum applets build.sh root/etc/* root/usr/bin/* | sha256sum | cut -d' ' -f1)
}

provenance() {
	cat >"$out/provenance.json" <<EOF
{
  "package": "$package",
  "version": "$version",
  "suite": "Debian $suite",
  "architecture": "riscv64",
  "deb_sha256": "$deb_sha256",
  "busybox_sha256": "$busybox_sha256",
  "built_using": "$built_using",
  "changed": "the four bytes of busybox at $frames_offset are zero, see quicken in build.sh",
  "sources_sha256": "$(sources_sha256)",
  "command": "images/busybox/build.sh",
  "licence": "GPL-2.0-only (BusyBox), LGPL-2.1-or-later (GNU C library, linked in)",
  "root_tar_gz_sha256": "$(sha256 "$out/root.tar.gz")"
}
EOF
}

export LC_ALL=C TZ=UTC
umask 022
if [ -n "${BUSYBOX_DEB:-}" ]; then
	cp "$BUSYBOX_DEB" "$work/package.deb"
else
	fetch
fi
[ "$(sha256 "$work/package.deb")" = $deb_sha256 ] || die "the package is not the pinned one: want sha256 $deb_sha256"
dpkg-deb -x "$work/package.deb" "$work/deb"
[ "$(sha256 "$work/deb/usr/bin/busybox")" = "$busybox_sha256" ] || die "busybox has the wrong sha256: want $busybox_sha256"
check_applets "$work/deb/usr/bin/busybox"
assemble
pack
provenance

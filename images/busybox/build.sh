#!/bin/sh
# Builds the built-in root file systems: Debian's busybox-static with four bytes changed (see quicken), the links of `applets` and the
# files of root/ -> ARCHITECTURE.tar.zst and provenance.json.
#
#   images/busybox/build.sh [OUT]     OUT: where the results go (default: this directory)
#
# The same inputs give the same bytes. Needs a Debian with apt, dpkg-deb, GNU tar and zstd; not root.
# BUSYBOX_DEBS=folder uses packages you already have. DEBIAN_MIRROR=url overrides the machine's own mirror.
set -eu

# The pin. To move it, see `gone` below.
package=busybox-static
version=1:1.37.0-6+b9
suite=trixie
built_using='busybox 1:1.37.0-6, glibc 2.41-12+deb13u4'
architectures='riscv64 arm64'

# What is pinned of each architecture. SOURCE_DATE_EPOCH is the modification time of every file in the archive: that of busybox itself
# in the package. frames_offset is where busybox has the tables of stack frames that its start code registers, frames_bytes what is
# there: the first argument of the only call of frame_dummy, which .init_array has (readelf -x .init_array, objdump -d).
pin() {
	case $1 in
	riscv64)
		deb_sha256=4add476d2b185c5b487c285b38d790f0881a7e4a8e2ddde835f917e770eb8633
		busybox_sha256=659d3048d0849dcd03308ece5214c896f657dde1c76ab7a30e9727e3ed8d309b
		SOURCE_DATE_EPOCH=1783876867
		frames_offset=$((0x164130)) frames_bytes=10000000 changed_on=2026-11-22
		;;
	arm64)
		deb_sha256=c833be48abfa16bc19c4966ec93e289ff1ce5d2f1476cad3a57bd105378cd15c
		busybox_sha256=7d93682be37cf6ed46699f6fff546b80bf133cf8ec342c2d04bc23387f78bc34
		SOURCE_DATE_EPOCH=1783876312
		frames_offset=$((0x1b05d8)) frames_bytes=10000000 changed_on=2026-11-30
		;;
	esac
}

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
	"$apt" -o Dir::State="$state" -o Dir::State::status="$state/status" -o Dir::Cache="$state/cache" \
		-o Dir::Etc::SourceList="$state/sources.list" -o Dir::Etc::SourceParts=/dev/null -o APT::Sandbox::User= \
		-o APT::Architecture="$architecture" -o APT::Architectures::="$architecture" -o Acquire::Languages=none "$@"
}

# Debian keeps the newest version of a package in a suite and drops the others.
gone() {
	echo "build.sh: $package $version is no longer offered in $suite. Offered now:" >&2
	own_apt apt-cache madison $package >&2 || true
	die "either take the pinned files from https://snapshot.debian.org/binary/$package/
and pass their folder as BUSYBOX_DEBS=folder, or move the pin:
  1. at the top of images/busybox/build.sh set version, built_using (Source and Built-Using of dpkg-deb -f) and, for each
     architecture, deb_sha256 (apt-cache show prints it), busybox_sha256 and SOURCE_DATE_EPOCH (sha256sum and stat -c %Y of
     usr/bin/busybox inside), frames_offset and frames_bytes;
  2. run images/busybox/build.sh, then go test ./images, then commit all of images/busybox together."
}

# The package of the architecture -> $below/package.deb.
fetch() {
	if [ -n "${BUSYBOX_DEBS:-}" ]; then
		cp "$BUSYBOX_DEBS/${package}"_*_"$architecture.deb" "$below/package.deb"
		return
	fi
	state=$below/apt
	mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
	: >"$state/status"
	url=$(mirror)
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $url $suite main" >"$state/sources.list"
	own_apt apt-get update -qq || die "cannot reach $suite on this machine's Debian mirror"
	(cd "$below" && own_apt apt-get download -qq "$package:$architecture=$version") || gone
	mv "$below/$package"_*.deb "$below/package.deb"
}

# Every applet of the list must exist. Only an emulator can tell; without one the list is taken as it is.
check_applets() {
	case $architecture in
	arm64) emulated=aarch64 ;;
	*) emulated=$architecture ;;
	esac
	qemu=$(command -v "qemu-$emulated-static" || command -v "qemu-$emulated") || return 0
	"$qemu" "$1" --list-full | sort >"$below/offered"
	missing=$(sort "$here/applets" | comm -23 - "$below/offered")
	[ -z "$missing" ] || die "busybox has no such applets (images/busybox/applets): $missing"
}

# The start code of a static program registers its tables of stack frames, for C++ and the cancelling of threads, and looks at
# each of them: 224,000 instructions on riscv64, a third of a short command, and 174,000 on arm64. BusyBox has no use for them, and a
# zero in the first place says that there are none. The licence requires a note about changes, which is beside it.
quicken() {
	found=$(od -An -tx1 -j "$frames_offset" -N 4 "$1" | tr -d ' ')
	[ "$found" = $frames_bytes ] || die "busybox has no tables of stack frames at $frames_offset, but $found"
	printf '\000\000\000\000' | dd of="$1" bs=1 seek="$frames_offset" conv=notrunc status=none
}

# Lays the tree out in $below/root.
assemble() {
	root=$below/root
	for dir in bin dev etc home mnt opt proc root run sbin srv sys tmp usr/bin usr/lib usr/local/bin usr/sbin \
		usr/share/doc/busybox var/cache var/log var/tmp var/spool; do
		mkdir -p "$root/$dir"
	done
	ln -s ../run "$root/var/run"
	cp -R "$here/root/." "$root/"
	cp "$below/deb/usr/share/doc/$package/copyright" "$root/usr/share/doc/busybox/copyright"
	cp "$below/deb/usr/bin/busybox" "$root/bin/busybox"
	quicken "$root/bin/busybox"
	cat >"$root/usr/share/doc/busybox/changes" <<EOF
/bin/busybox is that of Debian's $package $version, but that the four bytes at $frames_offset are zero: so it starts
without registering its tables of stack frames. Changed on $changed_on by images/busybox/build.sh of agentvm.
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
	tar -C "$below/root" --sort=name --format=ustar --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -c -f "$below/root.tar" .
	zstd --ultra -22 --single-thread --no-check -q -f -o "$out/$architecture.tar.zst" "$below/root.tar"
}

# The hash of what this folder puts in, in the way that the test computes it.
sources_sha256() {
	(cd "$here" && sha256sum applets build.sh root/etc/* root/usr/bin/* | sha256sum | cut -d' ' -f1)
}

# What provenance.json says about one architecture.
provenance() {
	cat <<EOF
    {
      "architecture": "$architecture",
      "deb_sha256": "$deb_sha256",
      "busybox_sha256": "$busybox_sha256",
      "changed": "the four bytes of busybox at $frames_offset are zero, see quicken in build.sh",
      "archive_sha256": "$(sha256 "$out/$architecture.tar.zst")"
    }
EOF
}

build() {
	architecture=$1 below=$work/$1
	pin "$architecture"
	mkdir "$below"
	fetch
	[ "$(sha256 "$below/package.deb")" = $deb_sha256 ] || die "the package for $architecture is not the pinned one: want sha256 $deb_sha256"
	dpkg-deb -x "$below/package.deb" "$below/deb"
	[ "$(sha256 "$below/deb/usr/bin/busybox")" = "$busybox_sha256" ] ||
		die "busybox for $architecture has the wrong sha256: want $busybox_sha256"
	check_applets "$below/deb/usr/bin/busybox"
	assemble
	pack
}

export LC_ALL=C TZ=UTC
umask 022
archives=
for architecture in $architectures; do
	build "$architecture"
	archives="$archives${archives:+,
}$(provenance)"
done
cat >"$out/provenance.json" <<EOF
{
  "package": "$package",
  "version": "$version",
  "suite": "Debian $suite",
  "built_using": "$built_using",
  "sources_sha256": "$(sources_sha256)",
  "command": "images/busybox/build.sh",
  "licence": "GPL-2.0-only (BusyBox), LGPL-2.1-or-later (GNU C library, linked in)",
  "archives": [
$archives
  ]
}
EOF

#!/bin/sh
# Builds a guest kernel: Debian's linux-source package + the patches beside this + agentvm.config + ARCHITECTURE.config
# -> ARCHITECTURE.zst and ARCHITECTURE.json, which says from what.
#
#   internal/machine/kernel/build.sh ARCHITECTURE [WORK [OUT]]     ARCHITECTURE: riscv64 or arm64
#                                    WORK: scratch directory, about 2.5 GB (default /tmp/agentvm-kernel)
#                                    OUT:  where the two results go (default: this directory)
#
# The same inputs give the same bytes, whatever WORK is called and however many jobs run. Needs Debian 12 with
#   gcc-riscv64-linux-gnu or gcc-aarch64-linux-gnu, make bc bison flex patch xz-utils zstd   (and, to fetch the source, apt; not root)
# JOBS=n sets the parallelism (default 2). LINUX_SOURCE_DEB=file uses a package you already have.
set -eu

# The pin. To move it, see `gone` below.
package=linux-source-6.12
version=6.12.117-1~deb12u1
deb_sha256=e849faf31ca3555757f3a8877cb01af92122f744f75d1f3102734651c4e14703
tar_sha256=585a4a074597aefa2b1a68ada83a3184ba351c127544dea80618bbcceaa3961f
suite=bookworm-security
# Date of that version in Debian's changelog; it becomes the kernel's build date.
SOURCE_DATE_EPOCH=1794660961

architecture=${1:-}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${2:-/tmp/agentvm-kernel}" "${3:-$here}"
work=$(cd "${2:-/tmp/agentvm-kernel}" && pwd)
out=$(cd "${3:-$here}" && pwd)
patches="boot-cost.patch vmfork.patch copy.patch fuse.patch tty.patch"
tarball=$work/$package.tar.xz
build=$work/$architecture

configs="agentvm.config $architecture.config"
case $architecture in
# -mtune=thead-c906: GCC 12 otherwise loads byte by byte wherever data may be misaligned, and the machine has no need
# of that. Same instruction set.
riscv64) arch=riscv triplet=riscv64-linux-gnu flags=-mtune=thead-c906 ;;
arm64) arch=arm64 triplet=aarch64-linux-gnu flags= ;;
*) echo "build.sh: which architecture? riscv64 or arm64" >&2; exit 1 ;;
esac

die() {
	echo "build.sh: $*" >&2
	exit 1
}

sha256() {
	sha256sum "$1" | cut -d' ' -f1
}

require_tools() {
	for tool in $triplet-gcc make bc bison flex patch xz zstd; do
		command -v "$tool" >/dev/null || die "$tool is missing; on Debian 12:
  apt install gcc-$triplet make bc bison flex patch xz-utils zstd"
	done
}

# The security archive among the machine's own apt sources.
mirror() {
	[ -z "${DEBIAN_SECURITY_MIRROR:-}" ] || { echo "$DEBIAN_SECURITY_MIRROR"; return; }
	found=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 '/debian-security/$') ||
		die "no archive of Debian's security updates in this machine's apt sources: set DEBIAN_SECURITY_MIRROR"
	echo "$found"
}

# apt with its own lists and cache, so that it needs no root and sees the pinned suite whatever the machine's own are.
own_apt() {
	apt=$1
	shift
	"$apt" -o Dir::State="$work/apt" -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache="$work/apt/cache" \
		-o Dir::Etc::SourceList="$work/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null \
		-o APT::Sandbox::User= -o Acquire::Languages=none "$@"
}

# Debian keeps a few versions of a package and then drops the oldest.
gone() {
	echo "build.sh: $package $version is no longer offered. Offered now:" >&2
	own_apt apt-cache madison $package >&2 || true
	die "either take the pinned file from https://snapshot.debian.org/package/linux-6.12/$version/
and pass it as LINUX_SOURCE_DEB=file, or move the pin:
  1. at the top of internal/machine/kernel/build.sh set version, deb_sha256 (apt-cache show prints it), tar_sha256 (of
     usr/src/$package.tar.xz inside) and SOURCE_DATE_EPOCH (date -d of the changelog entry, +%s);
  2. run internal/machine/kernel/build.sh for each architecture, set Version in kernel.go, then go test ./internal/machine/kernel, then commit all of internal/machine/kernel/ together."
}

fetch_deb() {
	deb=$work/${package}_${version}_all.deb
	if [ ! -f "$deb" ]; then
		mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial"
		url=$(mirror)
		echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $url $suite main" >"$work/apt/sources.list"
		own_apt apt-get update -qq || die "cannot reach $suite on this machine's Debian mirror"
		(cd "$work" && own_apt apt-get download -qq "$package=$version") || gone
	fi
	echo "$deb"
}

# Puts the source tarball at $tarball: from WORK, from the installed package, or out of the .deb. All by hash.
fetch_tarball() {
	installed=/usr/src/$package.tar.xz
	if [ ! -f "$tarball" ] && [ -f $installed ] && [ "$(sha256 $installed)" = $tar_sha256 ]; then
		ln -s $installed "$tarball"
	fi
	if [ ! -f "$tarball" ]; then
		deb=${LINUX_SOURCE_DEB:-}
		[ -n "$deb" ] || deb=$(fetch_deb)
		[ "$(sha256 "$deb")" = $deb_sha256 ] || die "$deb is not the pinned package: want sha256 $deb_sha256"
		dpkg-deb --fsys-tarfile "$deb" | tar -xO -f - ./usr/src/$package.tar.xz >"$tarball.part"
		mv "$tarball.part" "$tarball"
	fi
	[ "$(sha256 "$tarball")" = $tar_sha256 ] || die "$tarball has the wrong sha256: want $tar_sha256"
}

# The stamp names tarball and patches, so that a change of any starts from a fresh tree.
unpack() {
	stamp=$work/$package/.unpacked.$( (cd "$here" && cat "$tarball" $patches) | sha256sum | cut -c1-16)
	[ -f "$stamp" ] && return
	rm -rf "${work:?}/$package"
	tar -xJ -f "$tarball" -C "$work"
	for patch in $patches; do
		patch -s -p1 -d "$work/$package" <"$here/$patch" || die "$patch does not fit $version"
	done
	touch "$stamp"
}

kernel_make() {
	make -s -C "$work/$package" O="$build" ARCH=$arch CROSS_COMPILE=$triplet- KCFLAGS=$flags "$@"
}

# Kconfig drops lines it cannot honour without a word; we do not.
configure() {
	mkdir -p "$build"
	(cd "$here" && cat $configs) >"$build/fragment"
	kernel_make KCONFIG_ALLCONFIG="$build/fragment" allnoconfig
	lost=$(grep '^CONFIG_' "$build/fragment" | grep -vxF -f "$build/.config" || true)
	[ -z "$lost" ] || die "Kconfig did not honour these lines of $configs:
$lost"
}

# Everything that would otherwise differ from one machine, user or day to the next.
reproducible() {
	export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
	export KBUILD_BUILD_TIMESTAMP="$(date -u -d "@$SOURCE_DATE_EPOCH" '+%a %b %e %H:%M:%S UTC %Y')"
	export KBUILD_BUILD_USER=agentvm KBUILD_BUILD_HOST=agentvm KBUILD_BUILD_VERSION=1
	unset KCFLAGS KCPPFLAGS KAFLAGS LOCALVERSION KCONFIG_CONFIG MAKEFLAGS
	umask 022
}

# "name": "version" of each Debian package that has a hand in the bytes.
toolchain() {
	dpkg-query -W -f '    "${Package}": "${Version}",\n' gcc-12-$triplet binutils-$triplet \
		make bison flex zstd | sed '$s/,$//'
}

inputs() {
	for file in $configs build.sh $patches; do
		echo "    \"$file\": \"$(sha256 "$here/$file")\","
	done | sed '$s/,$//'
}

provenance() {
	cat <<EOF
{
  "artifact": "$architecture.zst",
  "licence": "GPL-2.0-only WITH Linux-syscall-note",
  "release": "$(cat "$build/include/config/kernel.release")",
  "command": "internal/machine/kernel/build.sh $architecture",
  "source": {
    "package": "$package",
    "version": "$version",
    "archive": "$suite",
    "deb_sha256": "$deb_sha256",
    "tarball_sha256": "$tar_sha256"
  },
  "inputs": {
$(inputs)
  },
  "image": {
    "raw_sha256": "$(sha256 "$build/Image")",
    "raw_bytes": $(stat -c %s "$build/Image"),
    "zstd_sha256": "$(sha256 "$build/Image.zst")",
    "zstd_bytes": $(stat -c %s "$build/Image.zst")
  },
  "toolchain": {
$(toolchain)
  }
}
EOF
}

require_tools
reproducible
fetch_tarball
unpack
configure
kernel_make -j"${JOBS:-2}" Image
cp "$build/arch/$arch/boot/Image" "$build/Image"
zstd -19 --single-thread -q -f "$build/Image" -o "$build/Image.zst"
provenance >"$build/provenance.json"
install -m 644 "$build/Image.zst" "$out/$architecture.zst"
install -m 644 "$build/provenance.json" "$out/$architecture.json"
echo "$out/$architecture.zst: $(stat -c %s "$out/$architecture.zst") bytes, from $build/Image, $(stat -c %s "$build/Image") bytes"

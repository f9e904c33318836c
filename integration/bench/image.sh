#!/bin/sh
# Makes an image of Debian with Python for riscv64, about 300 MB in three layers, as an archive in the OCI layout, for
# integration/bench -image.
#
#   integration/bench/image.sh FILE [SUITE]     SUITE: of Debian, default sid
#
# Needs apt and dpkg-deb of any architecture, umoci, and not root.
set -eu
file=$(realpath "$1")
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian ${2:-sid} main" >"$work/sources.list"
own() {
	apt-get -qq -o Dir::State="$work" -o Dir::State::status="$work/status" -o Dir::Cache="$work/cache" -o Dir::Etc::SourceList="$work/sources.list" \
		-o Dir::Etc::SourceParts=/dev/null -o APT::Architecture=riscv64 -o APT::Architectures=riscv64 -o APT::Sandbox::User= \
		-o Acquire::Languages=none -o Acquire::CompressionTypes::Order::=gz -o APT::Install-Recommends=false -o Debug::NoLocking=true "$@"
}
cd "$work"
: >status
own update
umoci init --layout image
umoci new --image image:latest
umoci config --image image:latest --architecture riscv64 --os linux --config.cmd /usr/bin/python3
n=0
# A layer of Debian's essential packages, one of Python, and one of what programs bring with them.
for packages in "base-files bash coreutils dash diffutils findutils grep gzip hostname login sed tar util-linux apt ca-certificates" "python3 python3-pip python3-venv" "python3-numpy python3-pil python3-cryptography git curl"; do
	n=$((n + 1))
	own install -y -d $packages
	mkdir layer$n
	for package in cache/archives/*.deb; do
		dpkg-deb --fsys-tarfile "$package" | tar -x --no-same-owner --keep-directory-symlink -C layer$n
		dpkg-deb -f "$package" | sed '/^Description/,$d' >>status
		printf 'Status: install ok installed\nDescription: x\n\n' >>status
	done
	rm cache/archives/*.deb
	if [ $n = 1 ]; then
		for name in bin lib sbin; do
			[ -e layer1/$name ] || ln -sn usr/$name layer1/$name
		done
	fi
	umoci insert --rootless --image image:latest layer$n /
done
du -sm layer*
tar -cf "$file" -C image .

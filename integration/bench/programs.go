//go:build linux

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"agentvm/images"
	"agentvm/internal/host/platform"
)

// debianProgram is a workload of Debian's programs. bar is for the ratio to QEMU's processor time when the translating guest has run it before, first
// for its first run there; native is for the ratio to that of the host's own.
type debianProgram struct {
	name, line string
	bar, first bar
	native     float64
}

const (
	pythonLoop = "s = 0\nfor i in range(3000000): s += i & 7\nprint(s)"
	sqliteLoad = "create table t(a integer primary key, b text); begin;\n" +
		"with recursive n(i) as (select 1 union all select i + 1 from n where i < 50000) insert into t select i, 'row ' || (i * 7919 % 50000) from n;\n" +
		"commit; create index x on t(b); select count(*), sum(a), max(b) from t where b like 'row 1%'; select b, count(*) from t group by b order by b limit 3;"
	gitLoad = "rm -rf r c; mkdir r; cd r; git init -q .; export GIT_AUTHOR_DATE='2026-01-01T00:00:00Z' GIT_COMMITTER_DATE='2026-01-01T00:00:00Z'; git config user.name a; git config user.email a@b; " +
		"for i in $(seq 150); do seq $i 400 >f$i; done; git add .; git commit -qm one; for i in $(seq 50); do echo $i >>f$i; done; git commit -qam two; " +
		"git clone -q . ../c; git fsck 2>&1 | tail -n 1; git log --format=%%h; git diff HEAD~1 | wc -l"
	perlLoop = "my %h; for my $i (1..300000) { $h{$i % 1000} .= chr(65 + $i % 26) if $i % 3; } my $n = 0; $n += () = /AB?C/g for values %h; print \"$n\\n\""
	rubyLoop = "h = Hash.new(0); 400_000.times { |i| h[(i * 7919) % 1009] += i }; puts h.values.max"
	nodeLoop = "const m = new Map(); let s = 0; for (let i = 0; i < 3e6; i++) { const k = (i * 7919) % 1009; m.set(k, (m.get(k) || 0) + i); s += i & 7 } console.log(s, m.size)"
	luaLoop  = "local s, t = 0, {} for i = 1, 3000000 do s = s + i % 7; t[i % 100] = s end print(s, #t)"
)

var programs = []debianProgram{
	{"python", "python3 -c '" + pythonLoop + "'", atMost(0.8), atMost(1), 9},
	{"compileall", "rm -rf a; cp -r /usr/lib/python3*/asyncio a; python3 -m compileall -q -f a; ls a/__pycache__ | wc -l", atMost(0.8), atMost(1), 12},
	{"sqlite", "rm -f db; sqlite3 db \"$(cat load.sql)\"", atMost(0.8), atMost(1), 12},
	{"gcc", "gcc -O1 -c source.c -o source.o && size source.o | tail -n 1", atMost(0.9), atMost(1.1), 10},
	{"git", strings.ReplaceAll(gitLoad, "%%", "%"), atMost(0.8), atMost(1), 6},
	{"perl", "perl -e '" + perlLoop + "'", atMost(0.8), atMost(1), 12},
	{"ruby", "ruby -e '" + rubyLoop + "'", atMost(0.8), atMost(1), 12},
	{"go", "./words", atMost(0.8), bar{}, 12},
	{"node", "node -e '" + nodeLoop + "'", atMost(0.8), atMost(1), 9},
	{"lua", "lua5.4 -e '" + luaLoop + "'", atMost(0.5), bar{}, 12},
	{"sh", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo $i", atMost(0.9), bar{}, 12},
	{"sha256", "head -c 64M /dev/zero | sha256sum", atMost(0.6), bar{}, 0},
	{"gzip", "seq 2000000 | gzip | wc -c", atMost(0.6), bar{}, 12},
	{"fork", "i=0; while [ $i -lt 200 ]; do /bin/true; i=$((i+1)); done; echo $i", atMost(0.25), bar{}, 12},
	{"find", "for i in $(seq 5); do find / -xdev | wc -l; done | tail -n 1 | sed 's/.*/done/'", atMost(0.4), bar{}, 7},
	{"short", "for i in $(seq 16); do python3 -c 'print(6 * 7)'; done | sort -u", bar{}, bar{}, 12},
}

// programMemory is that of the guests, in MiB.
const programMemory = 1024

// measurePrograms runs programs as Debian has built them, on the same kernel and root, in guests whose code is translated, interpreted, and
// emulated by QEMU.
func measurePrograms(ctx context.Context, b *bench) error {
	if b.programs == "" {
		return &missingTool{"-programs FILE", "make debian-image makes it"}
	}
	k, err := b.kit.forArchive(ctx, platform.RISCV64, b.programs, programMemory)
	if err != nil {
		return err
	}
	files, hostFiles, err := programFiles(k)
	if err != nil {
		return err
	}
	theirs, err := k.startQEMU(ctx, nil)
	if err != nil {
		return err
	}
	defer theirs.close()
	interpreting, err := k.startMode(ctx, "nojit")
	if err != nil {
		return err
	}
	defer interpreting.close()
	translating, err := k.startMode(ctx, "")
	if err != nil {
		return err
	}
	defer translating.close()
	var native *nativeHost
	if b.native != "" {
		if native, err = k.startNative(ctx, b.native, hostFiles); err != nil {
			return err
		}
	}
	sides := []side{{"translated", translating, costs{}}, {"interpreted", interpreting, costs{}}, {"qemu", theirs, costs{}}}
	for i := range sides {
		for name, content := range files {
			if err := sides[i].guest.put(ctx, "/root/"+name, content); err != nil {
				return fmt.Errorf("bring %s to %s: %w", name, sides[i].name, err)
			}
		}
	}
	var ratios, firsts, natives, nativeFirsts samples
	for _, p := range programs {
		if !b.measures(p.name) {
			continue
		}
		ratio, first, err := b.compareProgram(ctx, sides, p)
		if err != nil {
			return err
		}
		ratios, firsts = append(ratios, ratio), append(firsts, first)
		if native != nil {
			warm, first, err := b.compareNative(ctx, native, sides[0].costs.cpu, p)
			if err != nil {
				return err
			}
			natives, nativeFirsts = append(natives, warm), append(nativeFirsts, first)
		}
	}
	b.report.add(figure{name: "geometric mean of the programs, translated", unit: "times QEMU's", value: geometricMean(ratios), spread: ratios, bar: atMost(0.8)})
	b.report.add(figure{name: "geometric mean of their first runs", unit: "times QEMU's", value: geometricMean(firsts), spread: firsts})
	if native != nil {
		b.report.add(figure{name: "geometric mean of the programs, translated", unit: "times native", value: geometricMean(natives), spread: natives, bar: atMost(6)})
		b.report.add(figure{name: "geometric mean of their first runs", unit: "times native", value: geometricMean(nativeFirsts), spread: nativeFirsts, bar: atMost(7.5)})
	}
	return nil
}

// compareProgram returns the ratios of processor times to QEMU's: of the median of runs, and of the first run. The interpreter runs it once.
func (b *bench) compareProgram(ctx context.Context, sides []side, p debianProgram) (ratio, first float64, err error) {
	line := "cd /root; export HOME=/root; " + p.line
	for i := range sides {
		sides[i].costs = costs{}
	}
	want := ""
	rounds := b.rounds(4) + 1
	for round := range rounds {
		for i := len(sides) - 1; i >= 0; i-- { // QEMU first: it says what is right
			if sides[i].name == "interpreted" && round != 1 {
				continue
			}
			if want == "" {
				if _, want, err = once(ctx, sides[i].guest, line); err != nil {
					return 0, 0, fmt.Errorf("%s on %s: %w", p.name, sides[i].name, err)
				}
				continue
			}
			if err := sides[i].run(ctx, b, "programs/"+p.name, line, want); err != nil {
				return 0, 0, fmt.Errorf("%s on %s: %w", p.name, sides[i].name, err)
			}
		}
	}
	ours, interpreter, qemu := sides[0].costs.cpu, sides[1].costs.cpu, sides[2].costs.cpu
	first, warm := ours[0]/qemu.median(), ours[1:].over(qemu)
	b.report.add(figure{name: p.name + ", translated", unit: "times QEMU's", value: warm.median(), spread: warm, bar: p.bar})
	b.report.add(figure{name: p.name + ", first run", unit: "times QEMU's", value: first, bar: p.first})
	b.report.add(figure{name: p.name + ", interpreted", unit: "times QEMU's", value: interpreter.median() / qemu.median()})
	return warm.median(), first, nil
}

// compareNative returns the ratios of processor times to the host's: of the median of runs, and of the first run. The host's runs follow those of the
// guests at once.
func (b *bench) compareNative(ctx context.Context, native *nativeHost, ours samples, p debianProgram) (ratio, first float64, err error) {
	var host costs
	for range b.rounds(4) + 1 {
		took, _, err := native.run(ctx, "cd /root; "+p.line)
		if err != nil {
			return 0, 0, err
		}
		host.add(took)
	}
	theirs := host.cpu[1:].median()
	ratio, first = ours[1:].median()/theirs, ours[0]/theirs
	limit := bar{}
	if p.native != 0 {
		limit = atMost(p.native)
	}
	b.report.add(figure{name: p.name + ", translated", unit: "times native", value: ratio, spread: ours[1:].over(host.cpu[1:]), bar: limit})
	b.report.add(figure{name: p.name + ", first run", unit: "times native", value: first})
	return ratio, first, nil
}

// forArchive is a kit with the image of an archive.
func (k *kit) forArchive(ctx context.Context, architecture platform.Architecture, archive string, memory int) (*kit, error) {
	own := &kit{dir: k.path("archive"), root: k.root, memory: memory, architecture: architecture}
	own.store = own.path("store")
	if err := os.MkdirAll(own.store, 0o700); err != nil {
		return nil, err
	}
	store, err := images.Open(own.store)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(archive)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if own.image, err = store.For(architecture).Import(ctx, "archive", f); err != nil {
		return nil, err
	}
	return own, own.writeBootFiles()
}

// programFiles are what the programs read, and a program of Go's, of the guest and of the host.
func programFiles(k *kit) (guest, host map[string][]byte, err error) {
	guest = map[string][]byte{"load.sql": []byte(sqliteLoad), "source.c": []byte(cSource(120))}
	host = maps.Clone(guest)
	for arch, files := range map[string]map[string][]byte{"riscv64": guest, runtime.GOARCH: host} {
		build := exec.Command("go", "build", "-trimpath", "-o", k.path("words"), "./integration/bench/words")
		build.Dir = k.root
		build.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0")
		if _, err := output(build); err != nil {
			return nil, nil, err
		}
		if files["words"], err = os.ReadFile(k.path("words")); err != nil {
			return nil, nil, err
		}
	}
	return guest, host, nil
}

// cSource is a program in C with some thirteen lines a function.
func cSource(functions int) string {
	var s strings.Builder
	s.WriteString("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\nstruct node { struct node *left, *right; long key; char name[32]; };\n")
	for i := range functions {
		fmt.Fprintf(&s, `static long work%[1]d(struct node **at, long n)
{
	long sum = %[1]d;
	for (long i = 0; i < n; i++) {
		struct node **p = at;
		while (*p != NULL && (*p)->key != i) {
			sum += (*p)->key ^ %[2]d;
			p = (*p)->key < i ? &(*p)->right : &(*p)->left;
		}
		if (*p == NULL && (*p = calloc(1, sizeof **p)) != NULL) {
			(*p)->key = i * %[3]d %% 97;
			snprintf((*p)->name, sizeof (*p)->name, "n%%ld", i);
		}
		switch (sum & 7) {
		case 1: sum += strlen((*p)->name); break;
		case 3: sum -= i << (sum & 15); break;
		case 5: sum ^= (long)(*p)->name[i %% 8] * %[2]d; break;
		default: sum += (double)sum / (i + 1.5) > %[3]d;
		}
	}
	return sum;
}
`, i, i*37+11, i*13+5)
	}
	s.WriteString("int main(void)\n{\n	struct node *root = NULL;\n	long sum = 0;\n")
	for i := range functions {
		fmt.Fprintf(&s, "	sum += work%d(&root, %d);\n", i, i%17+3)
	}
	s.WriteString("	printf(\"%ld\\n\", sum);\n	return 0;\n}\n")
	return s.String()
}

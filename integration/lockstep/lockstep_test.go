//go:build linux

// Package lockstep runs Debian's programs in two machines side by side, one interpreted and one translated: `make lockstep`.
package lockstep

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentvm/images"
	"agentvm/images/imagestest"
	"agentvm/internal/host/platform"
	"agentvm/internal/machine"
	"agentvm/internal/machine/initramfs"
	"agentvm/internal/machine/kernel"
	"agentvm/wasi"
)

// imageVariable names the archive that make debian-image has made.
const imageVariable = "AGENTVM_LOCKSTEP_IMAGE"

const initProgram = `#!/bin/busybox ash
bb=/bin/busybox
$bb mount -t devtmpfs dev /dev
exec </dev/null >/dev/hvc0 2>&1
$bb mount -t erofs -o ro /dev/vda /root
$bb mount -t proc proc /root/proc
$bb mount -t devtmpfs dev /root/dev
$bb mount -t tmpfs tmp /root/tmp
$bb cp /work /words /root/tmp/
exec $bb chroot /root /bin/sh /tmp/work
`

// work is what the guest does without end. Each program says that it is done.
const work = `cd /tmp
export HOME=/tmp PATH=/usr/local/bin:/usr/bin:/bin
round=0
while :; do
	round=$((round+1))
	python3 -c 'import json, re, hashlib
s = 0.0
for i in range(5000): s += (i & 7) / 3
d = {str(i): i * s for i in range(500)}
print(hashlib.sha256(json.dumps(d).encode()).hexdigest()[:8], len(re.findall("1.*?2", json.dumps(d))))'
	echo "python $round"
	i=0; while [ $i -lt 12 ]; do echo "double f$i(double a, int n) { double s = 0; for (int i = 0; i < n; i++) s += a * i / (i + $i); return s; }"; i=$((i+1)); done >source.c
	gcc -O1 -c source.c -o source.o && size source.o | tail -n 1
	echo "gcc $round"
	./words
	echo "go $round"
	node -e 'const m = new Map(); let s = 0; for (let i = 0; i < 50000; i++) { const k = (i * 7919) % 1009; m.set(k, (m.get(k) || 0) + i / 3); s += i & 7 } console.log(s, m.size, m.get(5))'
	echo "node $round"
	sqlite3 :memory: 'with recursive n(i) as (select 1 union all select i + 1 from n where i < 1000) select count(*), sum(i * 1.5), max(i * 7919 % 4000) from n;'
	perl -e 'my %h; for my $i (1..5000) { $h{$i % 100} .= chr(65 + $i % 26) } my $n = 0; $n += () = /AB?C/g for values %h; print "$n\n"'
	seq 5000 | gzip | sha256sum
	echo "others $round"
done
`

// TestPrograms: boot, Python, gcc, node, whose compiler writes code, a Go program and others, interpreted and translated: the same in every
// register after each slice, and in every byte of RAM after some. Slices have random lengths, and there is room for so little code that it
// is forgotten many times. AGENTVM_LOCKSTEP is how many million instructions, AGENTVM_FUZZ_SEED chooses the lengths.
func TestPrograms(t *testing.T) {
	archive := os.Getenv(imageVariable)
	if archive == "" {
		t.Skip(imageVariable + " names no archive: make lockstep")
	}
	millions, seed := setting(t, "AGENTVM_LOCKSTEP", 4000), setting(t, "AGENTVM_FUZZ_SEED", 1)
	root := rootDisk(t, archive)
	initramfs := bootArchive(t)
	t.Setenv("AGENTVM_DEBUG", "native")
	interpreted := newGuest(t, root, initramfs, machine.ProgramConfig{Translation: machine.TranslateNever})
	translated := newGuest(t, root, initramfs, machine.ProgramConfig{Translation: machine.TranslateHot, CodeBytes: 12 << 20})
	random := rand.New(rand.NewPCG(seed, 16))
	for slice := 0; translated.Retired() < millions*1_000_000; slice++ {
		length := 1 + random.Int64N(3_000_000)
		if random.IntN(4) == 0 {
			length = 1 + random.Int64N(3000)
		}
		for _, g := range []*guest{interpreted, translated} {
			if _, stopped, err := g.Step(length); stopped || err != nil {
				t.Fatalf("behind %d instructions: stopped %t, %v\n%s", g.Retired(), stopped, err, g.said())
			}
		}
		a, errA := interpreted.Registers()
		b, errB := translated.Registers()
		differs := a != b || interpreted.Retired() != translated.Retired() || errors.Join(errA, errB) != nil
		if !differs && slice%64 == 0 {
			differs = interpreted.hash(t) != translated.hash(t)
		}
		if differs {
			t.Fatalf("seed %d, slice %d: %d instructions interpreted, %d translated: %v; interpreted - translated +\n%s", seed, slice, interpreted.Retired(), translated.Retired(),
				errors.Join(errA, errB), cmp.Diff(a, b))
		}
		if slice%200 == 0 {
			t.Logf("%d million instructions, last line %q", translated.Retired()/1_000_000, translated.lastLine())
		}
	}
	if interpreted.hash(t) != translated.hash(t) || interpreted.said() != translated.said() {
		t.Errorf("RAM or output differ after %d instructions", translated.Retired())
	}
	s := translated.JITStats()
	t.Logf("%d instructions, %+v\n%s", translated.Retired(), s, translated.said())
	if s.Native == 0 || s.Executed < translated.Retired()/2 {
		t.Errorf("%d of %d instructions were translated ones, in %d bytes of native code", s.Executed, translated.Retired(), s.Native)
	}
	if millions >= 4000 {
		for _, program := range []string{"python 1", "gcc 1", "go 1", "node 1"} {
			if !strings.Contains(translated.said(), program) {
				t.Errorf("it has not come to %q", program)
			}
		}
		if s.Evicted == 0 {
			t.Error("no code was ever forgotten")
		}
	}
}

// guest is a machine and what it has written.
type guest struct {
	*machine.Machine
	output *console
}

// console keeps what its machine writes.
type console struct {
	*wasi.Stream
	written bytes.Buffer
}

func (c *console) Write(p []byte) (int, wasi.Errno) {
	n, _ := c.written.Write(p)
	return n, wasi.ErrnoSuccess
}

func (g *guest) said() string { return g.output.written.String() }

func (g *guest) lastLine() string {
	lines := strings.Split(strings.TrimSpace(g.said()), "\n")
	return lines[len(lines)-1]
}

func (g *guest) hash(t *testing.T) [32]byte {
	t.Helper()
	h, err := g.Hash()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func newGuest(t *testing.T, root *images.RootDisk, initramfs []byte, cfg machine.ProgramConfig) *guest {
	t.Helper()
	p, err := machine.NewProgram(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close(context.Background()) })
	output := &console{Stream: wasi.NewStream(1)}
	disk := io.NewSectionReader(root, 0, root.Size())
	m, err := p.NewMachine(t.Context(), machine.Config{
		Memory: 512 << 20, Deterministic: true, Rand: zeros{}, Console: output, Disks: []machine.Disk{{File: wasi.NewDisk(disk, disk.Size(), true), ReadOnly: true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	image, err := kernel.Image(platform.RISCV64)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.LoadLinux(machine.Linux{Kernel: image, Initramfs: initramfs, CommandLine: "console=hvc0 quiet panic=-1"}); err != nil {
		t.Fatal(err)
	}
	return &guest{m, output}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func setting(t *testing.T, variable string, otherwise uint64) uint64 {
	t.Helper()
	value := os.Getenv(variable)
	if value == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

func rootDisk(t *testing.T, archive string) *images.RootDisk {
	t.Helper()
	store, err := images.Config{Dir: t.TempDir()}.Open()
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	image, err := store.Import(t.Context(), "debian", file)
	if err != nil {
		t.Fatal(err)
	}
	root, err := store.OpenRootDisk(image)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root
}

// bootArchive is an initramfs of BusyBox, a Go program, and what they are to do.
func bootArchive(t *testing.T) []byte {
	t.Helper()
	words := filepath.Join(t.TempDir(), "words")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", words, "../bench/words")
	build.Env = append(os.Environ(), "GOOS=linux", "GOARCH=riscv64", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	program, err := os.ReadFile(words)
	if err != nil {
		t.Fatal(err)
	}
	return initramfs.Archive(
		initramfs.Directory("dev"), initramfs.Directory("root"), initramfs.Directory("bin"), initramfs.Device("dev/console", 0o600, 5, 1),
		initramfs.Program("bin/busybox", imagestest.Busybox(t, platform.RISCV64)), initramfs.Program("words", program),
		initramfs.Program("work", []byte(work)), initramfs.Program("init", []byte(initProgram)),
	)
}

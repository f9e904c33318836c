package machine_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/images/imagestest"
	"agentvm/internal/host/platform"
	"agentvm/internal/machine"
	"agentvm/internal/machine/kernel"
)

// busyboxWork is a guest's /init: a shell, and the programs that shells run, again and again.
const busyboxWork = `#!/bin/busybox ash
bb=/bin/busybox
$bb mkdir -p /dev /proc /tmp
$bb mount -t devtmpfs dev /dev
$bb mount -t proc proc /proc
exec </dev/null >/dev/hvc0 2>&1
echo ready
round=0
while :; do
	round=$((round+1)) i=0
	while [ $i -lt 150 ]; do i=$((i+1)); done
	$bb seq 1 3000 >/tmp/numbers
	$bb sha256sum /tmp/numbers >/tmp/sums
	$bb gzip -c /tmp/numbers | $bb gunzip | $bb md5sum >>/tmp/sums
	$bb sort -r /tmp/numbers | $bb sed 's/1\(.\)/x\1/' | $bb awk '{ s += $1 / 3; n[$1 % 7]++ } END { print s, n[3] }' >>/tmp/sums
	i=0; while [ $i -lt 5 ]; do $bb true; i=$((i+1)); done
	$bb tar c /tmp | $bb tar t >>/tmp/sums
	$bb find /proc/1 -maxdepth 1 | $bb grep -c '^/proc/.*s' >>/tmp/sums
	f() { [ $1 -eq 0 ] || { local n=$1; f $((n-1)); }; }
	f 40
	case $round in 1|2|3) echo "round $round";; esac
done
`

// TestTranslatedLockstepBusybox runs a shell and what it starts from power-on, interpreted and translated side by side: the same in
// every register and every byte of RAM after each slice. The slices' lengths are no multiples of anything. AGENTVM_LOCKSTEP says for how
// many million instructions.
func TestTranslatedLockstepBusybox(t *testing.T) {
	t.Parallel()
	for _, architecture := range platform.Supported() {
		t.Run(string(architecture), func(t *testing.T) { lockstepBusybox(t, architecture) })
	}
}

func lockstepBusybox(t *testing.T, architecture platform.Architecture) {
	const slice = 1_300_021
	if !machine.TranslatesByDefault(architecture) {
		t.Skip("is interpreted here")
	}
	millions := fuzzSetting(t, "AGENTVM_LOCKSTEP", 130)
	initramfs := busyboxInitramfs(t, architecture)
	program := func(translation machine.Translation) *machine.Program {
		return programThat(t, machine.ProgramConfig{Architecture: architecture, Translation: translation})
	}
	interpreted := busyboxGuest(t, architecture, program(machine.TranslateNever), initramfs)
	translated := busyboxGuest(t, architecture, program(machine.TranslateHot), initramfs)
	for translated.Retired() < millions*1_000_000 {
		for _, w := range []*worker{interpreted, translated} {
			if _, stopped, err := w.Step(slice); stopped || err != nil {
				t.Fatalf("behind %d instructions: stopped %t, %v", w.Retired(), stopped, err)
			}
		}
		if interpreted.hash() != translated.hash() {
			a, _ := interpreted.Registers()
			b, _ := translated.Registers()
			t.Fatalf("%d instructions interpreted, %d translated; interpreted - translated +\n%s", interpreted.Retired(), translated.Retired(), cmp.Diff(a, b))
		}
	}
	if millions >= 130 { // all of what it does was done
		translated.said("round 1")
	}
	s := translated.JITStats()
	t.Logf("%d instructions, %+v", translated.Retired(), s)
	if s.Executed < translated.Retired()/4 {
		t.Errorf("%d of %d instructions were translated ones", s.Executed, translated.Retired())
	}
}

// said waits for a line that the guest has written to its console.
func (w *worker) said(want string) {
	w.Helper()
	timeout := time.After(time.Minute)
	for line := ""; line != want; {
		select {
		case line = <-w.lines:
		case <-timeout:
			w.Fatalf("the guest has not said %q after %d instructions", want, w.Retired())
		}
	}
}

// busyboxGuest is a guest at power-on that does busyboxWork.
func busyboxGuest(t *testing.T, architecture platform.Architecture, p *machine.Program, initramfs []byte) *worker {
	t.Helper()
	image, err := kernel.Image(architecture)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorker(t)
	w.attach(p.NewMachine(t.Context(), machine.Config{Memory: 64 << 20, Deterministic: true, Rand: zeros{}, Console: w.console}))
	if err := w.LoadLinux(machine.Linux{Kernel: image, Initramfs: initramfs, CommandLine: "console=hvc0 quiet panic=-1"}); err != nil {
		t.Fatal(err)
	}
	return w
}

func busyboxInitramfs(t *testing.T, architecture platform.Architecture) []byte {
	t.Helper()
	var archive bytes.Buffer
	addToArchive(&archive, "dev", 0o040755, nil)
	addToArchive(&archive, "bin", 0o040755, nil)
	addToArchive(&archive, "bin/busybox", 0o100755, imagestest.Busybox(t, architecture))
	addToArchive(&archive, "init", 0o100755, []byte(busyboxWork))
	addToArchive(&archive, "TRAILER!!!", 0, nil)
	return archive.Bytes()
}

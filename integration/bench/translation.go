//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// translated are the workloads of translated code. Each side is a guest that has done the same before: what is compared is warm.
// bar is for the ratio to QEMU's processor time; gain for how many times the interpreter's speed translated code must have.
var translated = []struct {
	name, figure string
	line         string
	full, quick  int
	bar, gain    bar
}{
	{"ash", "busybox ash, 100,000 increments", "i=0; while [ $i -lt %d ]; do i=$((i+1)); done; echo $i", 100_000, 10_000, atMost(2), atLeast(4)},
	{"sha256", "sha256sum of 64 MiB", "dd if=/dev/zero bs=1M count=%d 2>/dev/null | sha256sum", 64, 4, atMost(2), atLeast(4)},
	{"gzip", "gzip of 32 MiB of numbers", "head -c $((%d<<20)) /tmp/numbers | gzip | wc -c", 32, 1, atMost(2), atLeast(4)},
	{"fork", "200 x fork and exec of /bin/true", "i=0; while [ $i -lt %d ]; do /bin/true; i=$((i+1)); done; echo $i", 200, 40, atMost(0.4), atLeast(1)},
	{"find", "find /", "for i in $(seq %d); do find / -xdev | wc -l; done | tail -n 1 | sed 's/.*/done/'", 10, 2, atMost(1), bar{}},
}

// numbers makes the file that is compressed.
const numbers = "seq 1 4500000 | head -c 33554432 >/tmp/numbers"

// measureTranslation compares translated code with the interpreter and with QEMU, in one process and in turn. All bars of translated
// code: -run '^(cold|translation|commands|network)$'.
func measureTranslation(ctx context.Context, b *bench) error {
	theirs, err := b.kit.startQEMU(ctx, nil)
	if err != nil {
		return err
	}
	defer theirs.close()
	interpreting, err := b.kit.startMode(ctx, "nojit")
	if err != nil {
		return err
	}
	defer interpreting.close()
	translating, err := b.kit.startMode(ctx, "jit")
	if err != nil {
		return err
	}
	defer translating.close()
	sides := []side{{"translated", translating, costs{}}, {"interpreted", interpreting, costs{}}, {"qemu", theirs, costs{}}}
	for i := range sides {
		if _, err := sides[i].guest.sh(ctx, numbers); err != nil {
			return err
		}
	}
	for _, w := range translated {
		n := w.full
		if b.quick {
			n = w.quick
		}
		if err := b.compareTranslated(ctx, sides, w.name, fmt.Sprintf(w.line, n)); err != nil {
			return err
		}
		ours, interpreter, qemu := sides[0].costs.cpu, sides[1].costs.cpu, sides[2].costs.cpu
		ratio, gain, before := ours.over(qemu), interpreter.over(ours), interpreter.over(qemu)
		b.report.add(figure{name: w.figure + ", translated, processor time", unit: "times QEMU's", value: ratio.median(), spread: ratio, bar: w.bar})
		b.report.add(figure{name: w.figure + ", interpreted, processor time", unit: "times QEMU's", value: before.median(), spread: before})
		b.report.add(figure{name: w.figure + ", gain from translation", unit: "times", value: gain.median(), spread: gain, bar: w.gain})
	}
	return nil
}

// warmUpRounds are what the translating guest runs before it is measured, all in all several seconds of its time.
const warmUpRounds = 4

func (b *bench) compareTranslated(ctx context.Context, sides []side, name, line string) error {
	var want string
	for i := range warmUpRounds {
		took, out, err := once(ctx, sides[0].guest, line)
		if err != nil {
			return fmt.Errorf("%s, round %d: %w", name, i, err)
		}
		b.report.cost("Warming/"+name, took)
		want = out
	}
	for i := range sides {
		sides[i].costs = costs{}
	}
	for range b.rounds(3) {
		for i := range sides {
			if err := sides[i].run(ctx, b, "translation/"+name, line, want); err != nil {
				return fmt.Errorf("%s on %s: %w", name, sides[i].name, err)
			}
		}
	}
	return nil
}

func once(ctx context.Context, g guest, line string) (took cost, out string, err error) {
	took, err = timed(g.pid(), func() (err error) {
		out, err = g.sh(ctx, line)
		return err
	})
	return took, out, err
}

// startMode starts a guest in this process whose code is translated or not, by a word of AGENTVM_DEBUG. Programs are shared by the
// name of their store, so each word has one of its own.
func (k *kit) startMode(ctx context.Context, word string) (*ownGuest, error) {
	store, err := k.storeFor(word)
	if err != nil {
		return nil, err
	}
	before, set := os.LookupEnv("AGENTVM_DEBUG")
	if err := os.Setenv("AGENTVM_DEBUG", word); err != nil {
		return nil, err
	}
	defer func() {
		if _ = os.Unsetenv("AGENTVM_DEBUG"); set {
			_ = os.Setenv("AGENTVM_DEBUG", before)
		}
	}()
	config := k.config()
	config.StoreDir = store
	return startOwn(ctx, config)
}

// storeFor is the store of guests with a word: a base keeps decoded code, which counts its jumps only where it may be translated.
func (k *kit) storeFor(word string) (string, error) {
	store := k.path("store-" + word)
	if _, err := os.Stat(store); !errors.Is(err, os.ErrNotExist) {
		return store, err
	}
	return store, os.CopyFS(store, os.DirFS(k.store))
}

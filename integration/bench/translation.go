//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
)

// translatedLoad is a workload of translated code. Each side is a guest that has done the same before: what is compared is warm.
// bar is for the ratio to QEMU's processor time; gain for how many times the interpreter's speed translated code must have.
type translatedLoad struct {
	name, figure string
	line         string
	full, quick  int
	slow         bool // for the interpreter, which runs it once, where it takes as long as all the rest
	bar, gain    bar
}

var translated = []translatedLoad{
	{"ash", "busybox ash, 100,000 increments", "i=0; while [ $i -lt %d ]; do i=$((i+1)); done; echo $i", 100_000, 10_000, true, atMost(2), atLeast(4)},
	{"sha256", "sha256sum of 64 MiB", "dd if=/dev/zero bs=1M count=%d 2>/dev/null | sha256sum", 64, 4, true, atMost(2), atLeast(4)},
	{"gzip", "gzip of 32 MiB of numbers", "head -c $((%d<<20)) /tmp/numbers | gzip | wc -c", 32, 1, true, atMost(2), atLeast(4)},
	{"fork", "200 x fork and exec of /bin/true", "i=0; while [ $i -lt %d ]; do /bin/true; i=$((i+1)); done; echo $i", 200, 40, false, atMost(0.4), atLeast(1)},
	{"find", "find /", "for i in $(seq %d); do find / -xdev | wc -l; done | tail -n 1 | sed 's/.*/done/'", 10, 2, false, atMost(1), bar{}},
}

// numbersFile is what is compressed: it is made here, because seq takes an interpreter longer than gzip does.
const (
	numbersFile  = "/tmp/numbers"
	numbersBytes = 32 << 20
)

func numbers() []byte {
	content := make([]byte, 0, numbersBytes+16)
	for i := int64(1); len(content) < numbersBytes; i++ {
		content = append(strconv.AppendInt(content, i, 10), '\n')
	}
	return content[:numbersBytes]
}

// measureTranslation compares translated code with the interpreter and with QEMU, in one process and in turn. All bars of translated
// code: -run '^(cold|translation|commands|network)$'; one workload: -run '^translation$' -workload gzip.
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
	translating, err := b.kit.startMode(ctx, "")
	if err != nil {
		return err
	}
	defer translating.close()
	sides := []side{{"translated", translating, costs{}}, {"interpreted", interpreting, costs{}}, {"qemu", theirs, costs{}}}
	if b.measures("gzip") {
		content := numbers()
		for i := range sides {
			if err := sides[i].guest.put(ctx, numbersFile, content); err != nil {
				return fmt.Errorf("bring the file of numbers to %s: %w", sides[i].name, err)
			}
		}
	}
	for _, w := range translated {
		if !b.measures(w.name) {
			continue
		}
		if err := b.compareTranslated(ctx, sides, w); err != nil {
			return err
		}
	}
	return nil
}

// warmUpRounds are what the translating guest runs before it is measured, all in all several seconds of its time.
const warmUpRounds = 4

// compareTranslated measures a workload. What is slow for the interpreter runs there once, in the middle of the rounds: its ratios are to
// the two beside it.
func (b *bench) compareTranslated(ctx context.Context, sides []side, w translatedLoad) error {
	n := w.full
	if b.quick {
		n = w.quick
	}
	line := fmt.Sprintf(w.line, n)
	var want string
	for i := range warmUpRounds {
		took, out, err := once(ctx, sides[0].guest, line)
		if err != nil {
			return fmt.Errorf("%s, round %d: %w", w.name, i, err)
		}
		b.report.cost("Warming/"+w.name, took)
		want = out
	}
	for i := range sides {
		sides[i].costs = costs{}
	}
	rounds := b.rounds(4)
	for round := range rounds {
		for i := range sides {
			if w.slow && sides[i].name == "interpreted" && round != rounds/2 {
				continue
			}
			if err := sides[i].run(ctx, b, "translation/"+w.name, line, want); err != nil {
				return fmt.Errorf("%s on %s: %w", w.name, sides[i].name, err)
			}
		}
	}
	b.reportTranslated(w, sides[0].costs.cpu, sides[1].costs.cpu, sides[2].costs.cpu)
	return nil
}

// reportTranslated compares processor times.
func (b *bench) reportTranslated(w translatedLoad, ours, interpreter, qemu samples) {
	ratio, gain, before := ours.over(qemu), interpreter.over(ours), interpreter.over(qemu)
	if w.slow {
		middle, both := len(ours)/2, interpreter.repeat(2) // behind ours of that round, and before QEMU's
		gain, before = both.over(ours[middle:]), both.over(qemu[middle-1:])
	}
	b.report.add(figure{name: w.figure + ", translated, processor time", unit: "times QEMU's", value: ratio.median(), spread: ratio, bar: w.bar})
	b.report.add(figure{name: w.figure + ", interpreted, processor time", unit: "times QEMU's", value: before.median(), spread: before})
	b.report.add(figure{name: w.figure + ", gain from translation", unit: "times", value: gain.median(), spread: gain, bar: w.gain})
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

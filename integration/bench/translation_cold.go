//go:build linux

package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
)

// cold are commands of about two seconds, and a short one, each in a process of its own, which has no translated code yet.
var cold = []struct {
	name, line  string
	full, quick int
	bar         bar
}{
	{"ash", "i=0; while [ $i -lt %d ]; do i=$((i+1)); done; echo $i", 20_000, 2_000, atMost(1.05)},
	{"sha256", "dd if=/dev/zero bs=1M count=%d 2>/dev/null | sha256sum", 4, 1, atMost(1.05)},
	{"gzip", "seq 1 %d | gzip | wc -c", 150_000, 20_000, atMost(1.05)},
	{"find", "for i in $(seq %d); do find / -xdev; done | wc -l", 8, 1, atMost(1.05)},
	{"fork", "i=0; while [ $i -lt %d ]; do /bin/true; i=$((i+1)); done; echo $i", 150, 20, atMost(1.05)},
	{"mixed", "for i in $(seq %d); do seq 1 3000 | sort -r | sed s/1/x/ | awk '{ s += $1 } END { print s }'; tar c /etc | wc -c; done", 6, 1, atMost(1.05)},
	{"true", "true %d", 0, 0, atMost(1.05)},
}

// measureTranslatedCold runs `agentvm exec` with and without translation, in turn.
func measureTranslatedCold(ctx context.Context, b *bench) error {
	if err := b.kit.build(ctx); err != nil {
		return err
	}
	for _, word := range []string{"nojit", ""} {
		for range 2 { // makes the image's disk, the base, and the machine's compiled code
			if _, err := b.kit.run(ctx, word, "true"); err != nil {
				return err
			}
		}
	}
	for _, w := range cold {
		if !b.measures(w.name) {
			continue
		}
		n := w.full
		if b.quick {
			n = w.quick
		}
		rounds := b.rounds(5)
		if w.full == 0 {
			rounds *= 4
		}
		line := fmt.Sprintf(w.line, n)
		var on, off costs
		for range rounds {
			for _, s := range []struct {
				word string
				to   *costs
			}{{"nojit", &off}, {"", &on}} {
				took, err := b.kit.run(ctx, s.word, line)
				if err != nil {
					return fmt.Errorf("%s: %w", w.name, err)
				}
				s.to.add(took)
				b.report.cost("TranslatedCold/"+w.name+"/"+cmp.Or(s.word, "translated"), took)
			}
		}
		cpu, wall := on.cpu.over(off.cpu), on.wall.over(off.wall)
		b.report.add(figure{name: "nothing translated yet, " + w.name + ", processor time", unit: "times the interpreter's", value: cpu.median(), spread: cpu, bar: w.bar})
		b.report.add(figure{name: "nothing translated yet, " + w.name + ", elapsed time", unit: "times the interpreter's", value: wall.median(), spread: wall})
	}
	return nil
}

// run runs a command in a process.
func (k *kit) run(ctx context.Context, word, line string) (took cost, err error) {
	store, err := k.storeFor(word)
	if err != nil {
		return took, err
	}
	c := exec.CommandContext(ctx, k.path("agentvm"), "exec", "-i=false", "--image", k.image.Name, "--memory", fmt.Sprint(memory, "M"), line)
	c.Env = append(os.Environ(), "AGENTVM_STORE="+store, "AGENTVM_DEBUG="+word)
	took, err = timed(os.Getpid(), func() error { _, err := output(c); return err })
	if err == nil {
		took.cpu = c.ProcessState.UserTime() + c.ProcessState.SystemTime()
	}
	return took, err
}

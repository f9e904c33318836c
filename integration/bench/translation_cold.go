//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"agentvm/internal/storage/translations"
)

// cold are commands of about two seconds, and a short one, each in a process of its own.
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

// measureTranslatedCold runs `agentvm exec` without translation, with a store that has no translated code, and with what that process has left there, in turn.
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
		var off, on, kept costs
		for range rounds {
			for _, s := range []struct {
				name, word string
				forget     bool
				to         *costs
			}{{"nojit", "nojit", false, &off}, {"translated", "", true, &on}, {"kept", "", false, &kept}} {
				if s.forget {
					if err := b.kit.forget(s.word); err != nil {
						return err
					}
				}
				took, err := b.kit.run(ctx, s.word, line)
				if err != nil {
					return fmt.Errorf("%s: %w", w.name, err)
				}
				s.to.add(took)
				b.report.cost("TranslatedCold/"+w.name+"/"+s.name, took)
			}
		}
		for _, s := range []struct {
			name string
			of   costs
			bar  bar
		}{{"nothing translated yet", on, w.bar}, {"translated by an earlier process", kept, bar{}}} {
			cpu, wall := s.of.cpu.over(off.cpu), s.of.wall.over(off.wall)
			b.report.add(figure{name: s.name + ", " + w.name + ", processor time", unit: "times the interpreter's", value: cpu.median(), spread: cpu, bar: s.bar})
			b.report.add(figure{name: s.name + ", " + w.name + ", elapsed time", unit: "times the interpreter's", value: wall.median(), spread: wall})
		}
	}
	return nil
}

// forget removes the translated code that processes have left in their store.
func (k *kit) forget(word string) error {
	store, err := k.storeFor(word)
	if err != nil {
		return err
	}
	_, _, err = translations.Prune(filepath.Join(store, translations.Folder), false)
	return err
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

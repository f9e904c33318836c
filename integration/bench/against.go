//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"time"
)

// measureAgainst compares the fixed prices of commands with those of an earlier program, whole processes in turn, each with a store of its own:
//
//	git worktree add ../old COMMIT && (cd ../old && go build -o /tmp/old ./cmd/agentvm)
//	go run ./integration/bench -run '^against$' -old /tmp/old
func measureAgainst(ctx context.Context, b *bench) error {
	if b.old == "" {
		return &missingTool{"-old PROGRAM", "go build of an earlier commit makes PROGRAM"}
	}
	if err := b.kit.build(ctx); err != nil {
		return err
	}
	sides := []installation{{"old", b.old, b.kit.path("against-old")}, {"new", b.kit.path("agentvm"), b.kit.path("against-new")}}
	defer func() {
		for _, s := range sides {
			_ = s.run(context.WithoutCancel(ctx), "rm", "-f", "live", "new", "copy")
		}
	}()
	for _, s := range sides {
		if err := s.prepare(ctx); err != nil {
			return err
		}
	}
	took := make(map[string]map[string]samples)
	for _, s := range sides {
		took[s.name] = make(map[string]samples)
	}
	for i := range b.rounds(50) {
		order := slices.Clone(sides)
		if i%2 == 1 {
			slices.Reverse(order)
		}
		for _, c := range fixedCommands {
			for _, s := range order {
				one, err := s.time(ctx, c.args...)
				if err != nil {
					return err
				}
				took[s.name][c.name] = append(took[s.name][c.name], one)
			}
		}
		for _, s := range sides {
			if err := s.run(ctx, "rm", "-f", "new", "copy"); err != nil {
				return err
			}
		}
	}
	for _, c := range fixedCommands {
		before, now := took["old"][c.name], took["new"][c.name]
		b.report.value("Against/"+c.name+"/old", before.median(), "ms")
		b.report.value("Against/"+c.name+"/new", now.median(), "ms")
		b.report.add(figure{name: fmt.Sprintf("`agentvm %s`, times the earlier program's %.1f ms", c.name, before.median()), unit: "",
			value: now.median() / before.median(), spread: now.over(before), bar: atMost(1.03)})
	}
	return nil
}

// fixedCommands are those whose fixed price users pay often. live is a VM that runs; new and copy are made, and removed after each round.
var fixedCommands = []struct {
	name string
	args []string
}{
	{"exec true", []string{"exec", "--image", "busybox", "true"}},
	{"exec -n NAME true", []string{"exec", "-n", "live", "true"}},
	{"ps", []string{"ps"}},
	{"run IMAGE true", []string{"run", "busybox", "true"}},
	{"start", []string{"start", "-q", "new", "--image", "busybox"}},
	{"fork", []string{"fork", "-q", "live", "copy"}},
}

// installation is a program with a store.
type installation struct{ name, program, store string }

// prepare starts the VM that commands are about, and has everything made that only the first command makes.
func (s installation) prepare(ctx context.Context) error {
	return errors.Join(os.MkdirAll(s.store, 0o700), s.run(ctx, "start", "-q", "live", "--image", "busybox"),
		s.run(ctx, "exec", "-n", "live", "sync"), s.run(ctx, "exec", "--image", "busybox", "true"))
}

// time is how long a command takes, in milliseconds.
func (s installation) time(ctx context.Context, args ...string) (float64, error) {
	start := time.Now()
	err := s.run(ctx, args...)
	return milliseconds(time.Since(start)), err
}

func (s installation) run(ctx context.Context, args ...string) error {
	c := exec.CommandContext(ctx, s.program, args...)
	c.Env = append(os.Environ(), "AGENTVM_STORE="+s.store)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %q: %w: %s", s.program, args, err, out)
	}
	return nil
}

//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"time"
)

// measureFixed measures the fixed prices of commands, whole processes, beside the smallest process that Go makes on this host.
func measureFixed(ctx context.Context, b *bench) error {
	if err := b.kit.build(ctx); err != nil {
		return err
	}
	hello, err := b.kit.buildHello(ctx)
	if err != nil {
		return err
	}
	ours := installation{"new", b.kit.path("agentvm"), b.kit.path("fixed")}
	defer func() { _ = ours.run(context.WithoutCancel(ctx), "rm", "-f", "live", "new", "copy") }()
	if err := ours.prepare(ctx); err != nil {
		return err
	}
	var least samples
	took, between := map[string]samples{}, map[string]samples{}
	for range b.rounds(20) { // as often as a daemon logs that it was saved, see package lograte
		start := time.Now()
		if _, err := output(exec.CommandContext(ctx, hello)); err != nil {
			return err
		}
		least = append(least, milliseconds(time.Since(start)))
		for _, c := range fixedCommands {
			start := time.Now()
			one, err := ours.time(ctx, c.args...)
			if err != nil {
				return err
			}
			took[c.name] = append(took[c.name], one)
			ended := start.Add(time.Duration(one * float64(time.Millisecond)))
			if err := ours.addMoments(between, c.name, start, ended); err != nil {
				return err
			}
		}
		if err := ours.run(ctx, "rm", "-f", "new", "copy"); err != nil {
			return err
		}
	}
	bars := map[string]float64{"exec true": 2.5*least.median() + 18, "exec -n NAME true": 1.5*least.median() + 8, "start": 90, "fork": 60}
	b.report.add(figure{name: "a Go program that prints a line", unit: "ms", value: least.median(), spread: least})
	for _, c := range fixedCommands {
		limit := bar{}
		if most, wanted := bars[c.name]; wanted {
			limit = atMost(most)
		}
		all := took[c.name]
		b.report.add(figure{name: fmt.Sprintf("`agentvm %s`, %.1f times that", c.name, all.median()/least.median()), unit: "ms", value: all.median(), spread: all, bar: limit})
	}
	for _, c := range fixedCommands {
		for _, m := range moments[c.name] {
			all := between[c.name+m.name]
			b.report.add(figure{name: "of `agentvm " + c.name + "`: " + m.name, unit: "ms", value: all.median(), spread: all})
		}
	}
	return ours.measureSteps(ctx, b)
}

// moment is a line in a daemon's log. The last one of a list has no line: it is the end of the command.
type moment struct{ vm, line, name string }

// moments are those between which a command of fixedCommands waits for daemons, in order.
var moments = map[string][]moment{
	"start": {
		{"new", "daemon listens", "until its daemon listens"},
		{"new", "confinement", "until it has what the machine is made of"},
		{"new", "the VM runs", "until the VM runs"},
		{"", "", "to the end"},
	},
	"fork": {
		{"live", "snapshot", "until the VM is saved"},
		{"copy", "daemon listens", "until the fork's daemon listens"},
		{"copy", "confinement", "until it has what the machine is made of"},
		{"copy", "the VM runs", "until the fork runs"},
		{"", "", "to the end"},
	},
}

// addMoments adds how long a command took from moment to moment.
func (s installation) addMoments(between map[string]samples, command string, start, ended time.Time) error {
	began := start
	for _, m := range moments[command] {
		at := ended
		if m.vm != "" {
			log, err := os.ReadFile(filepath.Join(s.store, "vms", m.vm, "daemon.log"))
			if err == nil {
				at, err = lastLine(log, m.line, began)
			}
			if err != nil {
				return fmt.Errorf("when %s came to %q: %w", command, m.name, err)
			}
		}
		between[command+m.name] = append(between[command+m.name], milliseconds(at.Sub(start)))
		start = at
	}
	return nil
}

// lastLine is the time of the last line with this message in a log, of those that were written since a moment: the log of a VM that is forked
// has the lines of the forks before.
func lastLine(log []byte, message string, since time.Time) (last time.Time, err error) {
	since = since.Truncate(time.Millisecond) // as the log's times are
	for _, line := range regexp.MustCompile(`(?m)^time=(\S+) .*msg="?`+regexp.QuoteMeta(message)).FindAllSubmatch(log, -1) {
		at, err := time.Parse(time.RFC3339Nano, string(line[1]))
		if err != nil {
			return last, err
		}
		if !at.Before(since) {
			last = at
		}
	}
	if last.IsZero() {
		err = fmt.Errorf("the log says nothing of %q since %s", message, since.Format(time.RFC3339Nano))
	}
	return last, err
}

// steps are those of `agentvm exec true` from the first to its command's start, one after the other, as AGENTVM_DEBUG=timing names them.
var steps = []string{"got the machine", "made the machine", "connected to the guest", "the guest has started"}

// stepLine is what AGENTVM_DEBUG=timing prints when a step is over.
var stepLine = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`timing: ([a-z ]+) took=(\S+)`) })

// measureSteps measures the steps of a start. What remains of the command's time is the process's own start, its command and its end.
func (s installation) measureSteps(ctx context.Context, b *bench) error {
	took := map[string]samples{}
	for range b.rounds(25) {
		c := exec.CommandContext(ctx, s.program, "exec", "--image", "busybox", "true")
		c.Env = append(os.Environ(), "AGENTVM_STORE="+s.store, "AGENTVM_DEBUG=timing")
		out, err := c.CombinedOutput()
		if err != nil {
			return fmt.Errorf("exec with timings: %w: %s", err, out)
		}
		for _, line := range stepLine().FindAllSubmatch(out, -1) {
			one, err := time.ParseDuration(string(line[2]))
			if err != nil {
				return err
			}
			took[string(line[1])] = append(took[string(line[1])], milliseconds(one))
		}
	}
	for _, step := range steps {
		all := took[step]
		if len(all) == 0 {
			return fmt.Errorf("exec says nothing about the step %q", step)
		}
		b.report.add(figure{name: "of `agentvm exec true`: " + step, unit: "ms", value: all.median(), spread: all})
	}
	return nil
}

// buildHello builds a program that prints a line.
func (k *kit) buildHello(ctx context.Context) (string, error) {
	source, program := k.path("hello.go"), k.path("hello")
	if err := os.WriteFile(source, []byte("package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println(\"hello\") }\n"), 0o600); err != nil {
		return "", err
	}
	_, err := output(exec.CommandContext(ctx, "go", "build", "-o", program, source))
	return program, err
}

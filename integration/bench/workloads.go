//go:build linux

package main

import (
	"context"
	"fmt"
	"strings"
)

// workloads are shell source, cut into parts so that both sides get the same minutes of this host, with a number of things to do. want is what they print for the full and the quick number.
var workloads = []struct {
	name, figure string
	line         string
	full, quick  int
	want         [2]string
	rounds       int
	bar          bar
}{
	{
		"ash", "busybox ash, 4 x 50,000 increments",
		"i=0; while [ $i -lt %d ]; do i=$((i+1)); done; echo $i",
		50_000, 10_000, [2]string{"50000\n", "10000\n"}, 4, atMost(7),
	},
	{
		"sha256", "sha256sum of 4 x 16 MiB through a pipe",
		"dd if=/dev/zero bs=1M count=%d 2>/dev/null | sha256sum",
		16, 4, [2]string{
			"080acf35a507ac9849cfcba47dc2ad83e01b75663a516279c8b9d243b719643e  -\n",
			"bb9f8df61474d25e71fa00722318cd387396ca1736605e1248821cc0de3d3af8  -\n",
		}, 4, atMost(12),
	},
	{
		"fork", "200 x fork and exec of /bin/true",
		"i=0; while [ $i -lt %d ]; do /bin/true; i=$((i+1)); done; echo $i",
		200, 40, [2]string{"200\n", "40\n"}, 7, atMost(0.8),
	},
	{
		"yes", "20 MB from yes through head -c to wc -c",
		"yes | head -c %d | wc -c",
		20_000_000, 5_000_000, [2]string{"20000000\n", "5000000\n"}, 4, atMost(0.7),
	},
	{
		"seq", "seq 1 200000 into wc -l",
		"seq 1 %d | wc -l",
		200_000, 50_000, [2]string{"200000\n", "50000\n"}, 4, bar{},
	},
}

// measureWorkloads runs the same commands in two booted guests, one on agentvm and one on QEMU.
func measureWorkloads(ctx context.Context, b *bench) error {
	theirs, err := b.kit.startQEMU(ctx, nil)
	if err != nil {
		return err
	}
	defer theirs.close()
	ours, err := b.kit.startOwn(ctx)
	if err != nil {
		return err
	}
	defer ours.close()
	sides := []side{{"agentvm", ours, costs{}}, {"qemu", theirs, costs{}}}
	for i := range sides {
		if err := checkForks(ctx, sides[i].guest); err != nil {
			return err
		}
	}
	for _, w := range workloads {
		if !b.measures(w.name) {
			continue
		}
		for i := range sides {
			sides[i].costs = costs{}
		}
		line, want := fmt.Sprintf(w.line, w.full), w.want[0]
		if b.quick {
			line, want = fmt.Sprintf(w.line, w.quick), w.want[1]
		}
		for range b.rounds(w.rounds) {
			for i := range sides {
				if err := sides[i].run(ctx, b, w.name, line, want); err != nil {
					return fmt.Errorf("%s on %s: %w", w.name, sides[i].name, err)
				}
			}
		}
		b.compare(w.figure, sides[0].costs, sides[1].costs, w.bar)
	}
	if !b.measures("paste") {
		return nil
	}
	return measurePaste(ctx, b, sides)
}

// measurePaste gives an interactive shell a here-document of 100 KB as what a user types. The shell reads and echoes it byte by byte.
func measurePaste(ctx context.Context, b *bench, sides []side) error {
	size := 100_000
	if b.quick {
		size = 10_000
	}
	line := "a line of the text that is pasted, as long as they are in programs\n"
	text := strings.Repeat(line, size/len(line))
	keys := "wc -c <<'EOF'\n" + text + "EOF\nexit\n"
	want := fmt.Sprintf("\r\n%d\r\n", len(text))
	for i := range sides {
		sides[i].costs = costs{}
	}
	for range b.rounds(4) {
		for i, s := range sides {
			var out string
			took, err := timed(s.guest.pid(), func() (err error) {
				out, err = s.guest.typed(ctx, keys)
				return err
			})
			if err == nil && !strings.Contains(out, want) {
				err = fmt.Errorf("the terminal ended with %q, without %q", out[max(0, len(out)-200):], want)
			}
			if err != nil {
				return fmt.Errorf("paste on %s: %w", s.name, err)
			}
			sides[i].costs.add(took)
			b.report.cost("Workload/paste/"+s.name, took)
		}
	}
	b.compare("paste of 100 KB into an interactive shell", sides[0].costs, sides[1].costs, bar{})
	wall := sides[0].costs.wall
	b.report.add(figure{name: "the same, elapsed", unit: "s", value: wall.median(), spread: wall, bar: atMost(2)})
	return nil
}

// checkForks makes sure that a program with a path is executed, not run by the shell itself.
func checkForks(ctx context.Context, g guest) error {
	out, err := g.sh(ctx, "/bin/cat /proc/self/comm; true")
	if err == nil && out != "cat\n" {
		err = fmt.Errorf("the shell runs /bin/cat as %q, without executing it", strings.TrimSpace(out))
	}
	return err
}

type side struct {
	name  string
	guest guest
	costs costs
}

// run does one round.
func (s *side) run(ctx context.Context, b *bench, name, line, want string) error {
	var out string
	took, err := timed(s.guest.pid(), func() (err error) {
		out, err = s.guest.sh(ctx, line)
		return err
	})
	if err == nil && out != want {
		err = fmt.Errorf("wrote %.100q, want %q", out, want)
	}
	if err != nil {
		return err
	}
	s.costs.add(took)
	b.report.cost("Workload/"+name+"/"+s.name, took)
	return nil
}

// compare adds both ratios of a comparison. The bar is for processor time, which neighbours on the computer disturb least.
func (b *bench) compare(name string, ours, theirs costs, limit bar) {
	cpu, wall := ours.cpu.over(theirs.cpu), ours.wall.over(theirs.wall)
	b.report.add(figure{name: name + ", processor time", unit: "times QEMU's", value: cpu.median(), spread: cpu, bar: limit})
	b.report.add(figure{name: name + ", elapsed time", unit: "times QEMU's", value: wall.median(), spread: wall})
}

//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// measureCommands measures commands in a running VM, through the library.
func measureCommands(ctx context.Context, b *bench) error {
	g, err := b.kit.startOwn(ctx)
	if err != nil {
		return err
	}
	defer g.close()
	if err := measureTrue(ctx, b, g); err != nil {
		return err
	}
	return measureSeq(ctx, b, g)
}

// measureTrue runs the smallest command over and over, each in a process of its own, as `agentvm exec true` would.
func measureTrue(ctx context.Context, b *bench, g *ownGuest) error {
	const warmUp = 20
	count := 200
	if b.quick {
		count = 50
	}
	var took samples
	var before uint64
	for i := range warmUp + count {
		if i == warmUp {
			time.Sleep(settleTime)
			before = g.vm.Instructions()
		}
		start := time.Now()
		if _, err := g.sh(ctx, "true"); err != nil {
			return err
		}
		if i >= warmUp {
			took = append(took, time.Since(start).Seconds()*1e3)
			b.report.value("ExecTrue", took[len(took)-1]*1e6, "ns/op")
		}
	}
	time.Sleep(settleTime) // what the guest still does after its answer counts too
	instructions := float64(g.vm.Instructions()-before) / float64(count) / 1e6
	b.report.value("ExecTrue/instructions", instructions, "M-instructions/op")
	b.report.add(figure{name: "`exec true` in a running VM, median", unit: "ms", value: took.median(), spread: took, bar: atMost(12)})
	b.report.add(figure{name: "`exec true` in a running VM, 99th percentile", unit: "ms", value: took.quantile(0.99), bar: atMost(30)})
	b.report.add(figure{name: "`exec true` in a running VM", unit: "million instructions", value: instructions, bar: atMost(1.8)})
	return nil
}

// settleTime is how long a guest may be busy after a command.
const settleTime = 200 * time.Millisecond

// measureSeq moves 1.3 MB of output in short lines.
func measureSeq(ctx context.Context, b *bench, g *ownGuest) error {
	var all costs
	for range b.rounds(5) {
		var out string
		took, err := timed(os.Getpid(), func() (err error) {
			out, err = g.sh(ctx, "seq 1 200000")
			return err
		})
		if err == nil && (len(out) != 1288895 || !strings.HasSuffix(out, "\n200000\n")) {
			err = fmt.Errorf("seq wrote %d bytes, want 1288895", len(out))
		}
		if err != nil {
			return err
		}
		all.add(took)
		b.report.cost("Seq", took)
	}
	b.report.add(figure{name: "`seq 1 200000` through exec", unit: "s", value: all.wall.median(), spread: all.wall, bar: atMost(2)})
	return nil
}

//go:build linux

package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// measureCommands measures commands in a running VM, through the library. The bars are for elapsed time on a quiet computer
// of today; beside it stands the same on QEMU, through the same RPC client, which shows what this host makes of it.
func measureCommands(ctx context.Context, b *bench) error {
	ours, err := b.kit.startOwn(ctx)
	if err != nil {
		return err
	}
	defer ours.close()
	theirs, err := b.kit.startQEMU(ctx, nil)
	if err != nil {
		return err
	}
	defer theirs.close()
	if err := measureTrue(ctx, b, ours, theirs); err != nil {
		return err
	}
	return measureSeq(ctx, b, ours, theirs)
}

// measureTrue runs the smallest command over and over, each in a process of its own, as `agentvm exec true` would.
func measureTrue(ctx context.Context, b *bench, ours *ownGuest, theirs *qemuGuest) error {
	const warmUp = 20
	count := 200
	if b.quick {
		count = 50
	}
	sides := []side{{"agentvm", ours, costs{}}, {"qemu", theirs, costs{}}}
	var before uint64
	for i := range warmUp + count {
		if i == warmUp {
			time.Sleep(settleTime)
			before = ours.vm.Instructions()
			sides[0].costs, sides[1].costs = costs{}, costs{}
		}
		for s := range sides {
			if err := sides[s].run(ctx, b, "true", "true", ""); err != nil {
				return err
			}
		}
	}
	time.Sleep(settleTime) // what the guest still does after its answer counts too
	instructions := float64(ours.vm.Instructions()-before) / float64(count) / 1e6
	b.report.value("Workload/true/instructions", instructions, "M-instructions/op")
	took, ratio := sides[0].costs.wall.times(1e3), sides[0].costs.wall.over(sides[1].costs.wall)
	b.report.add(figure{name: "`exec true` in a running VM, median", unit: "ms", value: took.median(), spread: took, bar: atMost(12)})
	b.report.add(figure{name: "`exec true` in a running VM, 99th percentile", unit: "ms", value: took.quantile(0.99), bar: atMost(30)})
	b.report.add(figure{name: "`exec true` in a running VM, elapsed time", unit: "times QEMU's", value: ratio.median(), spread: ratio})
	b.report.add(figure{name: "`exec true` in a running VM", unit: "million instructions", value: instructions, bar: atMost(1)})
	return nil
}

// settleTime is how long a guest may be busy after a command.
const settleTime = 200 * time.Millisecond

// measureSeq moves 1.3 MB of output in short lines.
func measureSeq(ctx context.Context, b *bench, ours *ownGuest, theirs *qemuGuest) error {
	const last = 200_000
	var want strings.Builder
	for i := range last {
		fmt.Fprintln(&want, i+1)
	}
	sides := []side{{"agentvm", ours, costs{}}, {"qemu", theirs, costs{}}}
	for range b.rounds(3) {
		for s := range sides {
			if err := sides[s].run(ctx, b, "seq", fmt.Sprint("seq 1 ", last), want.String()); err != nil {
				return err
			}
		}
	}
	took, ratio := sides[0].costs.wall, sides[0].costs.wall.over(sides[1].costs.wall)
	b.report.add(figure{name: "`seq 1 200000` through exec", unit: "s", value: took.median(), spread: took, bar: atMost(2)})
	b.report.add(figure{name: "`seq 1 200000` through exec, elapsed time", unit: "times QEMU's", value: ratio.median(), spread: ratio})
	return nil
}

//go:build linux

package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime"
	"time"
)

// manyVMs is how many VMs share a process in the test of idleness.
const manyVMs = 10

// measureIdle measures what VMs cost whose guests wait.
func measureIdle(ctx context.Context, b *bench) error {
	if err := b.kit.build(ctx); err != nil {
		return err
	}
	if err := measureOneIdle(ctx, b); err != nil {
		return err
	}
	return measureManyIdle(ctx, b)
}

// watchTime is how long idle VMs are watched.
func (b *bench) watchTime() time.Duration {
	if b.quick {
		return 3 * time.Second
	}
	return 10 * time.Second
}

// measureOneIdle watches a process of agentvm whose command sleeps.
func measureOneIdle(ctx context.Context, b *bench) error {
	p, err := b.kit.startProgram(ctx, "echo ready; exec sleep 600", "ready\n")
	if err != nil {
		return err
	}
	defer p.kill()
	share, err := b.watch(ctx, p.Process.Pid)
	if err != nil {
		return err
	}
	resident, proportional, err := memoryOf(p.Process.Pid)
	if err != nil {
		return err
	}
	b.report.value("Idle/one", share, "%-of-a-core")
	b.report.value("Idle/rss", resident, "MB")
	b.report.value("Idle/pss", proportional, "MB")
	b.report.add(figure{name: "idle VM", unit: "% of a core", value: share, bar: atMost(0.5)})
	b.report.add(figure{name: "host process with an idle 256 MiB VM, resident", unit: "MB", value: resident, bar: atMost(120)})
	b.report.add(figure{name: "host process with an idle 256 MiB VM, proportional share", unit: "MB", value: proportional})
	return nil
}

// watch returns the processor time of a process in per cent of the time that passes.
func (b *bench) watch(ctx context.Context, pid int) (float64, error) {
	select {
	case <-time.After(5 * time.Second): // boot's last work is done by then
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	took, err := timed(pid, func() error {
		select {
		case <-time.After(b.watchTime()):
		case <-ctx.Done():
		}
		return ctx.Err()
	})
	return 100 * took.cpu.Seconds() / took.wall.Seconds(), err
}

// measureManyIdle watches this process with idle VMs in it.
func measureManyIdle(ctx context.Context, b *bench) error {
	var guests [manyVMs]*ownGuest
	for i := range guests {
		var err error
		if guests[i], err = b.kit.startOwn(ctx); err != nil {
			return err
		}
		defer guests[i].close()
	}
	share, err := b.watch(ctx, os.Getpid())
	if err != nil {
		return err
	}
	for _, g := range guests { // idle, not dead
		if _, err := g.sh(ctx, "true"); err != nil {
			return err
		}
	}
	b.report.value("Idle/ten", share, "%-of-a-core")
	b.report.add(figure{name: fmt.Sprint(manyVMs, " idle VMs in one process"), unit: "% of a core", value: share, bar: atMost(2)})
	return nil
}

// memoryOf returns a process's resident memory and its share of that, in millions of bytes.
func memoryOf(pid int) (resident, proportional float64, err error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	values := make(map[string]float64)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var name string
		var kib float64
		if n, _ := fmt.Sscanf(lines.Text(), "%s %f kB", &name, &kib); n == 2 {
			values[name] = kib * 1024 / 1e6
		}
	}
	return values["Rss:"], values["Pss:"], nil
}

// memoryInUse is what Go's heap and stacks hold after a collection, in bytes.
func memoryInUse() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapInuse + m.StackInuse)
}

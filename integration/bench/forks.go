//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"agentvm/vm"
)

// measureForks forks a VM that runs, one at a time.
func measureForks(ctx context.Context, b *bench) error {
	g, err := b.kit.startOwn(ctx)
	if err != nil {
		return err
	}
	defer g.close()
	var ready, first, instructions samples
	for i := range 3 + b.runs() {
		if _, err := g.sh(ctx, "true"); err != nil {
			return err
		}
		time.Sleep(settleTime / 4)
		before := g.vm.Instructions()
		start := time.Now()
		forks, err := g.vm.Fork(ctx, 1, vm.ForkOptions{})
		if err != nil {
			return err
		}
		forked := time.Since(start)
		fork := &ownGuest{forks[0]}
		_, err = fork.sh(ctx, "true")
		if ended := time.Since(start); i >= 3 {
			ready, first = append(ready, milliseconds(forked)), append(first, milliseconds(ended))
			instructions = append(instructions, float64(fork.vm.Instructions()-before)/1e6)
		}
		fork.close()
		if err != nil {
			return err
		}
	}
	b.percentiles("Snapshot/fork", "fork of a running VM", ready, atMost(3))
	b.percentiles("Snapshot/fork-true", "fork until its first command has ended", first, atMost(20))
	b.report.value("Snapshot/fork-instructions", instructions.median(), "M-instructions/op")
	b.report.add(figure{name: "what a fork executes until then", unit: "million instructions", value: instructions.median(), spread: instructions})
	return nil
}

// measureForkMemory counts what forks take that have answered once and do nothing since.
func measureForkMemory(ctx context.Context, b *bench) error {
	g, err := b.kit.startOwn(ctx)
	if err != nil {
		return err
	}
	defer g.close()
	if _, err := g.sh(ctx, "seq 1 100000 >/root/file; sha256sum /root/file"); err != nil {
		return err
	}
	list := &forkList{}
	defer func() { list.close() }()
	if err := list.grow(ctx, g, 1); err != nil { // what the first fork costs the VM itself
		return err
	}
	list.close()
	before, err := ownMemory()
	if err != nil {
		return err
	}
	var answered time.Duration
	for _, n := range []int{50, 100} {
		start := time.Now()
		if err := list.grow(ctx, g, n-len(list.guests)); err != nil {
			return err
		}
		answered += time.Since(start)
		now, err := ownMemory()
		if err != nil {
			return err
		}
		each := (now - before) / float64(n)
		b.report.value(fmt.Sprint("Snapshot/memory/", n, "-forks"), each, "MB")
		b.report.add(figure{name: fmt.Sprint("memory of each of ", n, " idle forks of a 256 MiB VM"), unit: "MB", value: each, bar: atMost(12)})
		if n == 100 {
			b.report.add(figure{name: "100 forks, 50 at a time, until each has answered", unit: "ms", value: milliseconds(answered)})
		}
	}
	return nil
}

// forkList are forks that live at the same time.
type forkList struct{ guests []*ownGuest }

// grow makes n more, which have all read what their parent has written.
func (l *forkList) grow(ctx context.Context, of *ownGuest, n int) error {
	forks, err := of.vm.Fork(ctx, n, vm.ForkOptions{})
	if err != nil {
		return err
	}
	for _, fork := range forks {
		l.guests = append(l.guests, &ownGuest{fork})
	}
	for _, g := range l.guests[len(l.guests)-n:] {
		if _, err := g.sh(ctx, "test -s /root/file"); err != nil {
			return err
		}
	}
	return nil
}

func (l *forkList) close() {
	for _, g := range l.guests {
		g.close()
	}
	l.guests = nil
}

// ownMemory is this process's share of what it uses, in millions of bytes, without garbage.
func ownMemory() (float64, error) {
	time.Sleep(settleTime)
	debug.FreeOSMemory()
	_, proportional, err := memoryOf(os.Getpid())
	return proportional, err
}

// measureProcessMemory counts what each further process takes whose VM continues from the same file.
func measureProcessMemory(ctx context.Context, b *bench) error {
	n := 20
	if b.quick {
		n = 4
	}
	var list []*program
	defer func() {
		for _, p := range list {
			p.kill()
		}
	}()
	for range n {
		p, err := b.kit.startProgram(ctx, "echo ready; exec sleep 600", "ready\n")
		if err != nil {
			return err
		}
		list = append(list, p)
	}
	time.Sleep(settleTime)
	sum := 0.0
	for _, p := range list {
		_, proportional, err := memoryOf(p.Process.Pid)
		if err != nil {
			return err
		}
		sum += proportional
	}
	each := sum / float64(n)
	b.report.value("Snapshot/memory/process", each, "MB")
	b.report.add(figure{name: fmt.Sprint("memory of each of ", n, " processes with an idle 256 MiB VM from one file"), unit: "MB", value: each})
	return nil
}

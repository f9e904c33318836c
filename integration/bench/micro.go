//go:build linux

package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

//go:embed micro/micro.c
var microSource string

// microLoops are the loops of micro.c: what one step is, and the bars of the guest's time, as a multiple of that on the host and in ns.
var microLoops = []struct {
	name, what  string
	times, time bar
}{
	{name: "alu", what: "integer arithmetic, a chain"},
	{name: "load", what: "load, one page", times: atMost(3)},
	{name: "store", what: "store, one page", times: atMost(3)},
	{name: "chase", what: "load of the next load's address"},
	{name: "load-64-pages", what: "load, 64 pages in turn"},
	{name: "tlb-miss", what: "load, 8,192 pages in turn: a TLB miss each", time: atMost(100)},
	{name: "copy", what: "load and store of 8 bytes, and the loop"},
	{name: "call", what: "call and return in a page"},
	{name: "call-across-pages", what: "call and return across pages", times: atMost(2)},
	{name: "indirect", what: "indirect call, 8 targets in turn"},
	{name: "branches", what: "xorshift and a branch by its lowest bit"},
	{name: "fmul-fadd", what: "floating-point multiplication or addition, a chain"},
	{name: "fmadd", what: "fused multiply-add, a chain", times: atMost(6)},
	{name: "atomic", what: "atomic addition"},
	{name: "clock", what: "clock_gettime"},
	{name: "system-call", what: "system call (getppid)"},
	{name: "page-fault", what: "page fault, with its share of mmap and munmap"},
	{name: "context-switch", what: "switch between two processes, with a byte through a pipe"},
	{name: "fork", what: "fork, exit and wait"},
}

// measureMicro runs the same small loops in the guest and on the host, in turn.
func measureMicro(ctx context.Context, b *bench) error {
	host, program, err := b.kit.buildBoth(ctx, "micro", microSource)
	if err != nil {
		return err
	}
	g, err := b.kit.startOwn(ctx)
	if err != nil {
		return err
	}
	defer g.close()
	if err := g.put(ctx, "/root/micro", program); err != nil {
		return err
	}
	if _, err := g.sh(ctx, "/root/micro"); err != nil { // so that all is translated
		return err
	}
	took := map[string]*[2]samples{}
	for range b.rounds(5) {
		theirs, err := output(exec.CommandContext(ctx, host))
		if err != nil {
			return err
		}
		ours, err := g.sh(ctx, "/root/micro")
		if err != nil {
			return err
		}
		for side, text := range []string{ours, theirs} {
			for line := range strings.Lines(text) {
				var name string
				var ns float64
				if _, err := fmt.Sscan(line, &name, &ns); err != nil {
					return fmt.Errorf("micro.c wrote %q: %w", line, err)
				}
				if took[name] == nil {
					took[name] = new([2]samples)
				}
				took[name][side] = append(took[name][side], ns)
				b.report.value("Micro/"+name+[]string{"/agentvm", "/host"}[side], ns, "ns/step")
			}
		}
	}
	for _, l := range microLoops {
		t := took[l.name]
		if t == nil {
			return fmt.Errorf("micro.c has no loop %s", l.name)
		}
		times := t[0].over(t[1])
		b.report.add(figure{name: l.what, unit: "ns", value: t[0].median(), spread: t[0], bar: l.time})
		b.report.add(figure{name: fmt.Sprintf("the same, of %.3g ns on the host", t[1].median()), unit: "times", value: times.median(), spread: times, bar: l.times})
	}
	return nil
}

// buildBoth builds C source for the host, and returns the program's path; and for the guest, and returns the program. Each may use all that its
// processor has.
func (k *kit) buildBoth(ctx context.Context, name, source string) (host string, guest []byte, err error) {
	file, host, foreign := k.path(name+".c"), k.path(name+"-host"), k.path(name+"-guest")
	if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
		return "", nil, err
	}
	for _, c := range []struct{ compiler, pkg, march, program string }{
		{"riscv64-linux-gnu-gcc", "gcc-riscv64-linux-gnu", "rv64gc", foreign},
		{"gcc", "gcc", "native", host},
	} {
		if err := needTool(c.compiler, c.pkg); err != nil {
			return "", nil, err
		}
		if _, err := output(exec.CommandContext(ctx, c.compiler, "-O2", "-static", "-march="+c.march, "-o", c.program, file, "-lm")); err != nil {
			return "", nil, err
		}
	}
	guest, err = os.ReadFile(foreign)
	return host, guest, err
}

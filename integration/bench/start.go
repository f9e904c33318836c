//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// measureColdStart compares the time from the start of a process to the output of the first command. On our side that is
// the program that users run, with the image in the store and the machine's compiled code in the cache, but booting as it
// does the first time only.
func measureColdStart(ctx context.Context, b *bench) error {
	if err := needTool(qemuName, qemuPackage); err != nil {
		return err
	}
	if err := b.kit.build(ctx); err != nil {
		return err
	}
	if _, err := b.kit.coldOwn(ctx); err != nil { // fills the cache
		return err
	}
	var ours, theirs costs
	for range b.rounds(11) {
		own, err := b.kit.coldOwn(ctx)
		if err != nil {
			return err
		}
		qemu, err := b.kit.qemuUntilOutput(ctx)
		if err != nil {
			return err
		}
		ours.add(own)
		theirs.add(qemu)
		b.report.cost("ColdStart/agentvm", own)
		b.report.cost("ColdStart/qemu", qemu)
	}
	ratio, cpu := ours.wall.over(theirs.wall), ours.cpu.over(theirs.cpu)
	b.report.add(figure{name: "cold start to `echo hi`", unit: "s", value: ours.wall.median(), spread: ours.wall})
	b.report.add(figure{name: "cold start, elapsed time", unit: "times QEMU's", value: ratio.median(), spread: ratio, bar: atMost(1.2)})
	b.report.add(figure{name: "cold start, processor time", unit: "times QEMU's", value: cpu.median(), spread: cpu})
	return nil
}

// build makes the program as `make build` does.
func (k *kit) build(ctx context.Context) error {
	c := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", k.path("agentvm"), "./cmd/agentvm")
	c.Dir, c.Env = k.root, append(os.Environ(), "CGO_ENABLED=0")
	_, err := output(c)
	return err
}

// program is agentvm running a command line; its first line of output has arrived.
type program struct {
	*exec.Cmd
	took cost // until then
}

func (k *kit) startProgram(ctx context.Context, line, want string, flags ...string) (*program, error) {
	args := append([]string{"exec", "-i=false", "--image", k.image.Name, "--memory", fmt.Sprint(memory, "M")}, flags...)
	c := exec.CommandContext(ctx, k.path("agentvm"), append(args, line)...)
	c.Env, c.Stderr = append(os.Environ(), "AGENTVM_STORE="+k.store), os.Stderr
	stdout, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	if err := c.Start(); err != nil {
		return nil, err
	}
	p := &program{Cmd: c}
	got, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || got != want {
		p.kill()
		return nil, fmt.Errorf("agentvm wrote %q, want %q (%w)", got, want, err)
	}
	p.took.wall = time.Since(start)
	if p.took.cpu, err = processorTime(c.Process.Pid); err != nil {
		p.kill()
		return nil, err
	}
	return p, nil
}

func (p *program) kill() {
	_ = p.Process.Kill()
	_ = p.Wait()
}

func (k *kit) coldOwn(ctx context.Context) (cost, error) {
	p, err := k.startProgram(ctx, "echo hi", "hi\n", "--cold")
	if err != nil {
		return cost{}, err
	}
	return p.took, p.Wait()
}

// qemuUntilOutput is a process of QEMU until its guest's output; arguments are added to its command line.
func (k *kit) qemuUntilOutput(ctx context.Context, arguments ...string) (cost, error) {
	start := time.Now()
	g, err := k.startQEMU(ctx, qemuNetwork(), arguments...)
	if err != nil {
		return cost{}, err
	}
	defer g.close()
	out, err := g.sh(ctx, "echo hi")
	if err == nil && out != "hi\n" {
		err = errors.New("QEMU's guest did not say hi")
	}
	if err != nil {
		return cost{}, err
	}
	wall := time.Since(start)
	cpu, err := processorTime(g.pid())
	return cost{wall, cpu}, err
}

// measureBoot counts what the guest executes from its kernel's first instruction until its first command has ended.
func measureBoot(ctx context.Context, b *bench) error {
	var counts samples
	for range b.rounds(5) {
		config := b.kit.config()
		config.ColdBoot = true
		g, err := startOwn(ctx, config)
		if err != nil {
			return err
		}
		_, err = g.sh(ctx, "echo hi")
		counts = append(counts, float64(g.vm.Instructions())/1e6)
		g.close()
		if err != nil {
			return err
		}
		b.report.value("Boot/instructions", counts[len(counts)-1], "M-instructions/op")
	}
	b.report.add(figure{name: "kernel entry to the first command's end", unit: "million instructions", value: counts.median(), spread: counts, bar: atMost(30)})
	return nil
}

//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"

	"agentvm/internal/machine"
)

// kernels are the loops of internal/machine/bench/kernels.c, each with the number of rounds that makes 30 to 200 million
// instructions.
var kernels = []struct {
	name   string
	rounds int
}{{"primes", 60}, {"checksum", 40}, {"heapsort", 30}, {"calls", 100}, {"multiply", 100}}

// qemuFactor makes QEMU's runs as long as ours, beside its start.
const qemuFactor = 8

// measureInterpreter runs bare programs on the machine, on the machine that decodes every instruction whenever it executes
// it, and on QEMU.
func measureInterpreter(ctx context.Context, b *bench) error {
	l, err := newLoops(ctx, b.kit)
	if err != nil {
		return err
	}
	defer l.close(ctx)
	var ours, gains, behind []float64
	for _, k := range kernels {
		speed, err := l.measure(ctx, b, k.name, k.rounds)
		if err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
		gain := speed.machine.over(speed.plain)
		b.report.add(figure{name: "guest speed, " + k.name, unit: "MIPS", value: speed.machine.median(), spread: speed.machine})
		ours, gains = append(ours, speed.machine.median()), append(gains, gain.median())
		behind = append(behind, speed.qemu.over(speed.machine).median())
	}
	gain := figure{name: "gain from predecoding, geometric mean", unit: "times", value: geometricMean(gains), spread: gains, bar: atLeast(1.6)}
	speed := figure{name: "guest speed, geometric mean", unit: "MIPS", value: geometricMean(ours), spread: ours}
	if !gain.bar.met(gain.value) { // either of the two suffices
		gain.bar, speed.bar = bar{}, atLeast(250)
	}
	b.report.add(speed)
	b.report.add(gain)
	b.report.add(figure{name: "QEMU's translator on the same loops, geometric mean", unit: "times our speed", value: geometricMean(behind), spread: behind})
	return nil
}

// loops has what runs the bare programs.
type loops struct {
	kit            *kit
	machine, plain *machine.Program // plain decodes at each execution
}

func newLoops(ctx context.Context, k *kit) (*loops, error) {
	for name, pkg := range map[string]string{
		"riscv64-linux-gnu-gcc": "gcc-riscv64-linux-gnu", "clang-19": "clang-19", "wasm-ld-19": "lld-19", qemuName: qemuPackage,
	} {
		if err := needTool(name, pkg); err != nil {
			return nil, err
		}
	}
	build := exec.CommandContext(ctx, k.root+"/internal/machine/build.sh", k.path("plain.wasm"))
	build.Env = append(os.Environ(), "CFLAGS=-DNO_PREDECODE")
	if _, err := output(build); err != nil {
		return nil, err
	}
	plain, err := os.ReadFile(k.path("plain.wasm"))
	if err != nil {
		return nil, err
	}
	l := &loops{kit: k}
	if l.machine, err = machine.NewProgram(ctx, machine.ProgramConfig{Translation: machine.TranslateNever}); err != nil {
		return nil, err
	}
	if l.plain, err = machine.NewProgram(ctx, machine.ProgramConfig{Module: plain, Translation: machine.TranslateNever}); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *loops) close(ctx context.Context) {
	_ = l.machine.Close(ctx)
	_ = l.plain.Close(ctx)
}

// compile makes a bare program that runs a loop for a number of rounds and switches the computer off.
func (l *loops) compile(ctx context.Context, name string, rounds int) (string, error) {
	elf, source := l.kit.path(name+"-"+strconv.Itoa(rounds)), l.kit.root+"/internal/machine/bench/"
	_, err := output(exec.CommandContext(ctx, "riscv64-linux-gnu-gcc", "-O2", "-march=rv64gc", "-mabi=lp64d", "-mcmodel=medany",
		"-fno-pic", "-ffreestanding", "-nostdlib", "-static", "-Wl,--build-id=none,--no-warn-rwx-segments", "-T", source+"bare.ld",
		"-DKERNEL="+name, fmt.Sprintf("-DROUNDS=%d", rounds), "-o", elf, source+"kernels.c"))
	return elf, err
}

// speeds are in million instructions a second of processor time.
type speeds struct{ machine, plain, qemu samples }

func (l *loops) measure(ctx context.Context, b *bench, name string, rounds int) (speeds, error) {
	var elf [3]string
	var err error
	for i, n := range []int{1, rounds, qemuFactor * rounds} {
		if elf[i], err = l.compile(ctx, name, n); err != nil {
			return speeds{}, err
		}
	}
	shortest, _, err := runLoop(ctx, l.machine, elf[0])
	if err != nil {
		return speeds{}, err
	}
	var s speeds
	for range b.rounds(3) {
		instructions, ours, err := runLoop(ctx, l.machine, elf[1])
		if err != nil {
			return s, err
		}
		_, plain, err := runLoop(ctx, l.plain, elf[1])
		if err != nil {
			return s, err
		}
		start, err := l.runQEMU(ctx, elf[0])
		if err != nil {
			return s, err
		}
		theirs, err := l.runQEMU(ctx, elf[2])
		if err != nil {
			return s, err
		}
		// Instructions grow evenly with the rounds; QEMU's own start is in both of its runs.
		round := float64(instructions-shortest) / float64(rounds-1)
		s.machine = append(s.machine, mips(float64(instructions), ours))
		s.plain = append(s.plain, mips(float64(instructions), plain))
		s.qemu = append(s.qemu, mips(round*float64(qemuFactor*rounds-1), cost{cpu: theirs.cpu - start.cpu}))
		b.report.value("Loop/"+name+"/agentvm", s.machine[len(s.machine)-1], "MIPS")
		b.report.value("Loop/"+name+"/undecoded", s.plain[len(s.plain)-1], "MIPS")
		b.report.value("Loop/"+name+"/qemu", s.qemu[len(s.qemu)-1], "MIPS")
	}
	return s, nil
}

func mips(instructions float64, c cost) float64 { return instructions / c.cpu.Seconds() / 1e6 }

// runLoop runs a bare program to its end and returns the instructions it took.
func runLoop(ctx context.Context, p *machine.Program, elf string) (uint64, cost, error) {
	m, err := p.NewMachine(ctx, machine.Config{Memory: 64 << 20, MachineMode: true})
	if err != nil {
		return 0, cost{}, err
	}
	defer m.Close()
	f, err := os.Open(elf)
	if err != nil {
		return 0, cost{}, err
	}
	defer f.Close()
	if _, err := m.LoadELF(f); err != nil {
		return 0, cost{}, err
	}
	took, err := timed(os.Getpid(), func() error {
		exit, err := m.Run(ctx)
		if err == nil && exit.Reason != machine.PowerOff {
			err = fmt.Errorf("the program %v", exit.Reason)
		}
		return err
	})
	return m.Retired(), took, err
}

func (l *loops) runQEMU(ctx context.Context, elf string) (cost, error) {
	c := exec.CommandContext(ctx, qemuName, "-M", "virt", "-m", "64", "-bios", "none", "-nographic", "-kernel", elf)
	if _, err := output(c); err != nil {
		return cost{}, err
	}
	return cost{cpu: c.ProcessState.UserTime() + c.ProcessState.SystemTime()}, nil
}

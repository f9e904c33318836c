package machine

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"time"

	"agentvm/wasi"
)

// ELFMode is the privilege level that a bare program starts at.
type ELFMode int

const (
	// ELFAuto starts in M-mode when the program has the symbol (or section) `tohost`, as the riscv-tests have, or
	// when its code contains mret or an access to a machine-level CSR. Everything else starts in S-mode, where the
	// machine answers SBI calls. A program that needs neither runs the same in both: the finisher at 0x100000 can be
	// written from S-mode too.
	ELFAuto ELFMode = iota
	// ELFMachine starts in M-mode, without SBI.
	ELFMachine
	// ELFSupervisor starts in S-mode on the built-in SBI.
	ELFSupervisor
)

// ELFOptions says how to run a bare program. The zero value is usable.
type ELFOptions struct {
	Mode            ELFMode
	Memory          uint64        // bytes of RAM; 0 is 64 MiB
	MaxInstructions uint64        // more is an error; 0 is 10^10
	Timeout         time.Duration // longer is an error; 0 is one minute
	Console         io.Writer     // what the program prints through HTIF or SBI; nil discards
	RealTime        bool          // the host's clock, instead of 10 ns an instruction and no waiting
}

// ELFResult is how a bare program ended.
type ELFResult struct {
	Passed       bool   // tohost was 1, or the program powered off without reporting a failure
	Code         uint64 // what failed: riscv-tests' number of the test, a program's exit code, or the finisher's code
	How          string // in words, for a log line
	Instructions uint64 // executed
	PC           uint64 // where it was then
}

// ExitCode is 0 for a program that passed, else its Code, brought into 1 to 255.
func (r ELFResult) ExitCode() int {
	if r.Passed {
		return 0
	}
	return int(min(max(r.Code, 1), 255))
}

// ErrELFLimit is returned for a program that gave no result within the limits.
var ErrELFLimit = errors.New("the program gave no result")

const (
	elfMemory       = 64 << 20
	elfInstructions = 10_000_000_000
	elfTimeout      = time.Minute
	// Instructions between two looks at tohost: a program waits that long for the answer to a call.
	elfSlice = 4096
)

// RunELF runs a bare riscv64 program to its end: loads it at its physical addresses, which must be in RAM, and starts
// it at its entry with a0 = 0 (the hart) and a1 = the address of a device tree. It ends by
//   - writing to `tohost`, as riscv-tests do: 1 passes, any other odd number n fails with Code n>>1; even numbers are
//     calls through the host-target interface (write, exit and console output are known, others fail),
//   - SBI SRST or legacy shutdown, or the finisher at 0x100000 (0x5555 passes, 0x3333 | code<<16 fails).
//
// A program that reaches a limit, or waits for an interrupt that cannot come, is an error that wraps ErrELFLimit. The
// result is meaningful then, too. Any number of RunELF may run on one Program at a time.
//
// For `agentvm debug run-elf FILE`: exit with ExitCode, and on an error with the code for failures of agentvm.
func (p *Program) RunELF(ctx context.Context, program io.ReaderAt, o ELFOptions) (ELFResult, error) {
	o.setDefaults()
	file, err := p.processor.openELF(program)
	if err != nil {
		return ELFResult{}, err
	}
	m, err := p.NewMachine(ctx, o.config(file))
	if err != nil {
		return ELFResult{}, err
	}
	defer m.Close()
	run := elfRun{machine: m, options: o}
	if err := run.load(file); err != nil {
		return ELFResult{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	return run.untilEnd(ctx)
}

func (o *ELFOptions) setDefaults() {
	if o.Memory == 0 {
		o.Memory = elfMemory
	}
	if o.MaxInstructions == 0 {
		o.MaxInstructions = elfInstructions
	}
	if o.Timeout == 0 {
		o.Timeout = elfTimeout
	}
	if o.Console == nil {
		o.Console = io.Discard
	}
}

func (o *ELFOptions) config(file *elf.File) Config {
	machineMode := o.Mode == ELFMachine ||
		o.Mode == ELFAuto && (inspectELF(file).ToHost != 0 || usesMachineMode(file))
	return Config{
		Memory:        o.Memory,
		Console:       consoleFile{o.Console},
		MachineMode:   machineMode,
		Deterministic: !o.RealTime,
	}
}

// consoleFile is a console that only prints.
type consoleFile struct{ w io.Writer }

func (consoleFile) Stat() (wasi.Filestat, wasi.Errno)     { return wasi.Filestat{}, wasi.ErrnoSuccess }
func (consoleFile) Close() error                          { return nil }
func (consoleFile) Read([]byte) (int, wasi.Errno)         { return 0, wasi.ErrnoAgain }
func (c consoleFile) Write(data []byte) (int, wasi.Errno) { return writeConsole(c.w, data) }

func writeConsole(w io.Writer, data []byte) (int, wasi.Errno) {
	n, err := w.Write(data)
	if err != nil {
		return n, wasi.ErrnoIo
	}
	return n, wasi.ErrnoSuccess
}

// elfRun is one run of a bare program.
type elfRun struct {
	machine *Machine
	options ELFOptions
	ram     []byte
	htif    htif
}

// load places the device tree first, so that a program that is loaded over it wins.
func (r *elfRun) load(file *elf.File) error {
	m := r.machine
	ram, err := m.RAM()
	if err != nil {
		return err
	}
	tree, err := m.deviceTree(boot{})
	if err != nil {
		return err
	}
	treeAt := uint64(len(ram)) - deviceTreeRoom
	copy(ram[treeAt:], tree)
	if err := m.enterAt(0, RAMBase+treeAt); err != nil {
		return err
	}
	info, err := m.loadELF(file)
	if err != nil {
		return err
	}
	r.ram = ram
	r.htif = htif{ram: ram, toHost: info.ToHost, fromHost: info.FromHost, console: r.options.Console}
	return r.htif.check()
}

func (r *elfRun) untilEnd(ctx context.Context) (ELFResult, error) {
	for {
		reason, err := r.machine.slice(elfSlice)
		if err != nil {
			return ELFResult{}, fmt.Errorf("the machine broke: %w", err)
		}
		call, err := r.htif.serve()
		switch {
		case err != nil:
			return r.result(false, 0, "made a call that is not known"), err
		case call.ended:
			return r.ended(call.code), nil
		case reason != reasonBudget && reason != reasonIdle:
			return r.stopped(reason), nil
		}
		if err := r.mayGoOn(ctx, reason == reasonIdle && !call.served); err != nil {
			return r.result(false, 0, "gave no result"), err
		}
	}
}

// mayGoOn checks the limits and waits when the guest does.
func (r *elfRun) mayGoOn(ctx context.Context, idle bool) error {
	m := r.machine
	switch {
	case m.Retired() >= r.options.MaxInstructions:
		return fmt.Errorf("%w within %d instructions (pc %#x)", ErrELFLimit, r.options.MaxInstructions, m.PC())
	case idle && m.result.DeadlineNS == noDeadline:
		return fmt.Errorf("%w: it waits for an interrupt that cannot come (pc %#x)", ErrELFLimit, m.PC())
	}
	err := ctx.Err()
	if err == nil && idle {
		err = m.idle(ctx)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w within %v (pc %#x): %w", ErrELFLimit, r.options.Timeout, m.PC(), err)
	}
	return err
}

func (r *elfRun) ended(code uint64) ELFResult {
	if code == 0 {
		return r.result(true, 0, "passed")
	}
	return r.result(false, code, fmt.Sprintf("failed test %d", code))
}

func (r *elfRun) stopped(reason Reason) ELFResult {
	code := uint64(r.machine.result.Code)
	return r.result(reason == PowerOff, code, reason.String())
}

func (r *elfRun) result(passed bool, code uint64, how string) ELFResult {
	return ELFResult{Passed: passed, Code: code, How: how, Instructions: r.machine.Retired(), PC: r.machine.PC()}
}

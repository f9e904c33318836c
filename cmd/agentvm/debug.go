package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"agentvm/images"
	"agentvm/internal/host/private"
	"agentvm/internal/machine"
	"agentvm/internal/settings"
	"agentvm/vm"
)

func (c *cli) debugCommand() *cobra.Command {
	command := &cobra.Command{Use: "debug", Short: "Tools to look into agentvm"}
	command.AddCommand(c.runWASICommand(), c.runELFCommand(), c.translateCommand(), c.consoleCommand())
	return command
}

// consoleCommand shows what a boot prints when it is not quiet.
func (c *cli) consoleCommand() *cobra.Command {
	var f vmFlags
	command := &cobra.Command{
		Use:   "console [flags]",
		Short: "Boot a VM, print everything its kernel says, and stop it",
		Args:  cobra.NoArgs,
	}
	f.register(command)
	return runs(command, func(ctx context.Context, _ []string) error {
		s := newSession(execInterruptWindow)
		ctx = s.begin(ctx)
		defer s.end()
		m, err := c.startWith(ctx, &f, func(config *vm.Config) {
			config.Console, config.KernelArguments = c.stdout, "loglevel=7"
		})
		if err != nil {
			return s.explain(err)
		}
		defer m.Close()
		return m.Stop(ctx)
	})
}

const runELFLong = `Loads a bare riscv64 program, linked at 0x80000000, into an emulated machine without an operating system and runs it to
its end. A program ends by writing to the word "tohost", as the riscv-tests do, by an SBI shutdown, or through the
finisher at 0x100000.

Exits with 0 when the program passed, else with the number of the test that failed; with 125 when it could not run
or gave no result within the limits.`

// elfModes are the values of --mode.
var elfModes = map[string]machine.ELFMode{
	"auto": machine.ELFAuto, "machine": machine.ELFMachine, "supervisor": machine.ELFSupervisor,
}

func (c *cli) runELFCommand() *cobra.Command {
	var o machine.ELFOptions
	var mode, memory string
	command := &cobra.Command{
		Use:     "run-elf [flags] FILE",
		Short:   "Run a bare riscv64 program in an emulated machine, without Linux",
		Long:    runELFLong,
		Example: "  agentvm debug run-elf isa/rv64ui-p-add",
		Args:    counted(1, 1),
	}
	flags := command.Flags()
	flags.StringVar(&mode, "mode", "auto", "privilege level to start at: machine, supervisor, or auto, which looks at what the program uses")
	flags.StringVar(&memory, "memory", "64M", "memory of the emulated machine")
	flags.Uint64Var(&o.MaxInstructions, "instructions", 10_000_000_000, "give up after this number of instructions")
	durationFlag(flags, &o.Timeout, "timeout", "", time.Minute, "give up after this time")
	flags.BoolVar(&o.RealTime, "real-time", false, "use the host's clock instead of 10 ns an instruction")
	return runs(command, func(ctx context.Context, args []string) (err error) {
		var known bool
		if o.Mode, known = elfModes[mode]; !known {
			return fmt.Errorf("--mode %q: want auto, machine or supervisor", mode)
		}
		if o.Memory, err = settings.ParseSize(memory, 20); err != nil || o.Memory == 0 {
			return fmt.Errorf("--memory %q: want a size such as 768M or 2G", memory)
		}
		o.Console = c.stdout
		return c.runELF(ctx, args[0], o)
	})
}

func (c *cli) runELF(ctx context.Context, path string, o machine.ELFOptions) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	program, err := machine.NewProgram(ctx, compiledCode())
	if err != nil {
		return err
	}
	defer program.Close(ctx)
	result, err := program.RunELF(ctx, file, o)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	c.log.Debug("program ended", "how", result.How, "instructions", result.Instructions, "pc", fmt.Sprintf("%#x", result.PC))
	if !result.Passed {
		fmt.Fprintf(c.stderr, "agentvm: %s: failed with %d: %s\n", path, result.Code, result.How)
		return exitStatus(result.ExitCode())
	}
	return nil
}

// compiledCode says where compiled code is kept: in the image store, unless there is none or its key cannot be kept.
func compiledCode() (p machine.ProgramConfig) {
	dir, err := images.DefaultDir()
	if err != nil {
		return p
	}
	if p.CacheKey, err = private.CodeKey(dir); err == nil {
		p.CacheDir = filepath.Join(dir, "compiled")
	}
	return p
}

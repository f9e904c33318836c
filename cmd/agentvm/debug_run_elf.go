package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"agentvm/emulator"
	"agentvm/images"
)

const runELFLong = `Loads a bare riscv64 program, linked at 0x80000000, into a machine without an operating system and runs it to
its end. A program ends by writing to the word "tohost", as the riscv-tests do, by an SBI shutdown, or through the
finisher at 0x100000.

Exits with 0 when it passed, else with the number of the test that failed; with 125 when it could not be run
or gave no result within the limits.`

// elfModes are the values of --mode.
var elfModes = map[string]emulator.ELFMode{
	"auto": emulator.ELFAuto, "machine": emulator.ELFMachine, "supervisor": emulator.ELFSupervisor,
}

func (c *cli) runELFCommand() *cobra.Command {
	var o emulator.ELFOptions
	var mode, memory string
	command := &cobra.Command{
		Use:     "run-elf [flags] FILE",
		Short:   "Run a bare riscv64 program in a machine without Linux",
		Long:    runELFLong,
		Example: "  agentvm debug run-elf isa/rv64ui-p-add",
		Args:    cobra.ExactArgs(1),
	}
	flags := command.Flags()
	flags.StringVar(&mode, "mode", "auto", "privilege level to start at: machine, supervisor, or auto, by what the program uses")
	flags.StringVar(&memory, "memory", "64M", "memory of the machine")
	flags.Uint64Var(&o.MaxInstructions, "instructions", 10_000_000_000, "give up after so many instructions")
	flags.DurationVar(&o.Timeout, "timeout", time.Minute, "give up after this time")
	flags.BoolVar(&o.RealTime, "real-time", false, "use the host's clock instead of 10 ns an instruction")
	return runs(command, func(ctx context.Context, args []string) (err error) {
		var known bool
		if o.Mode, known = elfModes[mode]; !known {
			return fmt.Errorf("--mode %q: want auto, machine or supervisor", mode)
		}
		if o.Memory, err = parseMemory(memory); err != nil {
			return err
		}
		o.Console = c.stdout
		return c.runELF(ctx, args[0], o)
	})
}

func (c *cli) runELF(ctx context.Context, path string, o emulator.ELFOptions) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	program, err := emulator.NewProgram(ctx, emulator.ProgramConfig{CacheDir: compiledDir()})
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

// compiledDir is where compiled code is kept: in the image store, unless there is none.
func compiledDir() string {
	dir, err := images.DefaultDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "compiled")
}

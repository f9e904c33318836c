package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"agentvm/internal/settings"
	"agentvm/wasi"
)

const runWASILong = `Runs a WebAssembly program for WASI preview 1 on the layer that VMs run on, and exits with its exit
code; with 125 when the program cannot run or traps. It sees the directories of --dir and nothing else of the host.
Its first argument, its name, is the file's name without the directory.`

func (c *cli) runWASICommand() *cobra.Command {
	var dirs, env []string
	command := &cobra.Command{
		Use:     "run-wasi [flags] FILE.wasm [ARGS...]",
		Short:   "Run a WASI program without a VM",
		Long:    runWASILong,
		Example: "  agentvm debug run-wasi --dir ./data:/data --env LANG=C tool.wasm /data/file",
		Args:    counted(1, 0),
	}
	flags := command.Flags()
	flags.SetInterspersed(false)
	flags.StringArrayVar(&dirs, "dir", nil, "show a directory to the program: host[:guest][:ro] (guest default: the same path; may be repeated)")
	flags.StringArrayVarP(&env, "env", "e", nil, "set KEY=VALUE for the program, or pass on the value that KEY has here (may be repeated)")
	return runs(command, func(ctx context.Context, args []string) error { return c.runWASI(ctx, dirs, env, args) })
}

func (c *cli) runWASI(ctx context.Context, dirs, env, args []string) error {
	module, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	config := wasi.CommandConfig{
		Module: module, Args: append([]string{filepath.Base(args[0])}, args[1:]...), Stdin: c.stdin, Stdout: c.stdout, Stderr: c.stderr, Logger: c.log,
	}
	if config.Env, err = settings.Environment(env); err != nil {
		return err
	}
	for _, text := range dirs {
		dir, err := parseDir(text, runtime.GOOS == "windows")
		if err != nil {
			return err
		}
		config.Dirs = append(config.Dirs, dir)
	}
	code, err := wasi.RunCommand(ctx, config)
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	if code != 0 {
		return exitStatus(shortCode(code))
	}
	return nil
}

// shortCode is what becomes of a program's exit code, 32 bits wide and not zero: systems other than Windows keep eight
// bits, and those must not be zero either.
func shortCode(code int) int {
	if runtime.GOOS == "windows" || code&0xff != 0 {
		return code
	}
	return 255
}

// parseDir reads host[:guest][:ro]; on Windows the host's drive letter is not taken for a host.
func parseDir(text string, windows bool) (wasi.Dir, error) {
	drive, rest := "", text
	if windows && len(text) > 1 && text[1] == ':' {
		drive, rest = text[:2], text[2:]
	}
	rest, readOnly := strings.CutSuffix(rest, ":ro")
	host, guest, named := strings.Cut(rest, ":")
	guest = strings.TrimPrefix(guest, ":") // host::guest is how wasmtime writes it
	dir := wasi.Dir{Host: drive + host, Guest: guest, ReadOnly: readOnly}
	if !named {
		dir.Guest = dir.Host
	}
	if dir.Host == "" || dir.Guest == "" {
		return dir, errors.New("--dir " + text + ": want host[:guest][:ro]")
	}
	return dir, nil
}

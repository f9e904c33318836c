package vm

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"agentvm/internal/machine"
	"agentvm/internal/private"
)

// programs has the machine's compiled code by its cache directory. All VMs of the process share it.
var programs = shared[*machine.Program]{free: func(p *machine.Program) { _ = p.Close(context.Background()) }}

type program struct {
	*machine.Program
	entry *sharedEntry[*machine.Program]
}

// acquireProgram compiles the machine, or shares what another VM has compiled. cacheDir is a folder of the store. A cache that cannot be
// used, or whose key cannot be kept outside of the store, costs only time.
func acquireProgram(ctx context.Context, cacheDir string, log *slog.Logger) (*program, error) {
	e, err := programs.acquire(cacheDir, func() (*machine.Program, error) { return compile(context.WithoutCancel(ctx), cacheDir, log) })
	if err != nil {
		return nil, err
	}
	return &program{e.value, e}, nil
}

func compile(ctx context.Context, cacheDir string, log *slog.Logger) (program *machine.Program, err error) {
	start := time.Now()
	config := machine.ProgramConfig{CacheDir: cacheDir}
	if cacheDir != "" {
		config.CacheKey, err = private.CodeKey(filepath.Dir(cacheDir))
	}
	if err == nil {
		program, err = machine.NewProgram(ctx, config)
	}
	if err != nil && cacheDir != "" {
		log.Warn("compiled code cannot be kept, each start takes longer", "error", err)
		program, err = machine.NewProgram(ctx, machine.ProgramConfig{})
	}
	log.Debug("timing: compiled the machine", "took", time.Since(start))
	return program, err
}

func (p *program) release() { p.entry.release() }

package wasi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
	"github.com/tetratelabs/wazero/sys"

	"agentvm/internal/machine/wasmbin"
)

// Dir is a directory of the host that a command finds under a name of its own.
type Dir struct {
	Host, Guest string
	Root        *os.Root // the directory of the host when it is open already, which RunCommand closes; Host is then not used
	ReadOnly    bool
}

// CommandConfig says what [RunCommand] runs and with what.
type CommandConfig struct {
	Module []byte   // WebAssembly binary that exports _start
	Args   []string // the program's name first
	Env    []string // "KEY=value"
	Dirs   []Dir    // preopened from descriptor 3 on, in this order; with Link from 5 on
	// Link is the program's network, as modules of container2wasm have it: descriptor 3 is a listening socket from which the program
	// accepts Link, and 4 is Link itself, for programs that expect it accepted. RunCommand closes it. Nil: none.
	Link *Conn
	// Compiled is called when the module is compiled, before any of it is executed. Nil: nothing.
	Compiled func()
	// Started is called when its _start function begins. Nil: nothing.
	Started func()

	Stdin          io.Reader // nil: empty; see NewInput
	Stdout, Stderr io.Writer // nil: discarded

	Cache  wazero.CompilationCache // compiled modules, kept between runs; nil: none
	Logger *slog.Logger            // nil discards
}

// commandFeatures are what compilers for WASI use today: the second version of WebAssembly and the finished proposals
// that wazero has.
const commandFeatures = api.CoreFeaturesV2 | experimental.CoreFeaturesThreads | experimental.CoreFeaturesTailCall |
	experimental.CoreFeaturesExtendedConst

// RunCommand runs a WASI command to its end and returns the exit code that it gave to proc_exit, or 0. An error means
// that it could not be started, that it trapped, or that ctx was done first; then the error wraps ctx's.
func RunCommand(ctx context.Context, cfg CommandConfig) (exitCode int, err error) {
	s, err := cfg.system()
	if err != nil {
		return 0, err
	}
	defer func() {
		if closeErr := s.Close(); err == nil && closeErr != nil {
			err = fmt.Errorf("close files: %w", closeErr)
		}
	}()
	rc := wazero.NewRuntimeConfig().WithCoreFeatures(commandFeatures)
	if cfg.Cache != nil {
		rc = rc.WithCompilationCache(cfg.Cache)
	}
	// The compiler is most of a short command's time.
	ctx = WithSystem(experimental.WithCompilationWorkers(ctx, runtime.GOMAXPROCS(0)), s)
	rt := wazero.NewRuntimeWithConfig(ctx, rc)
	defer rt.Close(context.WithoutCancel(ctx))
	if _, err := Instantiate(ctx, rt); err != nil {
		return 0, err
	}
	return runStart(ctx, rt, cfg)
}

// system returns the System that a command sees.
func (cfg *CommandConfig) system() (*System, error) {
	s := NewSystem(Config{Args: cfg.Args, Env: cfg.Env, Logger: cfg.Logger})
	s.SetFile(0, NewInput(cfg.Stdin))
	s.SetFile(1, NewOutput(cfg.Stdout))
	s.SetFile(2, NewOutput(cfg.Stderr))
	next := int32(3)
	if cfg.Link != nil {
		s.SetFile(3, NewListener(cfg.Link))
		s.SetFile(4, cfg.Link)
		next = 5
	}
	for i, d := range cfg.Dirs {
		root := d.Root
		if root == nil {
			var err error
			if root, err = os.OpenRoot(d.Host); err != nil {
				_ = s.Close() // the first error is the one to report
				for _, later := range cfg.Dirs[i+1:] {
					if later.Root != nil {
						_ = later.Root.Close() // nothing was written
					}
				}
				return nil, fmt.Errorf("open directory for %s: %w", d.Guest, err)
			}
		}
		s.Preopen(next+int32(i), d.Guest, root, d.ReadOnly)
	}
	return s, nil
}

// runStart compiles the module and calls its _start function.
func runStart(ctx context.Context, rt wazero.Runtime, cfg CommandConfig) (int, error) {
	module, err := wasmbin.Stoppable(cfg.Module)
	if err != nil {
		return 0, fmt.Errorf("compile module: %w", err)
	}
	compiled, err := rt.CompileModule(ctx, module)
	if err != nil {
		return 0, fmt.Errorf("compile module: %w", err)
	}
	if _, ok := compiled.ExportedFunctions()["_start"]; !ok {
		return 0, errors.New("module is no WASI command: it exports no _start function")
	}
	if len(compiled.ExportedMemories()) == 0 {
		return 0, errors.New("module is no WASI command: it exports no memory")
	}
	if cfg.Compiled != nil {
		cfg.Compiled()
	}
	mod, err := rt.InstantiateModule(ctx, compiled, wazero.NewModuleConfig().WithStartFunctions())
	if err != nil {
		return 0, fmt.Errorf("instantiate module: %w", err)
	}
	defer context.AfterFunc(ctx, func() {
		mod.ExportedGlobal(wasmbin.StopGlobal).(api.MutableGlobal).Set(1)
	})()
	if cfg.Started != nil {
		cfg.Started()
	}
	_, err = mod.ExportedFunction("_start").Call(ctx)
	return exitCodeOf(ctx, err)
}

// exitCodeOf tells the ways apart in which _start ends.
func exitCodeOf(ctx context.Context, err error) (int, error) {
	var exit *sys.ExitError
	switch {
	case err == nil:
		return 0, nil
	case ctx.Err() != nil:
		return 0, fmt.Errorf("command stopped: %w", ctx.Err())
	case errors.As(err, &exit):
		return int(exit.ExitCode()), nil
	}
	return 0, fmt.Errorf("command trapped: %w", err)
}

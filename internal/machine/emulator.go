// Package machine runs the RISC-V machine: a module written in C (src/), compiled to WebAssembly and embedded here,
// executed slice by slice by wazero.
//
// A Program is the compiled module; it is safe for concurrent use and one serves a whole process. A Machine is one
// instance with its own linear memory, which holds all of the guest's state. Exactly one goroutine may call a
// Machine's methods at a time; the one that called Run owns it until Run returns. Other goroutines reach the guest
// only through the files given in Config, which wake the machine.
//
// Between two slices a machine is nothing but its memory: Capture makes a MemoryImage of it, and Restore makes machines from
// that, which continue where it was.
//
// The package opens no sockets or processes. A Machine that was restored has a goroutine for some milliseconds, which copies pages that it is
// expected to write (MemoryImage.Expect) and which Close waits for; one that saves translated code comes and goes with a batch of it, and closing a
// machine waits for that, too; there are no others. The only files it makes are those of captured
// images, which have no name (on Windows: temporary ones), and the cache of compiled code. Hot code of guests is translated by the goroutine
// that runs the machine (docs/internals/translator.md).
package machine

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"sync"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"agentvm/internal/host/embedded"
	"agentvm/internal/host/platform"
	"agentvm/wasi"
)

// The modules are made by build.sh (`make wasm`) from src/.
var (
	//go:embed machine.wasm
	riscv64Module []byte
	//go:embed machine-arm64.wasm
	arm64Module []byte
	//go:embed machine-arm64-harts.wasm.zst
	arm64HartsCompressed []byte
)

var arm64HartsModule = sync.OnceValues(func() ([]byte, error) {
	return embedded.Unpack("machine-arm64-harts.wasm", arm64HartsCompressed)
})

// Program is the machine's compiled module in a wazero runtime of its own.
type Program struct {
	processor  *processor
	runtime    wazero.Runtime
	compiled   wazero.CompiledModule
	translator *translator

	copyImages bool // for tests: images are copied even where they could be mapped
}

// ProgramConfig says how to compile the module. The zero value compiles on each start and keeps nothing.
type ProgramConfig struct {
	// Architecture is the guest's. Empty: platform.Default.
	Architecture platform.Architecture
	// CacheDir keeps native code between processes. The files in it are executed: it must belong to the user alone, as
	// internal/host/private says, and is made with mode 0700 when it is missing. Empty: no cache.
	CacheDir string
	// CacheKey authenticates the files of CacheDir: those that were written with another key are not used, and replaced. 32 bytes
	// that no guest can read; required with CacheDir.
	CacheKey []byte
	// Harts is whether the machines may have several processors. Those that have one are slower with it.
	Harts bool
	// Interpreter makes wazero interpret the module instead of compiling it, some 50 times slower. It is what
	// happens anyway on processors that wazero has no compiler for.
	Interpreter bool
	// Module replaces the embedded machine by another build of the same sources, for benchmarks. Nil: the embedded one.
	Module []byte
	// Translation says what becomes of code that is executed often.
	Translation Translation
	// CodeBytes bounds the translated code of each machine; 0 is DefaultCodeBytes.
	CodeBytes int64
	// Translations keeps translated code between processes. Nil: each begins without any.
	Translations Translations
}

// NewProgram compiles the machine's module: about 0.3 s, or a few milliseconds from a warm cache.
func NewProgram(ctx context.Context, cfg ProgramConfig) (*Program, error) {
	processor, err := processorOf(cmp.Or(cfg.Architecture, platform.Default))
	if err != nil {
		return nil, err
	}
	runtimeConfig, files, err := runtimeConfig(cfg)
	if err != nil {
		return nil, err
	}
	p := &Program{processor: processor, runtime: wazero.NewRuntimeWithConfig(ctx, runtimeConfig), translator: newTranslator(processor, cfg)}
	if _, err := wasi.Instantiate(ctx, p.runtime); err != nil {
		p.Close(ctx)
		return nil, fmt.Errorf("register the WASI functions: %w", err)
	}
	if err := instantiateNative(ctx, p.runtime); err != nil {
		p.Close(ctx)
		return nil, fmt.Errorf("register the way into native code: %w", err)
	}
	if err := instantiateHarts(ctx, p.runtime); err != nil {
		p.Close(ctx)
		return nil, fmt.Errorf("register what harts ask the host for: %w", err)
	}
	module := cfg.Module
	if module == nil && cfg.Harts {
		if module, err = processor.moduleForHarts(); err != nil {
			p.Close(ctx)
			return nil, err
		}
	}
	if module == nil {
		module = processor.module
	}
	if p.compiled, err = compile(ctx, p.runtime, module, files); err != nil {
		p.Close(ctx)
		return nil, fmt.Errorf("compile the machine: %w", err)
	}
	return p, nil
}

// runtimeConfig is how wazero is to run the machine, and its cache's files; nil: there is no cache.
func runtimeConfig(cfg ProgramConfig) (wazero.RuntimeConfig, *codeFiles, error) {
	c := wazero.NewRuntimeConfig()
	if cfg.Interpreter {
		c = wazero.NewRuntimeConfigInterpreter()
	}
	c = c.WithCoreFeatures(api.CoreFeaturesV2 | experimental.CoreFeaturesThreads).WithDebugInfoEnabled(false)
	if cfg.CacheDir == "" {
		return c, nil, nil
	}
	files, err := newCodeFiles(cfg.CacheDir, cfg.CacheKey)
	if err != nil {
		return nil, nil, fmt.Errorf("open the cache of compiled code: %w", err)
	}
	cache, err := withFiles(files)
	if err != nil {
		return nil, nil, fmt.Errorf("open the cache of compiled code: %w", err)
	}
	return c.WithCompilationCache(cache), files, nil
}

// Close frees the compiled code. No Machine of the program may be in use.
func (p *Program) Close(ctx context.Context) error { return p.runtime.Close(ctx) }

// ModuleDigest identifies the machine for an architecture that this program holds: "sha256:" and the digest of its module. It is empty for an
// architecture that there is no machine for. Machines of several processors have a module of their own.
func ModuleDigest(architecture platform.Architecture, harts int) string {
	p, err := processorOf(architecture)
	if err != nil {
		return ""
	}
	return p.digest(harts > 1)
}

package machine

import (
	"context"
	"runtime"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"golang.org/x/sys/cpu"

	"agentvm/internal/host/debugenv"
	"agentvm/internal/host/platform"
	"agentvm/internal/machine/native"
	"agentvm/internal/machine/native/blocks"
)

// Translation says what becomes of guest code that is executed often.
type Translation int

const (
	// TranslateDefault is TranslateHot after a machine's first million instructions, but TranslateNever for deterministic machines.
	TranslateDefault Translation = iota
	// TranslateNever interprets everything. It is all there is where there is no translator for the system, or wazero has no compiler for the
	// processor, and when AGENTVM_DEBUG contains "nojit".
	TranslateNever
	// TranslateHot translates hot code between two slices, the same each time.
	TranslateHot
	// TranslateAll translates code when it is first reached, before it is executed. Slow: for tests.
	TranslateAll
)

// DefaultCodeBytes bounds the translated code of a machine.
const DefaultCodeBytes = 256 << 20

// translator is what the machines of a Program have in common.
type translator struct {
	mode    Translation
	limit   int // bytes of a machine's code: when it is used up, all is forgotten. Memory that it shares with others counts for each of them
	library *native.Library
	make    func(*blocks.Layout, blocks.Page) (blocks.Translation, bool) // native.Translate, but in tests
	unsaved *unsaved                                                     // nil: nothing outlives the process
}

func newTranslator(p *processor, cfg ProgramConfig) *translator {
	t := &translator{mode: translationMode(p, cfg), limit: int(cfg.CodeBytes), make: native.Translate}
	if t.limit == 0 {
		t.limit = DefaultCodeBytes
	}
	t.library = native.NewLibrary(t.limit)
	if cfg.Translations != nil {
		t.unsaved = newUnsaved(cfg.Translations)
	}
	return t
}

func translationMode(p *processor, cfg ProgramConfig) Translation {
	if debugenv.Has("nojit") || cfg.Interpreter || !native.Translates(p.guest) || runtime.GOARCH == "amd64" && !cpu.X86.HasSSE41 {
		return TranslateNever
	}
	return cfg.Translation
}

// translates tells whether a machine does.
func (t *translator) translates(deterministic bool) bool {
	return t.mode != TranslateNever && !(deterministic && t.mode == TranslateDefault)
}

// TranslatesByDefault tells whether machines of a ProgramConfig with nothing but an architecture translate code that is hot. They decode code in another way, which
// stays so in their images: a machine of the other kind is correct, and slower.
func TranslatesByDefault(architecture platform.Architecture) bool {
	p, err := processorOf(architecture)
	return err == nil && translationMode(p, ProgramConfig{}) != TranslateNever
}

// nativeKey is the key of a machine's *machineJIT in the context of its calls.
type nativeKey struct{}

// instantiateNative makes the module whose function the machine enters native code by, see src/common/jit.c.
func instantiateNative(ctx context.Context, runtime wazero.Runtime) error {
	enter := func(ctx context.Context, stack []uint64) {
		ctx.Value(nativeKey{}).(*machineJIT).enter(uint32(stack[1]), stack[2], stack[3], uint32(stack[4]))
	}
	parameters := []api.ValueType{api.ValueTypeI32, api.ValueTypeI32, api.ValueTypeI64, api.ValueTypeI64, api.ValueTypeI32}
	_, err := runtime.NewHostModuleBuilder("native").NewFunctionBuilder().
		WithGoFunction(api.GoFunc(enter), parameters, nil).Export("enter").Instantiate(ctx)
	return err
}

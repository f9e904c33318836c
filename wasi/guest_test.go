package wasi

import (
	"context"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// guest is an instance of a module that has two pages of memory and exports each function of preview 1 through a
// wrapper, so that tests call the host functions the way a guest does.
type guest struct {
	testing.TB
	ctx context.Context
	sys *System
	mod api.Module
	top uint32 // of the memory that alloc has given out
}

// newGuest returns a guest of a new System.
func newGuest(tb testing.TB, cfg Config) *guest {
	tb.Helper()
	ctx := context.Background()
	rt := wazero.NewRuntimeWithConfig(ctx, runtimeConfig())
	tb.Cleanup(func() { _ = rt.Close(ctx) })
	if _, err := Instantiate(ctx, rt); err != nil {
		tb.Fatal(err)
	}
	return instantiateGuest(tb, rt, cfg)
}

// instantiateGuest adds a guest to a runtime that has the host module.
func instantiateGuest(tb testing.TB, rt wazero.Runtime, cfg Config) *guest {
	tb.Helper()
	s := NewSystem(cfg)
	tb.Cleanup(func() { _ = s.Close() })
	ctx := WithSystem(context.Background(), s)
	compiled, err := rt.CompileModule(ctx, wrapperModule())
	if err != nil {
		tb.Fatal(err)
	}
	mod, err := rt.InstantiateModule(ctx, compiled, wazero.NewModuleConfig().WithName(""))
	if err != nil {
		tb.Fatal(err)
	}
	return &guest{TB: tb, ctx: ctx, sys: s, mod: mod, top: 16}
}

// compilationCache is shared by the tests' runtimes; compiling the same module again would dominate fuzzing.
var compilationCache = wazero.NewCompilationCache()

func runtimeConfig() wazero.RuntimeConfig {
	return wazero.NewRuntimeConfig().WithCompilationCache(compilationCache)
}

// call calls a function by name and returns its errno.
func (g *guest) call(name string, params ...uint64) Errno {
	g.Helper()
	res, err := g.mod.ExportedFunction(name).Call(g.ctx, params...)
	if err != nil {
		g.Fatalf("%s: %v", name, err)
	}
	return Errno(res[0])
}

// want calls a function and checks its errno.
func (g *guest) want(errno Errno, name string, params ...uint64) {
	g.Helper()
	if got := g.call(name, params...); got != errno {
		g.Errorf("%s%v = %v, want %v", name, params, got, errno)
	}
}

// alloc reserves n bytes of the guest's memory, zeroed.
func (g *guest) alloc(n int) uint64 {
	g.Helper()
	at := g.top
	g.top += uint32(n+15) &^ 15
	clear(g.bytes(uint64(at), n))
	return uint64(at)
}

// reset frees all that alloc gave out.
func (g *guest) reset() { g.top = 16 }

// bytes returns guest memory.
func (g *guest) bytes(at uint64, n int) []byte {
	g.Helper()
	b, ok := g.mod.Memory().Read(uint32(at), uint32(n))
	if !ok {
		g.Fatalf("guest memory has no %d bytes at %#x", n, at)
	}
	return b
}

// put copies a string into guest memory and returns pointer and length, ready to be parameters.
func (g *guest) put(s string) (at, n uint64) {
	at = g.alloc(len(s))
	copy(g.bytes(at, len(s)), s)
	return at, uint64(len(s))
}

// u32 and u64 read results.
func (g *guest) u32(at uint64) uint32 { return le.Uint32(g.bytes(at, 4)) }
func (g *guest) u64(at uint64) uint64 { return le.Uint64(g.bytes(at, 8)) }

// iovec makes an array of buffers with the given lengths and returns it and the first buffer, which the others follow
// without gaps.
func (g *guest) iovec(lengths ...int) (vec, buf uint64) {
	total := 0
	for _, n := range lengths {
		total += n
	}
	vec, buf = g.alloc(8*len(lengths)), g.alloc(total)
	at := buf
	for i, n := range lengths {
		le.PutUint32(g.bytes(vec+uint64(8*i), 8), uint32(at))
		le.PutUint32(g.bytes(vec+uint64(8*i+4), 4), uint32(n))
		at += uint64(n)
	}
	return vec, buf
}

// wrapperModule assembles the module: types, imports, wrappers, memory and exports, in that order.
func wrapperModule() []byte {
	var types, imports, funcs, exports, bodies [][]byte
	exports = append(exports, append(wasmName("memory"), 2, 0))
	all := append([]function{{name: "proc_exit", params: "i"}}, functions...)
	for i, f := range all {
		result := []byte{1, 0x7f}
		if f.name == "proc_exit" {
			result = []byte{0}
		}
		types = append(types, append(append([]byte{0x60, byte(len(f.params))}, signature(f.params)...), result...))
		imports = append(imports, append(append(wasmName(ModuleName), wasmName(f.name)...), 0, byte(i)))
		funcs = append(funcs, []byte{byte(i)})
		exports = append(exports, append(wasmName(f.name), 0, byte(len(all)+i)))
		body := []byte{0} // no locals
		for p := range f.params {
			body = append(body, 0x20, byte(p)) // local.get
		}
		body = append(body, 0x10, byte(i), 0x0b) // call, end
		bodies = append(bodies, append([]byte{byte(len(body))}, body...))
	}
	module := []byte{0, 'a', 's', 'm', 1, 0, 0, 0}
	for _, s := range []struct {
		id    byte
		items [][]byte
	}{{1, types}, {2, imports}, {3, funcs}, {5, [][]byte{{0, 2}}}, {7, exports}, {10, bodies}} {
		module = append(module, wasmSection(s.id, s.items)...)
	}
	return module
}

// wasmSection encodes a vector of items as a section.
func wasmSection(id byte, items [][]byte) []byte {
	content := []byte{byte(len(items))}
	for _, item := range items {
		content = append(content, item...)
	}
	n := len(content)
	return append([]byte{id, byte(n&0x7f | 0x80), byte(n >> 7)}, content...)
}

// wasmName encodes a string.
func wasmName(s string) []byte { return append([]byte{byte(len(s))}, s...) }

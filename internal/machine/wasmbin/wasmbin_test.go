package wasmbin

import (
	"bytes"
	"errors"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
)

// compile has wazero validate a module with each proposal that package wasi allows.
func compile(t testing.TB, module []byte) error {
	features := api.CoreFeaturesV2 | experimental.CoreFeaturesThreads | experimental.CoreFeaturesTailCall | experimental.CoreFeaturesExtendedConst
	runtime := wazero.NewRuntimeWithConfig(t.Context(), wazero.NewRuntimeConfigInterpreter().WithCoreFeatures(features))
	defer runtime.Close(t.Context())
	_, err := runtime.CompileModule(t.Context(), module)
	return err
}

// modules returns the machines and WebAssembly's own tests, which wazero's source has.
func modules(t testing.TB) map[string][]byte {
	source, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/tetratelabs/wazero").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	all := make(map[string][]byte)
	for _, pattern := range []string{"../*.wasm", filepath.Join(strings.TrimSpace(string(source)), "internal/integration_test/spectest/*/testdata/*.wasm")} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			if all[file], err = os.ReadFile(file); err != nil {
				t.Fatal(err)
			}
		}
	}
	return all
}

// TestStoppable: modules that are valid stay valid, and export the variable.
func TestStoppable(t *testing.T) {
	valid := 0
	for name, module := range modules(t) {
		if compile(t, module) != nil {
			continue // a test of what is no module, or has a proposal that is not allowed
		}
		valid++
		changed, err := Stoppable(module)
		if err == nil {
			err = compile(t, changed)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !bytes.Contains(changed, []byte(StopGlobal)) {
			t.Errorf("%s does not export the variable", name)
		}
	}
	if valid < 1000 {
		t.Errorf("%d valid modules, want WebAssembly's own tests", valid)
	}
}

// TestHollow: modules that are valid stay valid without what their functions do, and differ if those do.
func TestHollow(t *testing.T) {
	valid := 0
	for name, module := range modules(t) {
		if compile(t, module) != nil {
			continue
		}
		valid++
		hollow, err := Hollow(module)
		if err == nil {
			err = compile(t, hollow)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if valid < 1000 {
		t.Errorf("%d valid modules, want WebAssembly's own tests", valid)
	}
	// A type and a function of it, which does nothing, or a nop.
	function := AppendSection(AppendSection(AppendHeader(nil), 1, []byte{1, 0x60, 0, 0}), 3, []byte{1, 0})
	one, err := Hollow(AppendSection(bytes.Clone(function), SectionCode, []byte{1, 2, 0, 0x0b}))
	other, err2 := Hollow(AppendSection(bytes.Clone(function), SectionCode, []byte{1, 3, 0, 0x01, 0x0b}))
	if err != nil || err2 != nil || bytes.Equal(one, other) {
		t.Errorf("two modules have the same hollow one (%v, %v)", err, err2)
	}
}

// TestCounts: what a section says it has is in it, before anything allocates that much.
func TestCounts(t *testing.T) {
	module := AppendSection(AppendHeader(nil), 3, []byte{0xff, 0xff, 0xff, 0xff, 0x0f, 0})
	if _, err := Stoppable(module); !errors.Is(err, ErrDamaged) {
		t.Error(err)
	}
	if _, err := Hollow(AppendSection(AppendHeader(nil), SectionCode, []byte{0xff, 0xff, 0xff, 0xff, 0x0f, 0})); !errors.Is(err, ErrDamaged) {
		t.Error(err)
	}
}

// TestDamaged: what is cut off anywhere is no module.
func TestDamaged(t *testing.T) {
	module, err := os.ReadFile("../machine.wasm")
	if err != nil {
		t.Fatal(err)
	}
	ends := map[int]bool{len(header): true} // of sections: what is missing there, wazero says
	sections, err := Sections(module)
	if err != nil {
		t.Fatal(err)
	}
	end := len(header)
	for _, s := range sections {
		end += len(s.Raw)
		ends[end] = true
	}
	for cut := 0; cut < len(module); cut += 7 {
		if _, err := Stoppable(module[:cut]); !ends[cut] && !errors.Is(err, ErrDamaged) {
			t.Errorf("cut after %d bytes: %v", cut, err)
		}
	}
}

// FuzzStoppable: what is made can be read again. Whether it is valid, wazero says in TestStoppable; it allocates as much as a damaged module
// says that it has.
func FuzzStoppable(f *testing.F) {
	for name, module := range modules(f) {
		if len(module) < 1<<10 && crc32.ChecksumIEEE([]byte(name))%16 == 0 { // a seed of each kind is enough
			f.Add(module)
		}
	}
	f.Fuzz(func(t *testing.T, module []byte) {
		changed, err := Stoppable(module)
		if err != nil {
			return
		}
		if _, err := Stoppable(changed); err != nil {
			t.Error(err)
		}
	})
}

package machine_test

import (
	"os"
	"runtime"
	"testing"

	"agentvm/internal/host/platform"
	"agentvm/internal/machine"
	"agentvm/internal/machine/riscv"
)

// TestTranslatesByDefault: hot code is translated where wazero compiles, unless the user or the program says no.
func TestTranslatesByDefault(t *testing.T) {
	compiled := runtime.GOARCH == "amd64" || runtime.GOARCH == "arm64"
	for _, tt := range []struct {
		words string
		want  bool
	}{
		{"", compiled}, {"jit", compiled}, {"timing,jitstats", compiled},
		{"nojit", false}, {"log,nojit,jitstats", false}, {"log, nojit", false},
	} {
		t.Setenv("AGENTVM_DEBUG", tt.words)
		if got := machine.TranslatesByDefault(platform.RISCV64); got != tt.want {
			t.Errorf("TranslatesByDefault() = %v with AGENTVM_DEBUG=%q on %s", got, tt.words, runtime.GOARCH)
		}
	}
}

// TestDefaultPlatformIsTranslated: an image that is for several platforms does not run interpreted where another would be translated.
func TestDefaultPlatformIsTranslated(t *testing.T) {
	for _, a := range platform.Supported() {
		if machine.TranslatesByDefault(a) && !machine.TranslatesByDefault(platform.Default) {
			t.Errorf("%s is translated on %s and %s, the default, is not", a, runtime.GOARCH, platform.Default)
		}
	}
}

// TestTranslationWithoutFiles: code is translated, too, where nothing can be kept, as on a disk that is full.
func TestTranslationWithoutFiles(t *testing.T) {
	dir := t.TempDir()
	p := programThat(t, machine.ProgramConfig{Translation: machine.TranslateHot, CacheDir: dir, CacheKey: make([]byte, 32)})
	if err := os.RemoveAll(dir); err != nil { // root could write to any folder
		t.Fatal(err)
	}
	m, err := p.NewMachine(t.Context(), machine.Config{Memory: 16 << 20, MachineMode: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	loadCode(t, m, addiX1, encode("jal", riscv.Operands{Imm: -4}))
	for range 30 {
		if _, _, err := m.Step(100_000); err != nil {
			t.Fatal(err)
		}
	}
	if s := m.JITStats(); s.Executed == 0 {
		t.Errorf("nothing was translated: %+v", s)
	}
	if files, err := os.ReadDir(dir); err == nil && len(files) > 0 {
		t.Errorf("something was kept: %v", files)
	}
}

// TestFirstInstructionsAreInterpreted: what starts a machine is executed once, and not worth its translation; the bound counts from the machine's
// own beginning.
func TestFirstInstructionsAreInterpreted(t *testing.T) {
	p := programThat(t, machine.ProgramConfig{})
	m, err := p.NewMachine(t.Context(), machine.Config{Memory: 16 << 20, MachineMode: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	loadCode(t, m, addiX1, encode("jal", riscv.Operands{Imm: -4}))
	for m.Retired() < 3_000_000 {
		before := m.JITStats().Executed
		if _, _, err := m.Step(100_000); err != nil {
			t.Fatal(err)
		}
		if after := m.JITStats().Executed; m.Retired() <= 1_000_000 && after > 0 {
			t.Fatalf("after %d instructions %d were translated", m.Retired(), after)
		} else if m.Retired() > 2_000_000 && after == before {
			t.Fatalf("after %d instructions none of the last was translated", m.Retired())
		}
	}
}

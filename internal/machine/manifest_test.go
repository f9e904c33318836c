package machine

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// manifest is machine.json, what build.sh says about its result.
type manifest struct {
	Artifact string `json:"artifact"`
	Command  string `json:"command"`
	Licence  string `json:"licence"`
	SHA256   string `json:"sha256"`
	Bytes    int    `json:"bytes"`
	// The same of standalone.wasm.
	StandaloneSHA256 string `json:"standalone_sha256"`
	StandaloneBytes  int    `json:"standalone_bytes"`
	// And of machine-arm64.wasm.
	ARM64SHA256 string `json:"arm64_sha256"`
	ARM64Bytes  int    `json:"arm64_bytes"`
	// And of standalone-arm64.wasm.
	StandaloneARM64SHA256 string `json:"standalone_arm64_sha256"`
	StandaloneARM64Bytes  int    `json:"standalone_arm64_bytes"`
	// And of machine-arm64-harts.wasm.
	ARM64HartsSHA256 string `json:"arm64_harts_sha256"`
	ARM64HartsBytes  int    `json:"arm64_harts_bytes"`
	// Toolchain names the compiler and the linker; others may give other bytes.
	Toolchain map[string]string `json:"toolchain"`
	// Sources are all files that the module is made of, with their SHA-256.
	Sources map[string]string `json:"sources"`
}

// A changed source without a rebuild is the mistake this is for. Whether the bytes are what the sources give, only a
// rebuild can tell: .ci/run does that.
func TestModuleIsBuiltFromTheseSources(t *testing.T) {
	text, err := os.ReadFile("machine.json")
	if err != nil {
		t.Fatal(err)
	}
	var recorded manifest
	if err := json.Unmarshal(text, &recorded); err != nil {
		t.Fatalf("machine.json: %v", err)
	}
	standalone, err := riscv64Processor.standalone()
	if err != nil {
		t.Fatal(err)
	}
	standaloneARM64, err := arm64Processor.standalone()
	if err != nil {
		t.Fatal(err)
	}
	harts, err := arm64HartsModule()
	if err != nil {
		t.Fatal(err)
	}
	now := manifest{
		ARM64HartsSHA256: sha256Hex(harts), ARM64HartsBytes: len(harts),
		StandaloneSHA256: sha256Hex(standalone), StandaloneBytes: len(standalone),
		StandaloneARM64SHA256: sha256Hex(standaloneARM64), StandaloneARM64Bytes: len(standaloneARM64),
		Artifact: "machine.wasm", Command: "internal/machine/build.sh", Licence: "Apache-2.0",
		SHA256: sha256Hex(riscv64Module), Bytes: len(riscv64Module), ARM64SHA256: sha256Hex(arm64Module), ARM64Bytes: len(arm64Module),
		Toolchain: recorded.Toolchain, Sources: moduleSources(t),
	}
	if diff := cmp.Diff(recorded, now); diff != "" {
		t.Errorf("the machine's sources and the committed module differ, run `make wasm` (-recorded +now):\n%s", diff)
	}
	for _, tool := range []string{"clang-19", "wasm-ld-19"} {
		if recorded.Toolchain[tool] == "" {
			t.Errorf("machine.json does not say which %s made the module", tool)
		}
	}
}

// moduleSources are the files that build.sh reads, and the tables that two of them are generated from.
func moduleSources(t *testing.T) map[string]string {
	t.Helper()
	files := []string{"build.sh", filepath.Join("a64", "instructions.tbl"), filepath.Join("riscv", "instructions.tbl")}
	for _, folder := range []string{"arm64", "common", "riscv64"} {
		found, err := filepath.Glob(filepath.Join("src", folder, "*.[chs]"))
		if err != nil || len(found) == 0 {
			t.Fatalf("no sources in src/%s: %v", folder, err)
		}
		files = append(files, found...)
	}
	sums := map[string]string{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sums[filepath.ToSlash(file)] = sha256Hex(data)
	}
	return sums
}

func sha256Hex(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

package machine_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

const (
	fpVectorSize  = 32   // struct fp_vector of src/test/fp_vectors.h
	fpOutcomeSize = 16   // struct fp_outcome
	fpBatch       = 4096 // BATCH of src/test/fp_export.c
	fpInexact     = 1    // fflags.NX
	fpSeed        = "1"
)

// TestFloatingPoint compares the machine's arithmetic with two references, values and flags, bit for bit: this
// processor (x86-64: four rounding modes, millions of vectors) and RISC-V instructions under QEMU (all five modes,
// every operation). The native build runs under UBSan; the WebAssembly build runs in wazero, as in the machine. Each
// comparison is made with NX clear before, which keeps to software, and with NX set, which allows the fast paths.
func TestFloatingPoint(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux: Debian's compilers and QEMU's user mode")
	}
	check := buildFPCheck(t)
	t.Run("x86", func(t *testing.T) {
		if runtime.GOARCH != "amd64" {
			t.Skip("needs an x86-64 processor")
		}
		t.Log(runFP(t, exec.Command(check, "hardware", fpSeed, fpCount("10000", "500"))))
	})
	t.Run("RISC-V", func(t *testing.T) {
		vectors, outcomes := riscvOutcomes(t, check)
		t.Run("native", func(t *testing.T) {
			t.Log(runFP(t, exec.Command(check, "compare", vectors, outcomes)))
		})
		t.Run("WebAssembly", func(t *testing.T) {
			compareFPModule(t, buildFPModule(t), vectors, outcomes)
		})
	})
}

// fpCount is the number of random vectors for each operation and rounding mode.
func fpCount(usual, short string) string {
	if testing.Short() {
		return short
	}
	return usual
}

// debianTool finds a program. Its absence skips the test, but fails it in CI, where the tools are installed.
func debianTool(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil && os.Getenv("CI") == "true" {
		t.Fatalf("%s is missing, and CI must not skip this test", name)
	}
	if err != nil {
		t.Skipf("needs %s", name)
	}
	return path
}

func runFP(t testing.TB, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return string(bytes.TrimSpace(out))
}

func fpSources(t testing.TB, patterns ...string) []string {
	t.Helper()
	var files []string
	for _, pattern := range patterns {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("no sources match %s: %v", pattern, err)
		}
		files = append(files, found...)
	}
	return files
}

// compileFP compiles sources with strict warnings and returns the result's path.
func compileFP(t testing.TB, compiler string, flags, sources []string) string {
	t.Helper()
	output := filepath.Join(t.TempDir(), "fp")
	args := append([]string{"-std=c17", "-Wall", "-Wextra", "-Werror", "-o", output}, flags...)
	runFP(t, exec.Command(debianTool(t, compiler), append(args, sources...)...))
	return output
}

func buildFPCheck(t *testing.T) string {
	t.Helper()
	// Contraction would round a*b+c once where the sources mean twice; errno would make square roots library calls.
	flags := []string{"-O2", "-ffp-contract=off", "-fno-math-errno", "-fsanitize=undefined", "-fno-sanitize-recover=all"}
	return compileFP(t, "gcc", flags, fpSources(t, "src/common/fp_*.c", "src/test/fp_check.c", "src/test/fp_apply.c",
		"src/test/fp_operands.c", "src/test/fp_hardware.c"))
}

func buildFPModule(t testing.TB) []byte {
	t.Helper()
	debianTool(t, "wasm-ld-19") // clang calls it
	flags := []string{"--target=wasm32", "-O3", "-ffreestanding", "-nostdlib", "-mbulk-memory", "-msign-ext",
		"-mnontrapping-fptoint", "-fno-strict-aliasing", "-ffp-contract=off", "-Wl,--no-entry"}
	path := compileFP(t, "clang-19", flags, fpSources(t, "src/common/fp_*.c", "src/test/fp_export.c", "src/test/fp_apply.c"))
	module, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return module
}

// riscvOutcomes writes random vectors and what RISC-V instructions make of them, and returns both files.
func riscvOutcomes(t *testing.T, check string) (vectors, outcomes string) {
	t.Helper()
	qemu := debianTool(t, "qemu-riscv64-static")
	guest := compileFP(t, "riscv64-linux-gnu-gcc", []string{"-O2", "-static"}, fpSources(t, "src/test/fp_guest.c"))
	dir := t.TempDir()
	vectors, outcomes = filepath.Join(dir, "vectors"), filepath.Join(dir, "outcomes")
	redirectFP(t, exec.Command(check, "generate", fpSeed, fpCount("8000", "300")), "", vectors)
	redirectFP(t, exec.Command(qemu, guest), vectors, outcomes)
	return vectors, outcomes
}

// redirectFP runs cmd with files as standard input (none when empty) and output.
func redirectFP(t *testing.T, cmd *exec.Cmd, input, output string) {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if input != "" {
		in, err := os.Open(input)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		cmd.Stdin = in
	}
	out, err := os.Create(output)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout = out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, stderr.Bytes())
	}
}

// fpModule is src/test/fp_export.c in wazero.
type fpModule struct {
	module            api.Module
	execute           api.Function
	vectors, outcomes uint32
}

func newFPModule(t testing.TB, binary []byte) *fpModule {
	t.Helper()
	ctx := context.Background()
	runtime := wazero.NewRuntime(ctx)
	t.Cleanup(func() { runtime.Close(ctx) })
	module, err := runtime.Instantiate(ctx, binary)
	if err != nil {
		t.Fatal(err)
	}
	return &fpModule{
		module:   module,
		execute:  module.ExportedFunction("execute"),
		vectors:  fpAddress(t, module, "vectors"),
		outcomes: fpAddress(t, module, "outcomes"),
	}
}

func fpAddress(t testing.TB, module api.Module, function string) uint32 {
	t.Helper()
	results, err := module.ExportedFunction(function).Call(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return uint32(results[0])
}

// run executes up to fpBatch vectors and returns their outcomes, which stay valid until the next call.
func (m *fpModule) run(t testing.TB, vectors []byte, accrued uint64) []byte {
	t.Helper()
	count := len(vectors) / fpVectorSize
	if !m.module.Memory().Write(m.vectors, vectors) {
		t.Fatal("vectors do not fit the module's memory")
	}
	if _, err := m.execute.Call(context.Background(), uint64(count), accrued); err != nil {
		t.Fatal(err)
	}
	outcomes, ok := m.module.Memory().Read(m.outcomes, uint32(count*fpOutcomeSize))
	if !ok {
		t.Fatal("outcomes are outside the module's memory")
	}
	return outcomes
}

func compareFPModule(t *testing.T, binary []byte, vectorsPath, outcomesPath string) {
	t.Helper()
	vectors, want := readFP(t, vectorsPath), readFP(t, outcomesPath)
	if len(vectors)/fpVectorSize != len(want)/fpOutcomeSize || len(want) == 0 {
		t.Fatalf("%d bytes of vectors gave %d bytes of outcomes", len(vectors), len(want))
	}
	module := newFPModule(t, binary)
	for len(vectors) > 0 {
		count := min(fpBatch, len(vectors)/fpVectorSize)
		batch, expected := vectors[:count*fpVectorSize], want[:count*fpOutcomeSize]
		compareFPBatch(t, batch, module.run(t, batch, 0), expected, 0)
		compareFPBatch(t, batch, module.run(t, batch, fpInexact), expected, fpInexact)
		vectors, want = vectors[len(batch):], want[len(expected):]
	}
}

func readFP(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// compareFPBatch ends the test at the first outcome that is not the reference's with the accrued flags added.
func compareFPBatch(t *testing.T, vectors, got, want []byte, accrued uint64) {
	t.Helper()
	for i := 0; i*fpOutcomeSize < len(want); i++ {
		value, flags := fpOutcome(got, i)
		wantValue, wantFlags := fpOutcome(want, i)
		if value != wantValue || flags != wantFlags|accrued {
			t.Fatalf("%s, fflags before %#x: got %#x fflags %#x, RISC-V says %#x fflags %#x",
				describeFPVector(vectors[i*fpVectorSize:]), accrued, value, flags, wantValue, wantFlags|accrued)
		}
	}
}

func fpOutcome(outcomes []byte, i int) (value, flags uint64) {
	outcome := outcomes[i*fpOutcomeSize:]
	return binary.LittleEndian.Uint64(outcome), binary.LittleEndian.Uint64(outcome[8:])
}

func describeFPVector(vector []byte) string {
	u32, u64 := binary.LittleEndian.Uint32, binary.LittleEndian.Uint64
	return "operation " + strconv.Itoa(int(u32(vector))) + " of fp_vectors.h, rm=" + strconv.Itoa(int(u32(vector[4:]))) +
		" a=0x" + strconv.FormatUint(u64(vector[8:]), 16) + " b=0x" + strconv.FormatUint(u64(vector[16:]), 16) +
		" c=0x" + strconv.FormatUint(u64(vector[24:]), 16)
}

// BenchmarkFloatingPoint measures operations in wazero, with the fast path (NX set before) and without.
func BenchmarkFloatingPoint(b *testing.B) {
	module := newFPModule(b, buildFPModule(b))
	operations := []string{ // in the order of fp_vectors.h
		"f32_add", "f32_sub", "f32_mul", "f32_div", "f32_sqrt", "f32_fma",
		"f64_add", "f64_sub", "f64_mul", "f64_div", "f64_sqrt", "f64_fma",
	}
	for number, name := range operations {
		vectors := benchmarkVectors(uint32(number), name[:3] == "f32")
		b.Run(name+"/fast", func(b *testing.B) { benchmarkFP(b, module, vectors, fpInexact) })
		b.Run(name+"/software", func(b *testing.B) { benchmarkFP(b, module, vectors, 0) })
	}
}

// benchmarkVectors has numbers in [1, 2) with full fractions, so that nearly all results are inexact.
func benchmarkVectors(operation uint32, narrow bool) []byte {
	random := rand.New(rand.NewPCG(1, 2))
	var vectors []byte
	for range fpBatch {
		vectors = binary.LittleEndian.AppendUint64(vectors, uint64(operation)) // rounding to nearest in the high half
		for range 3 {
			value := math.Float64bits(1 + random.Float64())
			if narrow {
				value = uint64(math.Float32bits(1 + random.Float32()))
			}
			vectors = binary.LittleEndian.AppendUint64(vectors, value)
		}
	}
	return vectors
}

func benchmarkFP(b *testing.B, module *fpModule, vectors []byte, accrued uint64) {
	batches := 0
	for b.Loop() {
		module.run(b, vectors, accrued)
		batches++
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(batches*fpBatch), "ns/operation")
}

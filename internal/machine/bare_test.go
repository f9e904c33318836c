package machine_test

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentvm/internal/machine"
)

const bareMemory = 64 << 20

// assemble makes a bare program of a file in testdata/bare.
func assemble(t *testing.T, source string) []byte {
	t.Helper()
	gcc := debianTool(t, "riscv64-linux-gnu-gcc")
	output := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command(gcc, "-nostdlib", "-static", "-march=rv64gc", "-mabi=lp64d", "-mcmodel=medany", "-fno-pic", "-no-pie", "-Wa,-mno-relax",
		"-Wl,--no-relax,--build-id=none,-T,testdata/bare/bare.ld", "-DRAM=0x4000000", "-Itestdata/bare", "-o", output, source)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	program, err := os.ReadFile(output)
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// TestBare runs each program of testdata/bare; what each checks stands in it. A failure's code is the number of the
// check, counted from 2 on.
func TestBare(t *testing.T) {
	sources, err := filepath.Glob("testdata/bare/*.S")
	if err != nil || len(sources) < 7 {
		t.Fatalf("%d programs in testdata/bare: %v", len(sources), err)
	}
	for _, source := range sources {
		t.Run(strings.TrimSuffix(filepath.Base(source), ".S"), func(t *testing.T) {
			program := assemble(t, source)
			var console bytes.Buffer
			result, err := testProgram(t).RunELF(t.Context(), bytes.NewReader(program), machine.ELFOptions{
				Memory: bareMemory, MaxInstructions: 10_000_000, Timeout: 2 * time.Minute, Console: &console,
			})
			if err != nil || !result.Passed {
				t.Errorf("%+v, %v\n%s", result, err, nearest(program, result.PC))
			}
			if want := expectedConsole[filepath.Base(source)]; console.String() != want {
				t.Errorf("console %q, want %q", console.String(), want)
			}
		})
	}
}

var expectedConsole = map[string]string{"htif.S": "hello, host\n", "sbi.S": "hello, SBI\n"}

// nearest names the symbol at or below an address.
func nearest(program []byte, pc uint64) string {
	file, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return ""
	}
	symbols, _ := file.Symbols()
	var best elf.Symbol
	for _, s := range symbols {
		if s.Value <= pc && s.Value >= best.Value {
			best = s
		}
	}
	return "at " + best.Name
}

// TestRunELFEnds: how programs end that do not pass.
func TestRunELFEnds(t *testing.T) {
	cases := []struct {
		name    string
		code    []uint32
		options machine.ELFOptions
		result  machine.ELFResult // Passed and Code count
		err     error
	}{
		{name: "loops for ever", code: []uint32{jumpToSelf}, options: machine.ELFOptions{MaxInstructions: 100_000}, err: machine.ErrELFLimit},
		{name: "loops until the timeout", code: []uint32{jumpToSelf}, options: machine.ELFOptions{Timeout: 30 * time.Millisecond}, err: context.DeadlineExceeded},
		{name: "traps for ever", code: []uint32{0x0000_0073}, options: machine.ELFOptions{Mode: machine.ELFMachine, MaxInstructions: 100_000}, err: machine.ErrELFLimit},
		{name: "waits for nothing", code: []uint32{0x1050_0073, jumpToSelf}, err: machine.ErrELFLimit},
		{name: "finisher passes", code: finisher(0x5555), result: machine.ELFResult{Passed: true}},
		{name: "finisher fails with 2", code: finisher(0x2_3333), result: machine.ELFResult{Code: 2}},
		{name: "finisher reboots", code: finisher(0x7777), result: machine.ELFResult{}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			result, err := testProgram(t).RunELF(t.Context(), bytes.NewReader(makeELF(c.code)), c.options)
			if !errors.Is(err, c.err) || c.err == nil && err != nil {
				t.Fatalf("error %v, want %v", err, c.err)
			}
			if err == nil && (result.Passed != c.result.Passed || result.Code != c.result.Code) {
				t.Errorf("%+v, want %+v", result, c.result)
			}
			if c.err != nil && result.ExitCode() == 0 {
				t.Errorf("%+v counts as passed", result)
			}
		})
	}
}

package a64_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"agentvm/internal/machine/a64"
)

// TestTableHasWhatIsAnInstruction compares the table with LLVM's disassembler for the same extensions: words of each row, and words at random,
// of which AGENTVM_A64_WORDS says how many.
func TestTableHasWhatIsAnInstruction(t *testing.T) {
	count := 200_000
	if testing.Short() {
		count = 20_000
	}
	if text := os.Getenv("AGENTVM_A64_WORDS"); text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	var words []uint32
	for _, row := range a64.Table {
		found := 0
		for range 60 {
			word := row.Bits.Match | random.Uint32()&^row.Bits.Mask
			words = append(words, word)
			if of := a64.Lookup(word); of != nil && of.Name == row.Name {
				found++
			}
		}
		if found == 0 {
			t.Errorf("no word is %s: earlier rows have them all", row.Name)
		}
	}
	compare(t, words)
	const batch = 200_000
	for ; count > 0; count -= batch {
		words = words[:0]
		for range min(count, batch) {
			words = append(words, random.Uint32())
		}
		compare(t, words)
	}
}

func compare(t *testing.T, words []uint32) {
	t.Helper()
	for i, theirs := range disassemble(t, words) {
		ours := a64.Lookup(words[i])
		if (ours != nil) != (theirs != "") && !alwaysUndefined.MatchString(theirs) {
			t.Errorf("%08x: LLVM has %q, the table %+v", words[i], theirs, ours)
		}
		if t.Failed() && i > 1000 {
			t.FailNow()
		}
	}
}

// alwaysUndefined has what LLVM names and no processor without a debugger executes: udf, dcps, and system registers of op0 0 and 1, whose
// places are others' (C5.1.2).
var alwaysUndefined = regexp.MustCompile(`^(udf|dcps[123])\b|^m[rs][rs]\b.*\bS[01]_`)

var warning = regexp.MustCompile(`<stdin>:(\d+):\d+: warning: (invalid|potentially undefined)`)

// disassemble returns the instruction that each word is, "" for one that is none.
func disassemble(t *testing.T, words []uint32) []string {
	t.Helper()
	const program = "llvm-mc-19"
	path, err := exec.LookPath(program)
	if err != nil && os.Getenv("CI") == "true" {
		t.Fatalf("%s is missing, and CI must not skip this test", program)
	}
	if err != nil {
		t.Skipf("needs %s (Debian package llvm-19)", program)
	}
	var input, output, notes bytes.Buffer
	for _, w := range words {
		fmt.Fprintf(&input, "0x%02x 0x%02x 0x%02x 0x%02x\n", byte(w), byte(w>>8), byte(w>>16), byte(w>>24))
	}
	cmd := exec.Command(path, "-triple=aarch64", "-disassemble", "-mattr=+neon,+fp-armv8,+crc,+lse,+aes,+sha2,+rdm,+dotprod,+rcpc,+sb")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &input, &output, &notes
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, notes.Bytes()[:min(notes.Len(), 1000)])
	}
	invalid := make([]bool, len(words))
	for _, found := range warning.FindAllSubmatch(notes.Bytes(), -1) {
		line, err := strconv.Atoi(string(found[1]))
		if err != nil {
			t.Fatal(err)
		}
		invalid[line-1] = string(found[2]) == "invalid" // the others it prints
	}
	var valid []string
	for line := range strings.Lines(output.String()) {
		if line = strings.TrimSpace(line); line != "" && line != ".text" {
			valid = append(valid, line)
		}
	}
	all := make([]string, len(words))
	for i := range all {
		if !invalid[i] {
			if len(valid) == 0 {
				t.Fatal("LLVM printed fewer instructions than it took")
			}
			all[i], valid = valid[0], valid[1:]
		}
	}
	if len(valid) > 0 {
		t.Fatalf("LLVM printed %d instructions more than it took", len(valid))
	}
	return all
}

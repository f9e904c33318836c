package verify

import "fmt"

// Proof is why an operand in memory is where it may be.
type Proof struct {
	At   int // of its instruction in the code, in bytes
	Text string
}

// Prove verifies as Code does, and gives the proofs of all operands in memory, in the order of the code.
func Prove(code []byte, entryPoints []int) ([]Proof, error) {
	var proofs []Proof
	err := verify(code, entryPoints, &proofs)
	return proofs, err
}

var registerNames = [16]string{"rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "tlb", "budget", "entries", "memory"}

// proved notes what is known of an operand that was accepted. It returns that nothing is wrong.
func (v *verifier) proved(i *instruction) string {
	if v.proofs == nil {
		return ""
	}
	text := registerNames[i.base]
	if i.index >= 0 {
		text += " + " + registerNames[i.index]
	}
	if i.distance != 0 {
		text += fmt.Sprintf(" + %#x", i.distance)
	}
	if i.index >= 0 {
		k := v.registers[i.index]
		text += fmt.Sprintf(", %s <= %#x", registerNames[i.index], k.max)
		if i.base == entries {
			text += fmt.Sprintf(" and a multiple of %d", 1<<min(k.zeros, 16))
		}
	}
	*v.proofs = append(*v.proofs, Proof{v.at, text})
	return ""
}

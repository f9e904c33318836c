//go:build amd64

package verify

// cpuid is the instruction, in assembly.
func cpuid(leaf, subleaf uint32) (eax, ebx, ecx, edx uint32)

// hasSHA says whether this processor knows SHA-NI (Intel's manual, volume 2, "CPUID", leaf 7), which golang.org/x/sys/cpu does not tell.
func hasSHA() bool {
	if most, _, _, _ := cpuid(0, 0); most < 7 {
		return false
	}
	_, ebx, _, _ := cpuid(7, 0)
	return ebx>>29&1 != 0
}

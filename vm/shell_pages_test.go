package vm_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"agentvm/vm"
)

// TestShellIsInLargePieces asks the kernel what kind of pages the shell's code is on: every command maps and unmaps what is near it,
// and that costs about as much for a large folio as for a single page.
func TestShellIsInLargePieces(t *testing.T) {
	v := sharedVM(t)
	const ( // Documentation/admin-guide/mm/pagemap.rst
		frame, present = 1<<55 - 1, 1 << 63
		compound       = 3 << 15 // the first page of a folio with several, or another one of it
	)
	var mapped []uint64
	for _, entry := range guestWords(t, v, `dd if=/proc/$$/pagemap bs=8 skip=$((0x$(sed -n '/busybox/{s/-.*//p;q}' /proc/$$/maps) / 4096)) count=190 2>/dev/null; true`) {
		if entry&present != 0 {
			mapped = append(mapped, entry&frame)
		}
	}
	if len(mapped) < 4 {
		t.Fatalf("%d of the shell's pages are mapped", len(mapped))
	}
	for _, page := range []int{len(mapped) / 4, len(mapped) / 2, len(mapped) * 3 / 4} {
		flags := guestWords(t, v, fmt.Sprintf("dd if=/proc/kpageflags bs=8 skip=%d count=1 2>/dev/null", mapped[page]))
		if len(flags) != 1 || flags[0]&compound == 0 {
			t.Errorf("page %d of %d that the shell has mapped is a folio of its own: flags %#x", page, len(mapped), flags)
		}
	}
}

// guestWords is what a command writes, eight bytes each.
func guestWords(t testing.TB, v *vm.VM, line string) (words []uint64) {
	t.Helper()
	r := mustRun(t, v, vm.Command{Line: line})
	for b := r.Stdout; len(b) >= 8; b = b[8:] {
		words = append(words, binary.LittleEndian.Uint64(b))
	}
	return words
}

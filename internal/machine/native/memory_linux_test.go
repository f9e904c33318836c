//go:build amd64 || arm64

package native

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"agentvm/internal/machine/native/blocks"
)

// The entries of a machine without code all lead back, and cost the host little memory. What a machine changes is its own.
func TestEmptyTable(t *testing.T) {
	if !Supported() {
		t.Skip("there is no native code on this system")
	}
	first, second := mustTable(t), mustTable(t)
	clear(first)
	if len(second) != blocks.MaxEntries*entrySize {
		t.Fatalf("the table has %d bytes, want %d", len(second), blocks.MaxEntries*entrySize)
	}
	for e := second; len(e) > 0; e = e[entrySize:] {
		if at, slot := binary.LittleEndian.Uint64(e), binary.LittleEndian.Uint64(e[8:]); at != uint64(returning().at) || slot != noSlot {
			t.Fatalf("entry %d leads to %#x and is of slot %#x", (len(second)-len(e))/entrySize, at, slot)
		}
	}
	var file unix.Stat_t
	if err := unix.Fstat(emptyTable().file, &file); err != nil || file.Blocks*512 > int64(len(second))/8 {
		t.Errorf("%v; empty tables take %d KiB, want at most an eighth of one", err, file.Blocks/2)
	}
}

func mustTable(t *testing.T) []byte {
	t.Helper()
	table, err := newTable()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unmap(table); err != nil {
			t.Error(err)
		}
	})
	return table
}

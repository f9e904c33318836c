//go:build unix

package machine

import (
	"bytes"
	"testing"
)

// The file that systems without memfd use: it has no name, works through a duplicate, and can be mapped.
func TestUnlinkedFileIsMapped(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	s, err := unlinkedFile()
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte("a page of text. "), 64<<10/16)
	if _, err := s.file.WriteAt(want, 64<<10); err != nil {
		t.Fatal(err)
	}
	copied, err := duplicate(s.file)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.release(); err != nil {
		t.Fatal(err)
	}
	memory, err := newLinearMemory(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Free()
	if err := memory.place(part{at: 128 << 10, length: 64 << 10, source: newSource(copied, copied.Close), offset: 64 << 10}); err != nil {
		t.Fatal(err)
	}
	if err := copied.Close(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(memory.memory[128<<10:192<<10], want) || memory.memory[192<<10] != 0 {
		t.Error("the memory is not what the file has")
	}
	if err := blank(memory.memory[:1<<20]); err != nil || memory.memory[128<<10] != 0 {
		t.Errorf("after blank() = %v the memory begins with %d", err, memory.memory[128<<10])
	}
}

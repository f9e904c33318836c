package initramfs

import (
	"bytes"
	"strings"
	"testing"
)

// TestArchive has an archive as the format's description in the kernel's documentation has it. Kernels unpack those of the tests that boot machines.
func TestArchive(t *testing.T) {
	const header = "070701"
	want := strings.Join([]string{
		header, "00000001", "000041ed", "00000000", "00000000", "00000001", "00000000", "00000000", "00000000", "00000000", "00000000", "00000000",
		"00000004", "00000000", "dev\x00\x00\x00",
		header, "00000002", "00002180", "00000000", "00000000", "00000001", "00000000", "00000000", "00000000", "00000000", "00000005", "00000001",
		"0000000c", "00000000", "dev/console\x00\x00\x00",
		header, "00000003", "000081ed", "00000000", "00000000", "00000001", "00000000", "00000005", "00000000", "00000000", "00000000", "00000000",
		"00000005", "00000000", "init\x00\x00hello\x00\x00\x00",
		header, "00000004", "00000000", "00000000", "00000000", "00000001", "00000000", "00000000", "00000000", "00000000", "00000000", "00000000",
		"0000000b", "00000000", "TRAILER!!!\x00\x00\x00\x00",
	}, "")
	got := Archive(Directory("dev"), Device("dev/console", 0o600, 5, 1), Program("init", []byte("hello")))
	if string(got) != want {
		t.Errorf("got\n%q, want\n%q", got, want)
	}
}

// TestOf: what a kernel unpacks without a copy per 4 bytes, and both devices.
func TestOf(t *testing.T) {
	program := []byte("\x7fELF and so on")
	archive := Of(program)
	if at := bytes.Index(archive, program); at < 0 || at%8 != 0 {
		t.Errorf("the program's data begins at %d, want a multiple of 8", at)
	}
	for _, name := range []string{"dev", "dev/console", "dev/null", "./init"} {
		if !bytes.Contains(archive, []byte(name+"\x00")) {
			t.Errorf("no %s", name)
		}
	}
}

// Package buildid tells builds of this program apart.
package buildid

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"runtime"
)

// head is how much of a program is looked at. Go's linker puts the build ID near the beginning.
const head = 32 << 10

// Read returns the build ID that Go gave to the program of this process. Programs with the same one were compiled from the same sources, for the
// same system and processor and by the same version of Go. It is empty when there is none, or when it cannot be found.
func Read() string {
	path := "/proc/self/exe" // which stays this program when another one gets its name
	if runtime.GOOS != "linux" {
		var err error
		if path, err = os.Executable(); err != nil {
			return ""
		}
	}
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	b := make([]byte, head)
	n, err := io.ReadFull(f, b)
	if err != nil && n == 0 {
		return ""
	}
	return find(b[:n])
}

// find looks for a note of ELF, and for the text that stands at the beginning of the code in other formats.
func find(b []byte) string {
	const begin, end = "\xff Go build ID: \"", "\"\n \xff"
	if _, rest, found := bytes.Cut(b, []byte(begin)); found {
		if id, _, found := bytes.Cut(rest, []byte(end)); found {
			return string(id)
		}
	}
	const note = "\x04\x00\x00\x00Go\x00\x00" // type and name; the sizes of the name and of the ID are before them
	at := bytes.Index(b, []byte(note))
	if at < 8 || binary.LittleEndian.Uint32(b[at-8:]) != 4 {
		return ""
	}
	size, id := binary.LittleEndian.Uint32(b[at-4:]), b[at+len(note):]
	if uint64(size) > uint64(len(id)) {
		return ""
	}
	return string(id[:size])
}

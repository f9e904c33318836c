package machine

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"
)

// An untrusted file may have each page somewhere else: Linux lets a process have 65530 mappings, and Go's runtime gives
// up when it gets no more.
func TestImageInManyPartsTakesFewMappings(t *testing.T) {
	const scattered, long = 4 * maxMappings, 64 * imagePage
	sources := [2]*source{mustImageFile(t, scattered*imagePage+long), mustImageFile(t, scattered*imagePage+long)}
	c := &content{size: scattered*imagePage + long}
	for i := range int64(scattered) {
		c.parts = append(c.parts, part{i * imagePage, imagePage, sources[i%2], i * imagePage})
	}
	c.parts = append(c.parts, part{scattered * imagePage, long, sources[0], scattered * imagePage})

	memory, err := newLinearMemory(uint64(c.size))
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Free()
	if err := memory.load(0, c); err != nil {
		t.Fatal(err)
	}
	if n := mappingsIn(t, memory.memory); n > 2*maxMappings+1 {
		t.Errorf("%d parts took %d mappings, want at most %d", len(c.parts), n, 2*maxMappings+1)
	}
	for at := int64(0); at < c.size; at += imagePage {
		want := bytes.Repeat([]byte(fmt.Sprintf("%08d", at/imagePage)), imagePage/8)
		if !bytes.Equal(memory.memory[at:at+imagePage], want) {
			t.Fatalf("the page at %#x is not the image's", at)
		}
	}
}

func TestShortPartsAreCopied(t *testing.T) {
	parts := func(pages ...int64) (list []part) {
		for _, n := range pages {
			list = append(list, part{length: n * imagePage})
		}
		return list
	}
	tests := []struct {
		name  string
		parts []part
		most  int
		want  int64 // pages of the longest that is copied
	}{
		{"none", nil, 2, 0},
		{"few", parts(1, 2), 2, 0},
		{"one too many", parts(3, 1, 2), 2, 1},
		{"equal ones", parts(2, 2, 2, 5), 2, 2},
		{"all equal", parts(4, 4, 4), 2, 4},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := tooShort(test.parts, test.most); got != test.want*imagePage {
				t.Errorf("parts of up to %d bytes are copied, want %d", got, test.want*imagePage)
			}
		})
	}
}

// mustImageFile makes a file whose pages have their numbers in them.
func mustImageFile(t *testing.T, size int64) *source {
	t.Helper()
	s, err := newImageFile()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.release() })
	var b bytes.Buffer
	for i := range size / imagePage {
		b.Write(bytes.Repeat([]byte(fmt.Sprintf("%08d", i)), imagePage/8))
	}
	if _, err := s.file.WriteAt(b.Bytes(), 0); err != nil {
		t.Fatal(err)
	}
	return s
}

// mappingsIn counts this process's mappings that begin in a part of its memory.
func mappingsIn(t *testing.T, memory []byte) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	begin := uintptr(unsafe.Pointer(&memory[0]))
	for line := range strings.Lines(string(text)) {
		var at uintptr
		if _, err := fmt.Sscanf(line, "%x-", &at); err == nil && at >= begin && at < begin+uintptr(len(memory)) {
			n++
		}
	}
	return n
}

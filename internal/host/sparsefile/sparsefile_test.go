package sparsefile

import (
	"bytes"
	"math/rand/v2"
	"os"
	"testing"
)

// TestFile writes blocks with and without zeros anywhere, and compares with memory.
func TestFile(t *testing.T) {
	file, err := os.Create(t.TempDir() + "/f")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	f, r := &File{File: file}, rand.New(rand.NewPCG(1, 2))
	var want []byte
	grow := func(size int) { want = append(want, make([]byte, max(0, size-len(want)))...) }
	for range 500 {
		if r.IntN(10) == 0 {
			size := r.IntN(300_000)
			if err := f.Truncate(int64(size)); err != nil {
				t.Fatal(err)
			}
			grow(size)
			want = want[:size:size]
			continue
		}
		b, at := make([]byte, r.IntN(5*holeSize)), r.IntN(200_000)
		for range r.IntN(3) {
			if len(b) > 0 {
				b[r.IntN(len(b))] = 1
			}
		}
		if n, err := f.WriteAt(b, int64(at)); n != len(b) || err != nil {
			t.Fatalf("wrote %d of %d, %v", n, len(b), err)
		}
		if len(b) > 0 {
			grow(at + len(b))
			copy(want[at:], b)
		}
		got, err := os.ReadFile(file.Name())
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("the file has %d bytes, want %d, or others: %v", len(got), len(want), err)
		}
	}
}

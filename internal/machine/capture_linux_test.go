package machine_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"syscall"
	"testing"

	"agentvm/internal/machine"
)

// A guest that leaves a little of what it has written before each capture does not keep all that each of them has written.
func TestRepeatedCapturesKeepLittle(t *testing.T) {
	const size, stripe = 16 << 20, 320 << 10
	m := newMachine(t, machine.Config{Memory: size})
	want := make([]byte, size)
	random := rand.NewChaCha8([32]byte{1})
	mappedBefore := mappedImages(t)
	most, mapped := int64(0), 0
	for round := range 48 {
		from := round * stripe // what is before stays as it is from now on
		random.Read(want[from:])
		clear(want[len(want)-stripe*(round%3):])
		if err := m.WriteRAM(from, want[from:]); err != nil {
			t.Fatal(err)
		}
		image, err := m.Capture(machine.ExtentsForMany)
		if err != nil {
			t.Fatal(err)
		}
		most, mapped = max(most, imageBytes(t, image)), max(mapped, len(mappedImages(t))-len(mappedBefore))
		if round%7 == 0 || round == 47 {
			checkImage(t, image, want)
		}
		if err := image.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(mustRAM(t, m), want) {
		t.Error("the machine's memory has changed")
	}
	t.Logf("at most %d MiB in the files of an image, %d files mapped", most>>20, mapped)
	if most > 4*size {
		t.Errorf("an image of a machine of %d MiB keeps %d MiB", size>>20, most>>20)
	}
	if mapped > 24 {
		t.Errorf("the machine maps %d files", mapped)
	}
}

// With more extents, less that has not changed is written again.
func TestCaptureExtents(t *testing.T) {
	const size, page = 16 << 20, 4096
	written := map[int]int64{}
	for _, extents := range []int{machine.ExtentsForMany, machine.ExtentsForOne} {
		m := newMachine(t, machine.Config{Memory: size})
		want := make([]byte, size)
		_, _ = rand.NewChaCha8([32]byte{2}).Read(want)
		if err := m.WriteRAM(0, want); err != nil {
			t.Fatal(err)
		}
		before, err := m.Capture(extents)
		if err != nil {
			t.Fatal(err)
		}
		defer before.Close()
		for at := 0; at < size; at += 10 * page { // more than 256 pieces, and fewer than half of 1024
			want[at]++
			if err := m.WriteRAM(at, want[at:at+1]); err != nil {
				t.Fatal(err)
			}
		}
		image, err := m.Capture(extents)
		if err != nil {
			t.Fatal(err)
		}
		defer image.Close()
		checkImage(t, image, want)
		if n := len(image.Extents()); n > extents {
			t.Errorf("an image of at most %d extents has %d", extents, n)
		}
		old := before.Extents()[0].File
		for _, e := range image.Extents() {
			if e.File != old {
				written[extents] += e.Length
			}
		}
	}
	if many, one := written[machine.ExtentsForMany], written[machine.ExtentsForOne]; one > 4<<20 || many < 2*one {
		t.Errorf("%d bytes written for an image of few extents, %d for one of many", many, one)
	}
}

func checkImage(t *testing.T, image *machine.MemoryImage, want []byte) {
	t.Helper()
	m, err := testProgram(t).Restore(t.Context(), machine.Config{Memory: uint64(len(want))}, image)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if !bytes.Equal(mustRAM(t, m), want) {
		t.Fatal("a restored machine has another memory")
	}
}

// imageBytes is what the files of an image take.
func imageBytes(t *testing.T, image *machine.MemoryImage) (n int64) {
	t.Helper()
	var seen []*os.File
	for _, e := range image.Extents() {
		if slices.Contains(seen, e.File) {
			continue
		}
		seen = append(seen, e.File)
		info, err := e.File.Stat()
		if err != nil {
			t.Fatal(err)
		}
		n += info.Sys().(*syscall.Stat_t).Blocks * 512
	}
	return n
}

var mappedImage = regexp.MustCompile(`(?m)([0-9]+) +/memfd:agentvm-image`)

// mappedImages are the numbers of the images' files that this process maps.
func mappedImages(t *testing.T) map[string]bool {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]bool{}
	for _, m := range mappedImage.FindAllSubmatch(maps, -1) {
		files[string(m[1])] = true
	}
	return files
}

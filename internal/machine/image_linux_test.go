package machine_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"agentvm/internal/machine"
)

// Machines of one image share what they do not write.
func TestMachinesOfOneImageShareMemory(t *testing.T) {
	const machines, limit = 50, 12 << 20
	w := bootWorker(t, idleGuest, "")
	w.ask("run")
	image := w.capture()
	before := residentShare(t)
	for range machines {
		restoreWorker(t, idleGuest, image).ask("time")
	}
	each := (residentShare(t) - before) / machines
	t.Logf("%d machines of %d MiB that have answered once: %d KiB each", machines, idleGuest.Memory>>20, each>>10)
	if each > limit {
		t.Errorf("a machine takes %d MiB, want less than %d", each>>20, limit>>20)
	}
}

// residentShare is this process's proportional set size in bytes.
func residentShare(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Skip("smaps_rollup has no Pss")
	return 0
}

// Nothing of a closed machine or image stays: no descriptor, no mapping.
func TestClosedMachinesLeaveNothing(t *testing.T) {
	w := bootWorker(t, idleGuest, "")
	image := w.capture()
	cycle := func() {
		c := restoreWorker(t, idleGuest, image)
		c.ask("time")
		again, err := c.Capture(machine.ExtentsForMany)
		if err != nil {
			t.Fatal(err)
		}
		c.close()
		cfg := withConsole(idleGuest)
		cfg.Memory /= 2
		if _, err := testProgram(t).Restore(t.Context(), cfg, again); !errors.Is(err, machine.ErrShape) {
			t.Errorf("Restore() = %v, want ErrShape", err)
		}
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	}
	cycle()
	files, mappings := held(t)
	for range 8 {
		cycle()
	}
	if f, m := held(t); f > files || m > mappings {
		t.Errorf("after 8 machines: %d descriptors of files in memory instead of %d, %d mappings of them instead of %d", f, files, m, mappings)
	}
}

// held counts descriptors and mappings of images.
func held(t *testing.T) (files, mappings int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.Contains(target, "agentvm-image") {
			files++
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return files, bytes.Count(maps, []byte("agentvm-image"))
}

// Whatever is in an image, the process that runs it survives: the machine refuses it, breaks, or continues.
func TestImagesOfGarbage(t *testing.T) {
	small := machine.Config{Memory: 64 << 20}
	w := bootWorker(t, small, "")
	image := w.capture()
	random := rand.New(rand.NewPCG(3, 4))
	refused, broke, ran := 0, 0, 0
	for round := range 30 {
		spoilt := spoiltImage(t, image, random, round)
		m, err := testProgram(t).Restore(t.Context(), withConsole(small), spoilt)
		if err != nil {
			refused++
			continue
		}
		stopped := false
		for range 20 {
			if _, stopped, err = m.Step(100_000); err != nil || stopped {
				break
			}
		}
		if err != nil {
			broke++
		} else {
			ran++
		}
		if again, err := m.Capture(machine.ExtentsForMany); err == nil {
			if err := again.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d refused, %d broke, %d went on", refused, broke, ran)
}

// spoiltImage copies an image into a file and puts garbage over parts of it: here and there in the first 17 MiB, where the
// module's own data and the kernel are, or at all of the pages that are not RAM.
func spoiltImage(t *testing.T, i *machine.MemoryImage, random *rand.Rand, round int) *machine.MemoryImage {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "memory"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	if err := file.Truncate(i.Size()); err != nil {
		t.Fatal(err)
	}
	for _, e := range i.Extents() {
		at := io.NewOffsetWriter(file, e.At)
		if _, err := io.Copy(at, io.NewSectionReader(e.File, e.Offset, e.Length)); err != nil {
			t.Fatal(err)
		}
	}
	garbage := make([]byte, 64)
	spots, from, to := 1<<(round%11), int64(0x10000), int64(17<<20)
	switch round % 4 {
	case 1:
		from, to = 0x10000, 0x30000 // the hart and some of its TLB
	case 2:
		from = i.Size() - 34<<20 // decoded code
		to = i.Size()
	case 3:
		from, to = 0x1e0000, 0x1f0000 // devices
	}
	for range spots {
		for n := 0; n < len(garbage); n += 8 {
			binary.LittleEndian.PutUint64(garbage[n:], random.Uint64())
		}
		at := from + random.Int64N(to-from-64)
		if _, err := file.WriteAt(garbage[:1+random.IntN(64)], at); err != nil {
			t.Fatal(err)
		}
	}
	spoilt, err := machine.NewImage(i.Size(), []machine.Extent{{At: 0, Length: i.Size(), File: file}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { spoilt.Close() })
	return spoilt
}

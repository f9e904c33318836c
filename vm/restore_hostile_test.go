package vm_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"agentvm/internal/storage/snapshot"
	"agentvm/vm"
)

// forged is a snapshot's memory with parts that were changed.
type forged struct {
	regions []snapshot.Region
	patches []patch
}

type patch struct {
	at    int64
	bytes []byte
}

func (f *forged) ReadAt(p []byte, at int64) (int, error) {
	clear(p)
	for _, r := range f.regions {
		from, to := max(at, r.At), min(at+int64(len(p)), r.At+r.Length)
		if from < to {
			if n, err := r.File.ReadAt(p[from-at:to-at], r.Offset+from-r.At); n < int(to-from) {
				return 0, err
			}
		}
	}
	for _, c := range f.patches {
		from, to := max(at, c.at), min(at+int64(len(p)), c.at+int64(len(c.bytes)))
		if from < to {
			copy(p[from-at:to-at], c.bytes[from-c.at:])
		}
	}
	return len(p), nil
}

var _ io.ReaderAt = (*forged)(nil)

// forge writes a snapshot with right hashes whose memory has been changed.
func forge(t *testing.T, path string, patches []patch) string {
	t.Helper()
	f, err := snapshot.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m := f.Meta()
	source := &forged{f.Memory(), patches}
	to := filepath.Join(t.TempDir(), "forged.snap")
	content := snapshot.Content{Meta: m, Memory: []snapshot.Extent{{Length: m.LinearMemory, Source: source}}}
	if err := snapshot.Write(limited(t), to, content); err != nil {
		t.Fatal(err)
	}
	return to
}

// A snapshot whose hashes are right, but which was made to keep the machine busy for ever, gives an error or a VM that can be
// stopped. Package machine's tests change everything that is in it; these are some cases through the whole program.
func TestForgedSnapshots(t *testing.T) { forEachPlatform(t, forgedSnapshots) }

func forgedSnapshots(t *testing.T, ofPlatform func(*vm.Config)) {
	v := ownVM(t, ofPlatform)
	path := save(t, v, vm.SnapshotOptions{})
	v.Close()
	f, err := snapshot.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	size := f.Meta().LinearMemory
	f.Close()
	random := rand.New(rand.NewPCG(1, 2))
	noise := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		return b
	}
	slots := func(op byte) []byte { // decoded code, all of it one operation
		b := make([]byte, 30<<20)
		for i := 0; i < len(b); i += 8 {
			b[i] = op
		}
		return b
	}
	// Decoded code is the last 32 MiB of the memory, right behind the RAM, whose end has pages that the guest needs.
	cases := map[string][]patch{
		"registers":     {{0x10000, noise(2000)}},
		"caches":        {{0x10480, noise(40000)}}, // behind the registers of both processors
		"all of it":     {{0x10000, noise(1 << 20)}},
		"decoded noise": {{size - 31<<20, noise(30 << 20)}},
		"the beginning": {{0, noise(0x10000)}},
	}
	for op := range 5 {
		cases[fmt.Sprintf("decoded as operation %d", op*17)] = []patch{{size - 31<<20, slots(byte(op * 17))}}
	}
	for i := range 5 {
		var p []patch
		for range 1 << (2 * i) {
			p = append(p, patch{0x10000 + random.Int64N(2<<20), noise(8)})
		}
		cases[fmt.Sprintf("%d words", len(p))] = p
	}
	for name, patches := range cases {
		refused, answered := continueFrom(t, name, forge(t, path, patches), name == "caches")
		t.Logf("%s: refused %t, answered %t", name, refused, answered)
		if name == "caches" && !answered {
			t.Errorf("%s: what is not taken over is missed", name)
		}
		if name == "all of it" && !refused {
			t.Errorf("%s: noise is taken for a machine", name)
		}
	}
}

// continueFrom restores a snapshot and runs a command in it, which has little time unless it is certain to end.
func continueFrom(t *testing.T, name, path string, certain bool) (refused, answered bool) {
	limit := 5 * time.Second
	if certain {
		limit = 2 * time.Minute
	}
	watchdog := time.AfterFunc(5*time.Minute, func() { panic(name + ": a slice does not end") })
	defer watchdog.Stop()
	c := vm.Config{StoreDir: config(t).StoreDir, BootTimeout: limit}
	v, err := vm.Restore(t.Context(), path, c, vm.RestoreOptions{})
	if err != nil {
		t.Logf("%s: %v", name, err)
		return true, false
	}
	defer v.Close()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	_, err = v.Run(ctx, vm.Command{Args: []string{"true"}})
	return false, err == nil
}

package vm_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentvm/internal/storage/disk"
	"agentvm/vm"
)

// TestDiskGrows: a new disk is as large as it was asked for, and so it is at the second start, when nothing is to be done.
func TestDiskGrows(t *testing.T) {
	config(t)
	for _, size := range []int64{disk.DefaultSize, growing} { // only the second one is made smaller
		path := filepath.Join(t.TempDir(), "disk.img")
		if err := disk.Create(path, size); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			v := ownVM(t, withDisk(path))
			wantGrown(t, v, size)
			wantQuiet(t, v)
			if err := v.Stop(limited(t)); err != nil {
				t.Fatal(err)
			}
		}
		wantSound(t, path)
	}
}

// TestDiskIsMadeLarger: a file that its owner has made longer is a larger disk at the next start, with what was on it,
// also when its journal is still to be replayed.
func TestDiskIsMadeLarger(t *testing.T) {
	config(t)
	for name, end := range map[string]func(*vm.VM) error{
		"stopped": func(v *vm.VM) error { return v.Stop(limited(t)) },
		"crashed": (*vm.VM).Close,
	} {
		t.Run(name, func(t *testing.T) {
			const larger = 1 << 30
			path := newDisk(t)
			v := ownVM(t, withDisk(path))
			wantOutput(t, v, "echo kept >/root/kept; sync; echo more >/root/more", "")
			if err := errors.Join(end(v), os.Truncate(path, larger)); err != nil {
				t.Fatal(err)
			}
			if pending, err := unfinished(path); err != nil || name == "crashed" && !pending {
				t.Fatalf("journal to be replayed: %v, %v", pending, err)
			}
			v = ownVM(t, withDisk(path))
			wantGrown(t, v, larger)
			wantQuiet(t, v)
			wantOutput(t, v, "cat /root/kept", "kept\n")
			if err := v.Stop(limited(t)); err != nil {
				t.Fatal(err)
			}
			wantSound(t, path)
		})
	}
}

// growing is the size of a disk whose file system is made much smaller.
const growing = disk.DefaultSize - 4<<20

// TestKilledWhileDiskGrows: the next start continues from wherever growing got to, and knows what is free.
func TestKilledWhileDiskGrows(t *testing.T) {
	c := config(t)
	for range 5 {
		path := filepath.Join(t.TempDir(), "disk.img")
		if err := disk.Create(path, growing); err != nil {
			t.Fatal(err)
		}
		c.Disk = path
		ctx, kill := context.WithCancel(limited(t))
		go func() {
			for mounted := false; !mounted && ctx.Err() == nil; mounted, _ = unfinished(path) {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(time.Duration(rand.IntN(200)) * time.Millisecond) // with luck it grows at that time
			kill()
		}()
		if v, err := vm.Start(ctx, c); err == nil {
			v.Close() // it has been quicker
		}
		<-ctx.Done()
		v := ownVM(t, withDisk(path))
		wantGrown(t, v, growing)
		wantQuiet(t, v)
		if err := v.Stop(limited(t)); err != nil {
			t.Fatal(err)
		}
		wantSound(t, path)
	}
}

// TestDiskThatCannotGrow: Linux does not resize a file system that is marked as damaged. The VM starts with what there is.
func TestDiskThatCannotGrow(t *testing.T) {
	config(t)
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := disk.Create(path, growing); err != nil {
		t.Fatal(err)
	}
	const state, hasErrors = 1024 + 0x3a, 0x3 // s_state: EXT4_VALID_FS | EXT4_ERROR_FS
	d, err := disk.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.WriteAt([]byte{hasErrors, 0}, state); err != nil || d.Sync() != nil || d.Close() != nil {
		t.Fatal(err)
	}
	v := ownVM(t, withDisk(path))
	if size, _ := rootSpace(t, v); size > disk.MinSize {
		t.Errorf("/ has %d bytes", size)
	}
	want := "agentvm-guest: warning: the writable disk stays as small as it is: grow /dev/vdb to 2620416 blocks: operation not permitted"
	if console := string(must(v.Console(t.Context()))); !strings.Contains(console, want) {
		t.Errorf("console: %q", console)
	}
	wantOutput(t, v, "echo x >/root/x; cat /root/x", "x\n")
}

// wantQuiet finds warnings of the supervisor, and of the kernel's ext4, on the console.
func wantQuiet(t testing.TB, v *vm.VM) {
	t.Helper()
	if console := string(must(v.Console(t.Context()))); strings.Contains(console, "agentvm-guest") || strings.Contains(console, "EXT4-fs") {
		t.Errorf("console: %q", console)
	}
}

// unfinished says whether the journal of a disk that was never frozen is to be replayed: EXT4_FEATURE_INCOMPAT_RECOVER. A VM may be using it.
func unfinished(path string) (bool, error) {
	const firstCluster = 2 * 64 << 10 // where a new disk has its superblock
	layers, err := filepath.Glob(filepath.Join(path+".layers", "*"))
	if err != nil || len(layers) != 1 {
		return false, fmt.Errorf("layers %q: %w", layers, err)
	}
	file, err := os.Open(layers[0])
	if err != nil {
		return false, err
	}
	defer file.Close()
	features := make([]byte, 4)
	_, err = file.ReadAt(features, firstCluster+1024+0x60)
	return features[0]&4 != 0, err
}

// rootSpace is what df says of / in the guest, in bytes.
func rootSpace(t testing.TB, v *vm.VM) (size, free int64) {
	t.Helper()
	r, err := v.Run(limited(t), vm.Command{Line: "df -k / | tail -n 1"})
	if err != nil || r.ExitCode != 0 {
		t.Fatal(r, err)
	}
	fields := strings.Fields(string(r.Stdout))
	if len(fields) != 6 {
		t.Fatalf("df: %q", r.Stdout)
	}
	for i, field := range []*int64{1: &size, 3: &free} {
		if field == nil {
			continue
		}
		if *field, err = strconv.ParseInt(fields[i], 10, 64); err != nil {
			t.Fatalf("df: %q", r.Stdout)
		}
		*field <<= 10
	}
	return size, free
}

// wantGrown is right when the guest has at least 95 % of the disk to write to: Linux keeps the tables of inodes, and the journal.
func wantGrown(t testing.TB, v *vm.VM, disk int64) {
	t.Helper()
	if size, free := rootSpace(t, v); size > disk || free < disk/100*95 || free > size {
		t.Errorf("of a disk of %d bytes / has %d, of which %d are free", disk, size, free)
	}
}

// BenchmarkBootWithDisk counts the guest's instructions from its first to its answer, with a disk of 10 GiB that is mounted
// for the first time or for the second one, and without.
func BenchmarkBootWithDisk(b *testing.B) {
	for _, name := range []string{"none", "new", "used"} {
		b.Run(name, func(b *testing.B) {
			c := config(b)
			var instructions uint64
			for b.Loop() {
				b.StopTimer()
				c.Disk = ""
				if name != "none" {
					c.Disk = filepath.Join(b.TempDir(), "disk.img")
					if err := disk.Create(c.Disk, disk.DefaultSize); err != nil {
						b.Fatal(err)
					}
				}
				if name == "used" {
					if v, err := vm.Start(limited(b), c); err != nil || v.Stop(limited(b)) != nil {
						b.Fatal(err)
					}
				}
				b.StartTimer()
				v, err := vm.Start(limited(b), c)
				if err != nil {
					b.Fatal(err)
				}
				instructions += v.Instructions()
				b.StopTimer()
				v.Close()
				b.StartTimer()
			}
			b.ReportMetric(float64(instructions)/float64(b.N), "instructions")
		})
	}
}

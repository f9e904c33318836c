//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentvm/internal/storage/snapshot"
)

// patched has noise over parts of what is below.
type patched struct {
	io.ReaderAt
	patches map[int64][]byte
}

func (p patched) ReadAt(b []byte, at int64) (int, error) {
	n, err := p.ReaderAt.ReadAt(b, at)
	for from, noise := range p.patches {
		if start, end := max(at, from), min(at+int64(n), from+int64(len(noise))); start < end {
			copy(b[start-at:end-at], noise[start-from:])
		}
	}
	return n, err
}

// memoryOf is a snapshot's memory as a whole.
type memoryOf struct{ *snapshot.File }

func (m memoryOf) ReadAt(b []byte, at int64) (int, error) {
	clear(b)
	for _, r := range m.Memory() {
		if start, end := max(at, r.At), min(at+int64(len(b)), r.At+r.Length); start < end {
			if n, err := r.File.ReadAt(b[start-at:end-at], r.Offset+start-r.At); n < int(end-start) {
				return 0, err
			}
		}
	}
	return len(b), nil
}

// TestHostileArchivesOfSnapshots imports forged archives, with right hashes where that is possible: with other words, memory and
// disk. Whatever they lead to: each command ends, the VM can be stopped, started and removed, and nothing is left.
func TestHostileArchivesOfSnapshots(t *testing.T) {
	if testing.Short() {
		t.Skip("boots VMs")
	}
	dir, _, _ := testStore(t)
	const source = "forged-source"
	t.Cleanup(func() { agentvm(t, "rm", "-f", source); agentvm(t, "snapshot", "rm", source) })
	agentvm(t, "start", "-q", "--image", "busybox", "--memory", "64M", "--disk-size", "64M", source)
	agentvm(t, "exec", "-n", source, "echo kept >/root/file; sync")
	agentvm(t, "snapshot", "create", source, source)
	agentvm(t, "stop", source)
	own, err := snapshot.OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	file, err := own.Open(source)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	disk, err := file.OpenDisk()
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	forger, err := snapshot.OpenStore(filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	noise := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		return b
	}
	ram := file.Meta().LinearMemory - 1<<16
	for i, forge := range []func(m *snapshot.Meta, memory, disk map[int64][]byte){
		func(*snapshot.Meta, map[int64][]byte, map[int64][]byte) {}, // as it was
		func(m *snapshot.Meta, _, _ map[int64][]byte) {
			text, _ := json.Marshal(string(noise(300)))
			m.Extra, m.Network = text, json.RawMessage(`{"subnet":"x"}`)
		},
		func(m *snapshot.Meta, _, _ map[int64][]byte) {
			m.Image, m.Memory, m.Shares, m.KernelArguments = "../../x", 1<<62, 1<<30, "init=/bin/sh \x00"
		},
		func(_ *snapshot.Meta, memory, _ map[int64][]byte) {
			for range 200 {
				memory[random.Int64N(ram)] = noise(256)
			}
		},
		func(_ *snapshot.Meta, memory, _ map[int64][]byte) { memory[0x10000] = noise(8 << 20) },
		func(_ *snapshot.Meta, _, disk map[int64][]byte) {
			for range 200 { // behind the superblock
				disk[4096+random.Int64N(16<<20)] = noise(256)
			}
		},
		func(_ *snapshot.Meta, _, disk map[int64][]byte) { disk[0] = noise(1 << 20) },
		func(_ *snapshot.Meta, memory, _ map[int64][]byte) {
			for range 20 {
				memory[16<<20+random.Int64N(ram-16<<20)] = noise(8)
			}
		},
		nil, // the archive itself has other bits
	} {
		name := fmt.Sprintf("forged-%d", i)
		t.Run(name, func(t *testing.T) {
			meta, memory, blocks := file.Meta(), map[int64][]byte{}, map[int64][]byte{}
			if forge != nil {
				forge(&meta, memory, blocks)
			}
			size := meta.Disk.Size
			meta.Disk = nil
			content := snapshot.Content{
				Meta: meta, Disk: patched{disk, blocks}, DiskSize: size,
				Memory: []snapshot.Extent{{Length: meta.LinearMemory, Source: patched{memoryOf{file}, memory}}},
			}
			var archive bytes.Buffer
			forged, err := forger.Path(name)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(snapshot.Write(t.Context(), forged, content), forger.Export(t.Context(), name, &archive), forger.Remove(t.Context(), name)); err != nil {
				t.Fatal(err)
			}
			if forge == nil {
				for range 20 {
					archive.Bytes()[random.IntN(archive.Len())] ^= 1 << random.IntN(8)
				}
			}
			path := filepath.Join(t.TempDir(), name+".zst")
			if err := os.WriteFile(path, archive.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			limit, looks, does := 40*time.Second, "20s", "3s"
			if i == 0 { // which must succeed
				limit, looks, does = 5*time.Minute, "2m", "2m"
			}
			for _, args := range [][]string{
				{"snapshot", "import", path, name}, {"snapshot", "inspect", "--verify", name}, {"snapshot", "restore", "-q", name, name},
				{"exec", "-n", name, "--timeout", looks, "cat /root/file; ls -lR /root /etc /usr >/dev/null; sync"}, {"stop", "--time", "2s", name}, {"start", "-q", name},
				{"exec", "-n", name, "--timeout", does, "true"},
			} {
				out, err := bounded(t, limit, args...)
				t.Logf("%s: %v %.200s", strings.Join(args[:2], " "), err, out)
				if i == 0 && err != nil {
					t.Errorf("what is not forged does not work: agentvm %q: %v: %s", args, err, out)
				}
				if args[1] == "restore" && err != nil {
					break // there is no VM
				}
			}
			_, _ = bounded(t, limit, "rm", "-f", name) // an error when there is none
			_, _ = bounded(t, limit, "snapshot", "rm", name)
			if out, err := bounded(t, limit, "ps", "-a"); err != nil || strings.Contains(out, name) {
				t.Errorf("left: %v\n%s", err, out)
			}
			if left, err := filepath.Glob(filepath.Join(dir, "*", "*"+name+"*")); err != nil || len(left) > 0 {
				t.Errorf("left: %q, %v", left, err)
			}
		})
	}
}

// bounded runs agentvm, which is interrupted after a while and then has to end.
func bounded(t *testing.T, limit time.Duration, args ...string) (string, error) {
	t.Helper()
	store, mirror, _ := testStore(t)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	command := exec.CommandContext(ctx, "agentvm", args...)
	command.Env = append(os.Environ(), "AGENTVM_STORE="+store, "AGENTVM_ALPINE_MIRROR="+mirror)
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = 90 * time.Second // then it is killed
	out, err := command.CombinedOutput()
	if status, ok := command.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGKILL {
		t.Errorf("agentvm %q does not end: %s", args, out)
	}
	return string(out), err
}

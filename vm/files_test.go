package vm_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/share/guestfs/guestfstest"
	"agentvm/vm"
)

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// longer is a context for tests that move much.
func longer(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestFilesOfAMachine(t *testing.T) {
	v := sharedVM(t)
	ctx := limited(t)
	defer v.RemoveAll(ctx, "/tmp/api")
	if err := v.MkdirAll(ctx, "/tmp/api/a/b", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := v.WriteFile(ctx, "/tmp/api/a/f", []byte("hello\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	wantOutput(t, v, "cat /tmp/api/a/f; stat -c %a /tmp/api/a/f", "hello\n640\n")
	wantOutput(t, v, "ln -s f /tmp/api/a/l", "")
	b, err := v.ReadFile(ctx, "/tmp/api/a/l")
	if err != nil || string(b) != "hello\n" {
		t.Errorf("ReadFile = %q, %v", b, err)
	}
	info, err := v.Stat(ctx, "/tmp/api/a/f")
	if err != nil || info.Size != 6 || info.Mode != 0o640 || info.Name != "f" {
		t.Errorf("Stat = %+v, %v", info, err)
	}
	var names []string
	list, err := v.List(ctx, "/tmp/api/a")
	for _, e := range list {
		names = append(names, e.Name+" "+e.Mode.Type().String())
	}
	if diff := cmp.Diff([]string{"b d---------", "f ----------", "l L---------"}, names); diff != "" || err != nil {
		t.Errorf("List: %v %s", err, diff)
	}
	var walked []string
	err = v.Walk(ctx, "/tmp/api", func(path string, _ vm.FileInfo, err error) error {
		walked = append(walked, path)
		return err
	})
	want := []string{"/tmp/api", "/tmp/api/a", "/tmp/api/a/b", "/tmp/api/a/f", "/tmp/api/a/l"}
	if diff := cmp.Diff(want, walked); diff != "" || err != nil {
		t.Errorf("Walk: %v %s", err, diff)
	}
	if err := v.Remove(ctx, "/tmp/api/a/l"); err != nil {
		t.Error(err)
	}
	if err := v.RemoveAll(ctx, "/tmp/api/a"); err != nil {
		t.Error(err)
	}
	if _, err := v.Stat(ctx, "/tmp/api/a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Stat of what was removed: %v", err)
	}
	if _, err := v.ReadFile(ctx, "/tmp/none"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "/tmp/none") {
		t.Errorf("ReadFile of nothing: %v", err)
	}
	if err := v.WriteFile(ctx, "/proc/none", nil, 0); err == nil {
		t.Error("a file in /proc was made")
	}
}

func TestLargeFileThereAndBack(t *testing.T) {
	v := ownVM(t, func(c *vm.Config) { c.Memory = 512 << 20 })
	ctx, host, data := longer(t), t.TempDir(), guestfstest.Noise(64<<20)
	if err := os.WriteFile(host+"/in", data, 0o600); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	copied, err := v.CopyTo(ctx, host+"/in", "/root/big", vm.CopyOptions{})
	if err != nil || copied.Bytes != 64<<20 {
		t.Fatalf("CopyTo = %+v, %v", copied, err)
	}
	in := time.Since(began)
	wantOutput(t, v, "stat -c %s /root/big; head -c 1000000 /root/big | sha256sum", "67108864\n"+sum(data[:1000000])+"  -\n")
	began = time.Now()
	var told int64
	_, err = v.CopyFrom(ctx, "/root/big", host+"/out", vm.CopyOptions{Progress: func(p vm.CopyProgress) { told = p.Bytes }})
	if err != nil || told != 64<<20 {
		t.Fatalf("CopyFrom: %v, progress of %d bytes", err, told)
	}
	out := time.Since(began)
	got, err := os.ReadFile(host + "/out")
	if err != nil || sum(got) != sum(data) {
		t.Errorf("the copy of the copy differs: %v", err)
	}
	t.Logf("64 MiB: in %.1f MB/s, out %.1f MB/s", 67.1/in.Seconds(), 67.1/out.Seconds())
}

func TestTreeThereAndBack(t *testing.T) {
	v := sharedVM(t)
	ctx, host := longer(t), t.TempDir()
	src := host + "/src"
	guestfstest.Make(t, src)
	defer v.RemoveAll(ctx, "/tmp/tree")
	if _, err := v.CopyTo(ctx, src, "/tmp/tree", vm.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	wantOutput(t, v, "cd /tmp/tree; cat d/link; readlink d/link; stat -c '%a %Y %u' d/file; stat -c '%a %Y' d", "content\nfile\n754 1000000000 0\n750 1100000000\n")
	copied, err := v.CopyFrom(ctx, "/tmp/tree", host+"/back", vm.CopyOptions{})
	if err != nil || copied.Skipped != 0 {
		t.Fatalf("CopyFrom = %+v, %v", copied, err)
	}
	if diff := cmp.Diff(guestfstest.Describe(t, src), guestfstest.Describe(t, host+"/back")); diff != "" {
		t.Error(diff)
	}
	guestfstest.NoStaging(t, host)
}

func TestManyFiles(t *testing.T) {
	v := ownVM(t, nil)
	ctx, host := longer(t), t.TempDir()
	for i := range 10_000 {
		dir := fmt.Sprintf("%s/src/%d", host, i/100)
		if i%100 == 0 {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(fmt.Sprintf("%s/%d", dir, i), fmt.Append(nil, "file ", i), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	copied, err := v.CopyTo(ctx, host+"/src", "/root/many", vm.CopyOptions{})
	if err != nil || copied.Entries != 10_100 {
		t.Fatalf("CopyTo = %+v, %v", copied, err)
	}
	in := time.Since(began)
	wantOutput(t, v, "cd /root/many; find . -type f | wc -l; cat 99/9999", "10000\nfile 9999")
	began = time.Now()
	if _, err = v.CopyFrom(ctx, "/root/many", host+"/back", vm.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Logf("10,000 files: in %.1f s, out %.1f s", in.Seconds(), time.Since(began).Seconds())
	if diff := cmp.Diff(guestfstest.Describe(t, host+"/src"), guestfstest.Describe(t, host+"/back")); diff != "" {
		t.Errorf("%.2000s", diff)
	}
}

// A reader in the guest finds one of the contents as a whole, whenever it looks.
func TestAtomicWriteSeenFromTheGuest(t *testing.T) {
	v := sharedVM(t)
	ctx := limited(t)
	a, b := bytes.Repeat([]byte("a"), 300_000), bytes.Repeat([]byte("b"), 300_000)
	defer v.RemoveAll(ctx, "/tmp/atomic")
	if err := v.MkdirAll(ctx, "/tmp/atomic", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := v.WriteFile(ctx, "/tmp/atomic/f", a, 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := v.Start(ctx, vm.Command{Line: `cd /tmp/atomic; { md5sum <f; : >begun; while [ ! -e stop ]; do md5sum <f; done; md5sum <f; } | sort | uniq -c`})
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, v, "test -e /tmp/atomic/begun")
	for i := range 21 { // the last is not what it has begun with
		if err := v.WriteFile(ctx, "/tmp/atomic/f", [][]byte{b, a}[i%2], 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.WriteFile(ctx, "/tmp/atomic/stop", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := p.Wait(ctx)
	if err != nil || strings.Count(string(r.Stdout), "\n") != 2 {
		t.Errorf("contents seen: %s, %v; want two, %.8s and %.8s", r.Stdout, err, sum(a), sum(b))
	}
	wantOutput(t, v, "ls -A /tmp/atomic", "begun\nf\nstop\n")
}

func TestFilesOfAMachineThatEnds(t *testing.T) {
	v := ownVM(t, nil)
	if _, err := v.List(limited(t), "/"); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error)
	go func() { // an endless file
		_, err := v.Files().ReadTo(limited(t), "/proc/kmsg", new(bytes.Buffer))
		failed <- err
	}()
	time.AfterFunc(100*time.Millisecond, func() { v.Close() })
	if err := <-failed; err == nil {
		t.Error("a file without an end was read to its end")
	}
	<-v.Done()
	if _, err := v.List(limited(t), "/"); !errors.Is(err, vm.ErrStopped) {
		t.Errorf("List after the end: %v", err)
	}
}

// The file service may be asked for at the very end of a VM, or be connecting then.
func TestFilesAtTheEnd(t *testing.T) {
	for range 3 {
		v := ownVM(t, nil)
		asked := make(chan error)
		for range 4 {
			go func() {
				_, err := v.List(limited(t), "/")
				asked <- err
			}()
		}
		v.Close()
		for range 4 {
			if err := <-asked; err != nil && !errors.Is(err, vm.ErrStopped) {
				t.Errorf("List: %v", err)
			}
		}
	}
}

// Commands do not wait for files, which have a connection of their own.
func TestCommandsBesideCopy(t *testing.T) {
	v := ownVM(t, func(c *vm.Config) { c.Memory = 512 << 20 })
	ctx, host := longer(t), t.TempDir()
	wantOutput(t, v, "dd if=/dev/zero of=/root/big bs=1M count=64 2>/dev/null", "")
	copied := make(chan error, 1)
	began := time.Now()
	go func() {
		_, err := v.CopyFrom(ctx, "/root/big", host+"/big", vm.CopyOptions{})
		copied <- err
	}()
	var took []time.Duration
	for {
		select {
		case err := <-copied:
			slices.Sort(took)
			if err != nil || len(took) == 0 {
				t.Fatalf("%d commands beside a copy, %v", len(took), err)
			}
			t.Logf("%d commands beside a copy of 64 MiB in %v: median %v, 95%% %v", len(took), time.Since(began), took[len(took)/2], took[len(took)*95/100])
			return
		default:
		}
		start := time.Now()
		mustRun(t, v, vm.Command{Args: []string{"/bin/true"}})
		took = append(took, time.Since(start))
	}
}

// TestWrittenProgramsStart runs programs as soon as they are written, while others are written and started: none is still open for
// writing, in the supervisor or in a program that it is just starting.
func TestWrittenProgramsStart(t *testing.T) {
	v := sharedVM(t)
	ctx := longer(t)
	const writers, programs = 8, 40
	script := []byte("#!/bin/sh\nexit 7\n")
	host := filepath.Join(t.TempDir(), "tree")
	if err := os.Mkdir(host, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(host, "program"), script, 0o755); err != nil {
		t.Fatal(err)
	}
	defer v.RemoveAll(ctx, "/tmp/programs")
	if err := v.MkdirAll(ctx, "/tmp/programs", 0o755); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for i := range programs {
				dir := fmt.Sprintf("/tmp/programs/%d.%d", w, i)
				program := dir
				var err error
				switch i % 3 {
				case 0:
					err = v.WriteFile(ctx, program, script, 0o755)
				case 1:
					_, err = v.CopyTo(ctx, filepath.Join(host, "program"), program, vm.CopyOptions{})
				case 2:
					program += "/program"
					_, err = v.CopyTo(ctx, host, dir, vm.CopyOptions{})
				}
				if err != nil {
					t.Error(err)
					return
				}
				if r, err := v.Run(ctx, vm.Command{Line: program}); err != nil || r.ExitCode != 7 {
					t.Errorf("program %d of %d: %+v, %v", i, w, r, err)
				}
			}
		})
	}
	group.Wait()
}

package vm_test

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentvm/internal/storage/disk"
	"agentvm/vm"
)

const testDiskSize = 128 << 20

func newDisk(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := disk.Create(path, testDiskSize); err != nil {
		t.Fatal(err)
	}
	return path
}

func withDisk(path string) func(*vm.Config) { return func(c *vm.Config) { c.Disk = path } }

func TestDiskKeepsFiles(t *testing.T) {
	config(t)
	path := newDisk(t)
	v := ownVM(t, withDisk(path))
	ctx := limited(t)
	if err := v.WriteFile(ctx, "/root/kept", []byte("kept\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	wantOutput(t, v, "rm /etc/shells; echo changed >/etc/hostname; mkdir -p /srv/d; dd if=/dev/urandom of=/srv/d/big bs=1M count=2 2>/dev/null; md5sum </srv/d/big >/srv/d/sum", "")
	var used *disk.InUseError
	c := config(t)
	c.Disk = path
	if other, err := vm.Start(ctx, c); !errors.As(err, &used) || !strings.Contains(err.Error(), path) {
		t.Errorf("a second VM with the same disk: %v", err)
		if other != nil {
			other.Close()
		}
	}
	if err := v.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	wantSound(t, path)
	v = ownVM(t, withDisk(path))
	wantOutput(t, v, "cat /root/kept /etc/hostname; stat -c %a /root/kept; ls /etc/shells 2>/dev/null; md5sum </srv/d/big | cmp - /srv/d/sum", "kept\nchanged\n640\n")
	if err := v.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	wantSound(t, path)
}

// The disk is free again after every kind of end.
func TestDiskIsUnlocked(t *testing.T) {
	c := config(t)
	c.Disk = newDisk(t)
	c.Kernel = []byte("no kernel")
	if v, err := vm.Start(limited(t), c); err == nil {
		v.Close()
		t.Fatal("a VM without a kernel has started")
	}
	c.Kernel = nil
	v, err := vm.Start(limited(t), c)
	if err != nil {
		t.Fatal(err)
	}
	v.Close()
	d, err := disk.Open(c.Disk)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func TestDiskThatIsNone(t *testing.T) {
	c := config(t)
	for name, content := range map[string]string{"missing": "", "text": strings.Repeat("not a disk\n", 1000)} {
		t.Run(name, func(t *testing.T) {
			c.Disk = filepath.Join(t.TempDir(), name)
			if content != "" {
				if err := os.WriteFile(c.Disk, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			v, err := vm.Start(limited(t), c)
			if err == nil {
				v.Close()
				t.Fatal("a VM has started")
			}
			if !strings.Contains(err.Error(), c.Disk) {
				t.Errorf("error %v does not name the disk", err)
			}
		})
	}
}

// fsck runs e2fsck, which must not find more than it can mend without asking.
func fsck(t testing.TB, flags, path string) string {
	t.Helper()
	program, err := exec.LookPath("e2fsck")
	if err != nil {
		program = "/usr/sbin/e2fsck"
	}
	if _, err := os.Stat(program); err != nil {
		t.Skip("needs e2fsck (Debian: e2fsprogs)")
	}
	output, err := exec.Command(program, flags, path).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() > 1) {
		t.Errorf("e2fsck %s: %v\n%s", flags, err, output)
	}
	return string(output)
}

// wantSound checks a copy of a disk that no VM uses: its journal, replayed, makes it a sound file system.
func wantSound(t testing.TB, path string) {
	t.Helper()
	examine := filepath.Join(t.TempDir(), "copy.img")
	if err := disk.WriteRaw(t.Context(), path, examine); err != nil {
		t.Fatal(err)
	}
	fsck(t, "-p", examine)
	if output := fsck(t, "-fn", examine); strings.Contains(output, "? no") || strings.Contains(output, "WARNING") {
		t.Errorf("e2fsck:\n%s", output)
	}
	if err := os.Remove(examine); err != nil {
		t.Error(err)
	}
}

// victim names the variables that make TestDiskVictim the program that is killed.
const (
	victimDisk  = "AGENTVM_TEST_DISK"
	victimStore = "AGENTVM_TEST_STORE"
	victimImage = "AGENTVM_TEST_IMAGE"
)

// TestDiskVictim does nothing by itself: TestKilledProcessWithDisk runs it in a process of its own.
func TestDiskVictim(t *testing.T) {
	path := os.Getenv(victimDisk)
	if path == "" {
		t.Skip("part of TestKilledProcessWithDisk")
	}
	v, err := vm.Start(limited(t), vm.Config{
		StoreDir: os.Getenv(victimStore), Image: os.Getenv(victimImage), Memory: 128 << 20, Disk: path,
	})
	if err != nil {
		t.Fatal(err)
	}
	p, err := v.Start(limited(t), vm.Command{Line: `i=0; while :; do i=$((i+1)); mkdir -p /srv/$((i%50)); head -c $((i%9*5000)) /dev/urandom >/srv/$((i%50))/$i; [ $((i%3)) = 0 ] && rm -r /srv/$(((i+7)%50)); done 2>/dev/null`})
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; ; i++ {
		if err := v.WriteFile(limited(t), "/root/count", []byte(strconv.Itoa(i)), 0o600); err != nil {
			t.Fatal(err, p)
		}
		fmt.Printf("written %d\n", i)
	}
}

// What was written as a whole, and acknowledged, is there after the process that ran the VM was killed at any moment.
func TestKilledProcessWithDisk(t *testing.T) {
	c := config(t)
	path := newDisk(t)
	kills := 4
	for kill := range kills {
		last := killVictim(t, c, path, time.Duration(rand.IntN(1500))*time.Millisecond)
		wantSound(t, path)
		v := ownVM(t, withDisk(path))
		b, err := v.ReadFile(limited(t), "/root/count")
		if n, bad := strconv.Atoi(string(b)); err != nil || bad != nil || n < last {
			t.Errorf("kill %d: the file has %q, %v; %d was acknowledged", kill, b, err, last)
		}
		if err := v.Stop(limited(t)); err != nil {
			t.Error(err)
		}
		wantSound(t, path)
	}
}

// killVictim returns the last number that was written for certain.
func killVictim(t *testing.T, c vm.Config, path string, after time.Duration) (last int) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(program, "-test.run=^TestDiskVictim$", "-test.v")
	child.Env = append(os.Environ(), "TMPDIR="+t.TempDir(), victimDisk+"="+path, victimStore+"="+c.StoreDir, victimImage+"="+c.Image)
	output, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(output)
	var said []string
	timer := time.AfterFunc(time.Minute, func() { _ = child.Process.Kill() })
	for lines.Scan() {
		said = append(said, lines.Text())
		n, found := strings.CutPrefix(lines.Text(), "written ")
		if !found {
			continue
		}
		if last == 0 {
			timer.Reset(after)
		}
		last, _ = strconv.Atoi(n)
	}
	_ = child.Wait()
	if last == 0 {
		t.Fatalf("it has written nothing: %q", said)
	}
	t.Logf("killed after %v and %d writes", after, last)
	return last
}

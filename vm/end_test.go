package vm_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentvm/images"
	"agentvm/vm"
)

func TestGuestThatEndsDuringACommand(t *testing.T) {
	tests := []struct {
		name, line string
		reason     vm.Reason
		console    string
	}{
		{"powers off", "echo said; sleep 1; poweroff -f; sleep 60", vm.PoweredOff, ""},
		{"reboots", "echo said; sleep 1; reboot -f; sleep 60", vm.Rebooted, ""},
		{"panics", "echo said; sleep 1; echo c >/proc/sysrq-trigger; sleep 60", vm.Panicked, "sysrq triggered crash"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			v := ownVM(t, nil)
			r, err := v.Exec(limited(t), test.line)
			var ended *vm.GuestError
			if !errors.As(err, &ended) || ended.Reason != test.reason || !bytes.Contains(ended.Console, []byte(test.console)) {
				t.Fatalf("error %v", err)
			}
			if r == nil || string(r.Stdout) != "said\n" {
				t.Errorf("result %+v, want the output before the end", r)
			}
			if _, err := v.Exec(limited(t), "true"); !errors.As(err, &ended) {
				t.Errorf("command after the end: %v", err)
			}
			if err := v.Wait(limited(t)); !errors.As(err, &ended) {
				t.Errorf("Wait = %v", err)
			}
			if err := v.Stop(limited(t)); err != nil {
				t.Errorf("Stop = %v", err)
			}
		})
	}
}

// TestOrderlyEndsByTheGuest has BusyBox's programs for it, and what systemd's PID 1 takes, end the machine after its programs.
func TestOrderlyEndsByTheGuest(t *testing.T) {
	for line, reason := range map[string]vm.Reason{
		"poweroff": vm.PoweredOff, "halt": vm.PoweredOff, "reboot": vm.Rebooted, "kill -INT 1": vm.Rebooted, "kill -37 1": vm.PoweredOff,
		"kill -38 1": vm.PoweredOff, "kill -39 1": vm.Rebooted,
	} {
		t.Run(line, func(t *testing.T) {
			host := t.TempDir()
			v := ownVM(t, mounted(host, false))
			const program = `exec 3>/mnt/host/told; trap 'echo told >&3; exit' TERM; echo >/mnt/host/ready; while :; do sleep 0.01; done`
			if _, err := v.Start(limited(t), vm.Command{Line: program}); err != nil {
				t.Fatal(err)
			}
			if _, err := v.Exec(limited(t), "while ! [ -e /mnt/host/ready ]; do sleep 0.01; done"); err != nil {
				t.Fatal(err)
			}
			_, _ = v.Exec(limited(t), line)
			var ended *vm.GuestError
			if err := v.Wait(limited(t)); !errors.As(err, &ended) || ended.Reason != reason {
				t.Errorf("Wait = %v", err)
			}
			if text, err := os.ReadFile(filepath.Join(host, "told")); string(text) != "told\n" {
				t.Errorf("the program was not asked to end: %q, %v", text, err)
			}
		})
	}
}

// TestStraySignalsToInit has root in the guest send PID 1 every signal that orders nothing, many times: the machine runs on.
func TestStraySignalsToInit(t *testing.T) {
	v := ownVM(t, nil)
	const line = `for round in $(seq 50); do
		for s in 1 3 4 5 6 7 8 9 11 13 14 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 40 50 64; do kill -$s 1 || echo $s; done
	done; echo sent`
	wantOutput(t, v, line, "sent\n")
	wantOutput(t, v, "echo alive; kill -0 1 && cat /proc/1/comm", "alive\ninit\n")
}

func TestStopIsOrderly(t *testing.T) {
	host := t.TempDir()
	v := ownVM(t, mounted(host, false))
	p, err := v.Start(limited(t), vm.Command{Line: `exec 3>/mnt/host/told; trap 'echo told >&3; exit' TERM; echo >/mnt/host/ready; while :; do sleep 0.01; done`})
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ {
		if _, err := os.Stat(filepath.Join(host, "ready")); err == nil {
			break
		}
		if i == 6000 {
			t.Fatal("the command does not start")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := v.Stop(limited(t)); err != nil {
		t.Errorf("Stop = %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(host, "told")); string(text) != "told\n" {
		t.Errorf("the command was not asked to end: %q, %v", text, err)
	}
	if _, err := p.Wait(limited(t)); err != nil && !errors.Is(err, vm.ErrStopped) {
		t.Errorf("Wait of the command = %v", err)
	}
	if err := v.Wait(limited(t)); err != nil {
		t.Errorf("Wait = %v", err)
	}
	if _, err := v.Exec(limited(t), "true"); !errors.Is(err, vm.ErrStopped) {
		t.Errorf("command after Stop: %v", err)
	}
}

func TestCloseEndsCommands(t *testing.T) {
	v := ownVM(t, nil)
	result := make(chan error)
	go func() {
		_, err := v.Exec(limited(t), "sleep 1000")
		result <- err
	}()
	time.Sleep(200 * time.Millisecond)
	began := time.Now()
	if err := v.Close(); err != nil {
		t.Error(err)
	}
	if err := <-result; !errors.Is(err, vm.ErrStopped) {
		t.Errorf("command: %v", err)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("Close took %v", took)
	}
	<-v.Done()
}

func TestGuestThatWritesGarbageEverywhere(t *testing.T) {
	v := ownVM(t, nil)
	const garbage = `for f in /dev/vport* /dev/hvc* /dev/console /dev/kmsg /dev/vd* /dev/ttyS* /proc/self/fd/*; do
		[ -e $f ] || continue
		dd if=/dev/urandom of=$f bs=4096 count=64 2>/dev/null & p=$!
		( sleep 1; kill -9 $p ) 2>/dev/null & wait $p
	done; true`
	if _, err := v.Run(limited(t), vm.Command{Line: garbage, MaxOutput: 1000}); err != nil {
		t.Fatal(err)
	}
	wantOutput(t, v, "echo alive", "alive\n")
}

func TestStartCanBeCancelled(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	v, err := vm.Start(ctx, config(t))
	if err == nil {
		v.Close()
		t.Skip("the VM was faster")
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

func TestKernelThatNeverAnswers(t *testing.T) {
	c := config(t)
	c.BootTimeout = 300 * time.Millisecond
	c.Kernel = make([]byte, 4096) // zeros are an illegal instruction, and the trap handler is one too
	c.Kernel[8+2] = 0x20
	copy(c.Kernel[56:], "RSC\x05")
	_, err := vm.Start(limited(t), c)
	if err == nil || !strings.Contains(err.Error(), "has not answered for 300ms") {
		t.Errorf("error %v", err)
	}
}

func TestRootDiskThatIsCorrupt(t *testing.T) {
	c := config(t)
	c.StoreDir = t.TempDir()
	c.Image = images.BuiltinName
	store, err := images.Open(c.StoreDir)
	if err != nil {
		t.Fatal(err)
	}
	image, err := store.Pull(context.Background(), images.BuiltinName, nil)
	if err != nil {
		t.Fatal(err)
	}
	disks, err := filepath.Glob(filepath.Join(c.StoreDir, "disks", "*.zst"))
	if err != nil || len(disks) != 1 {
		t.Fatal(disks, err)
	}
	info, err := os.Stat(disks[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(disks[0], make([]byte, info.Size()), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err = vm.Start(limited(t), c); err == nil || !strings.Contains(err.Error(), image.Name) || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("error %v, want one that the root disk of %s is damaged", err, image.Name)
	}
	v, err := vm.Start(limited(t), c) // which has built the disk again
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	wantOutput(t, v, "echo alive", "alive\n")
}

// TestLayerThatIsCorrupt flips a bit of a layer on the host: the guest gets an error where it reads that, and the log says why.
func TestLayerThatIsCorrupt(t *testing.T) {
	var log lockedBuffer
	c := config(t)
	c.StoreDir, c.Logger = t.TempDir(), slog.New(slog.NewTextHandler(&log, nil))
	content := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{}).Read(content)
	image := importWith(t, &c, "noise", content)
	path := filepath.Join(c.StoreDir, "layers", strings.TrimPrefix(image.SourceDigest, "sha256:")+".tar.zst")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	one := make([]byte, 1)
	at := info.Size() - 512<<10 // in the middle of the noise, which does not become smaller
	if _, err := f.ReadAt(one, at); err != nil {
		t.Fatal(err)
	}
	one[0] ^= 4
	if _, err := f.WriteAt(one, at); err != nil {
		t.Fatal(err)
	}
	v, err := vm.Start(limited(t), c)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	wantOutput(t, v, "head -c 100000 /noise | wc -c; cat /noise 2>&1 >/dev/null | grep -c 'I/O error\\|Input/output error'; echo alive", "100000\n1\nalive\n")
	if text := log.String(); !strings.Contains(text, "is damaged") || !strings.Contains(text, "image=mine") {
		t.Errorf("log: %s", text)
	}
	store, err := images.Open(c.StoreDir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Resolve(t.Context(), "mine"); err == nil || !strings.Contains(err.Error(), "pull or import it again") {
		t.Errorf("resolve what is known to be damaged: %v", err)
	}
}

func TestConsoleIsCopied(t *testing.T) {
	var screen bytes.Buffer
	v := ownVM(t, func(c *vm.Config) { c.Console = &screen; c.KernelArguments = "loglevel=7" })
	v.Close()
	if !strings.Contains(screen.String(), "Run /init as init process") {
		t.Errorf("console: %q", screen.String())
	}
}

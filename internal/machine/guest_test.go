package machine_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"agentvm/internal/host/platform"
	"agentvm/internal/machine"
	"agentvm/internal/machine/kernel"
	"agentvm/wasi"
)

// workerInitramfs has testdata/worker as its only file.
var workerInitramfs = sync.OnceValues(func() ([]byte, error) { return initramfsOf(platform.RISCV64, "worker") })

var arm64WorkerInitramfs = sync.OnceValues(func() ([]byte, error) { return initramfsOf(platform.ARM64, "worker") })

// initramfsOf builds the program testdata/NAME for the guest and packs it as /init.
func initramfsOf(architecture platform.Architecture, name string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "agentvm-"+name+"-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "init")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, "./testdata/"+name)
	build.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+string(architecture), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the guest's program %s: %w\n%s", name, err, out)
	}
	data, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	var archive bytes.Buffer
	addToArchive(&archive, "dev", 0o040755, nil)
	addToArchive(&archive, "init", 0o100755, data)
	addToArchive(&archive, "TRAILER!!!", 0, nil)
	return archive.Bytes(), nil
}

// addToArchive writes one member of a cpio archive; source: the kernel's driver-api/early-userspace/buffer-format.rst.
func addToArchive(archive *bytes.Buffer, name string, mode uint32, data []byte) {
	pad := func() { archive.Write(make([]byte, -archive.Len()&3)) }
	archive.WriteString("070701")
	for _, field := range []uint32{1, mode, 0, 0, 1, 0, uint32(len(data)), 0, 0, 0, 0, uint32(len(name) + 1), 0} {
		fmt.Fprintf(archive, "%08x", field)
	}
	archive.WriteString(name + "\x00")
	pad()
	archive.Write(data)
	pad()
}

// worker is a Linux guest that runs testdata/worker, and the host's side of its console.
type worker struct {
	testing.TB
	*machine.Machine
	program *machine.Program // that its machine is of
	console *wasi.Stream
	lines   chan string
	closed  bool
}

// host starts to read the console; attach gives it its machine.
func newWorker(t testing.TB) *worker {
	w := &worker{TB: t, console: wasi.NewStream(1 << 16), lines: make(chan string, 1000)}
	go func() {
		defer close(w.lines)
		var rest []byte
		buffer := make([]byte, 4096)
		for {
			n, err := w.console.Host().Read(buffer)
			rest = append(rest, buffer[:n]...)
			for i := bytes.IndexByte(rest, '\n'); i >= 0; i = bytes.IndexByte(rest, '\n') {
				w.lines <- strings.TrimRight(string(rest[:i]), "\r")
				rest = rest[i+1:]
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(w.close)
	return w
}

func (w *worker) attach(m *machine.Machine, err error) *worker {
	if err != nil {
		w.Helper()
		w.Fatal(err)
	}
	w.Machine = m
	return w
}

func (w *worker) close() {
	if w.closed {
		return
	}
	w.closed = true
	if w.Machine == nil {
		w.console.Host().Close()
	} else {
		if err := w.Machine.Close(); err != nil {
			w.Error(err)
		}
	}
	for range w.lines {
	}
}

// bootWorker boots a worker and runs it until it is ready; with "work=1" it then works without end, else it waits for
// questions.
func bootWorker(t testing.TB, cfg machine.Config, parameters string) *worker {
	t.Helper()
	return bootGuest(t, cfg, workerInitramfs, " "+parameters)
}

// bootGuest boots a program of testdata and runs it until it says that it is ready.
func bootGuest(t testing.TB, cfg machine.Config, initramfs func() ([]byte, error), parameters string) *worker {
	t.Helper()
	return bootProgram(t, testProgram(t), platform.RISCV64, cfg, initramfs, parameters)
}

// bootWorkerOf is bootWorker for any machine.
func bootWorkerOf(t testing.TB, architecture platform.Architecture, cfg machine.Config, parameters string) *worker {
	t.Helper()
	if architecture == platform.ARM64 {
		return bootProgram(t, arm64Program(t), architecture, cfg, arm64WorkerInitramfs, " "+parameters)
	}
	return bootWorker(t, cfg, parameters)
}

func bootProgram(t testing.TB, program *machine.Program, architecture platform.Architecture, cfg machine.Config, initramfs func() ([]byte, error), parameters string) *worker {
	t.Helper()
	w := newWorker(t)
	w.program = program
	cfg.Console = w.console
	w.attach(program.NewMachine(t.Context(), cfg))
	image, err := kernel.Image(architecture)
	if err != nil {
		t.Fatal(err)
	}
	archive, err := initramfs()
	if err != nil {
		t.Fatal(err)
	}
	linux := machine.Linux{Kernel: image, Initramfs: archive, CommandLine: "console=hvc0 quiet panic=-1" + parameters}
	if err := w.LoadLinux(linux); err != nil {
		t.Fatal(err)
	}
	w.until("ready")
	return w
}

// restoreWorker makes another worker of an image.
func restoreWorker(t testing.TB, cfg machine.Config, i *machine.MemoryImage) *worker {
	t.Helper()
	return (&worker{TB: t, program: testProgram(t)}).restore(cfg, i)
}

// restore makes another worker of an image of this one's machine.
func (w *worker) restore(cfg machine.Config, i *machine.MemoryImage) *worker {
	w.Helper()
	c := newWorker(w.TB)
	c.program = w.program
	cfg.Console = c.console
	return c.attach(w.program.Restore(w.Context(), cfg, i))
}

// until runs the guest until its console has a line with the prefix, which it returns.
func (w *worker) until(prefix string) string {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), 2*time.Minute)
	defer cancel()
	found := make(chan string, 1)
	var seen []string
	go func() {
		defer cancel()
		for {
			select {
			case line, open := <-w.lines:
				if !open {
					return
				}
				seen = append(seen, line)
				if strings.HasPrefix(line, prefix) {
					found <- line
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	exit, err := w.Run(ctx)
	<-ctx.Done()
	select {
	case line := <-found:
		return line
	default:
		w.Fatalf("the guest said no %q: exit %v, %v\n%s", prefix, exit, err, strings.Join(seen, "\n"))
		return ""
	}
}

// ask writes a line to the guest's console and returns its answer, which is behind "= ".
func (w *worker) ask(question string) string {
	w.Helper()
	if _, err := io.WriteString(w.console.Host(), question+"\n"); err != nil {
		w.Fatal(err)
	}
	return w.until("= ")[2:]
}

// advance runs exactly so many instructions.
func (w *worker) advance(instructions int64) {
	w.Helper()
	for instructions > 0 {
		before := w.Retired()
		exit, stopped, err := w.Step(min(instructions, 1_000_000))
		if err != nil || stopped {
			w.Fatalf("the guest stopped: %v, %v", exit, err)
		}
		done := int64(w.Retired() - before)
		if done == 0 {
			w.Fatal(errors.New("the guest waits for ever"))
		}
		instructions -= done
	}
}

func (w *worker) hash() [32]byte {
	w.Helper()
	h, err := w.Hash()
	if err != nil {
		w.Fatal(err)
	}
	return h
}

func (w *worker) capture() *machine.MemoryImage {
	w.Helper()
	i, err := w.Capture(machine.ExtentsForMany)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		if err := i.Close(); err != nil {
			w.Error(err)
		}
	})
	return i
}

// sum is the digest of what a function writes.
func sum(t testing.TB, write func(io.Writer) error) [32]byte {
	t.Helper()
	h := sha256.New()
	if err := write(h); err != nil {
		t.Fatal(err)
	}
	return [32]byte(h.Sum(nil))
}

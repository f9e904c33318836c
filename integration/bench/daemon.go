//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/creack/pty"
)

// liveVM is the name of the VM that lives on while it is measured.
const liveVM = "bench"

// measureDaemon measures what people type against a VM that lives on: whole processes of agentvm, and keys in its terminal.
// Beside the processes stands the same command through the library, so that the difference is the daemon's and the
// program's own.
func measureDaemon(ctx context.Context, b *bench) error {
	if err := b.kit.build(ctx); err != nil {
		return err
	}
	if err := measureProgramStart(ctx, b); err != nil {
		return err
	}
	servers, err := startServers(2 << 30) // a download that outlasts the measurement
	if err != nil {
		return err
	}
	defer servers.close()
	if _, err := b.kit.agentvm(ctx, "start", liveVM, "--image", b.kit.image.Name, "--memory", fmt.Sprint(memory, "M"),
		"--host-port", fmt.Sprint(servers.source())); err != nil {
		return err
	}
	defer func() { _, _ = b.kit.agentvm(context.WithoutCancel(ctx), "rm", "-f", liveVM) }()
	if err := measureLiveTrue(ctx, b); err != nil {
		return err
	}
	return measureKeys(ctx, b, servers)
}

func (k *kit) command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, k.path("agentvm"), args...)
	c.Env = append(os.Environ(), "AGENTVM_STORE="+k.store)
	return c
}

func (k *kit) agentvm(ctx context.Context, args ...string) (string, error) {
	return output(k.command(ctx, args...))
}

// measureProgramStart runs a command that does nothing.
func measureProgramStart(ctx context.Context, b *bench) error {
	var took samples
	for range b.rounds(50) {
		start := time.Now()
		if _, err := b.kit.agentvm(ctx, "--help"); err != nil {
			return err
		}
		took = append(took, milliseconds(time.Since(start)))
	}
	b.report.value("Daemon/help", took.median(), "ms")
	b.report.add(figure{name: "`agentvm --help`, whole process, median", unit: "ms", value: took.median(), spread: took, bar: atMost(15)})
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / 1e6 }

// measureLiveTrue runs the smallest command in the live VM and, in turn, in one of this process.
func measureLiveTrue(ctx context.Context, b *bench) error {
	own, err := b.kit.startOwn(ctx)
	if err != nil {
		return err
	}
	defer own.close()
	var whole, library samples
	for i := range 10 + b.rounds(100) {
		start := time.Now()
		if _, err := b.kit.agentvm(ctx, "exec", "-i=false", "-n", liveVM, "true"); err != nil {
			return err
		}
		middle := time.Now()
		if _, err := own.sh(ctx, "true"); err != nil {
			return err
		}
		if i >= 10 { // the first ones fill caches
			whole = append(whole, milliseconds(middle.Sub(start)))
			library = append(library, milliseconds(time.Since(middle)))
		}
	}
	b.report.value("Daemon/true", whole.median(), "ms")
	b.report.value("Daemon/library", library.median(), "ms")
	b.report.add(figure{name: "`agentvm exec -n NAME true`, whole process, median", unit: "ms", value: whole.median(), spread: whole, bar: atMost(35)})
	b.report.add(figure{name: "the same above the library's `true`", unit: "ms", value: whole.median() - library.median(), bar: atMost(15)})
	return nil
}

// measureKeys types into a program that echoes, first in peace and then beside a download at full speed.
func measureKeys(ctx context.Context, b *bench, to *servers) error {
	c := b.kit.command(ctx, "exec", "-t", "-n", liveVM, "stty raw -echo; echo ready; exec cat")
	terminal, err := pty.Start(c)
	if err != nil {
		return err
	}
	defer func() { _ = terminal.Close(); _ = c.Process.Kill(); _ = c.Wait() }()
	if err := readUntil(terminal, "ready"); err != nil {
		return err
	}
	time.Sleep(settleTime)
	quiet, err := typeKeys(terminal, b.rounds(200))
	if err != nil {
		return err
	}
	download := b.kit.command(ctx, "exec", "-i=false", "-n", liveVM, fmt.Sprintf("nc %s %d >/dev/null </dev/null", ownHost, to.source()))
	if err := download.Start(); err != nil {
		return err
	}
	time.Sleep(time.Second)
	busy, err := typeKeys(terminal, b.rounds(200))
	_ = download.Process.Kill()
	_ = download.Wait()
	if err != nil {
		return err
	}
	b.report.value("Daemon/key/quiet", quiet.quantile(0.95), "ms")
	b.report.value("Daemon/key/download", busy.quantile(0.95), "ms")
	b.report.add(figure{name: "echo of a key, 95th percentile", unit: "ms", value: quiet.quantile(0.95), spread: quiet, bar: atMost(10)})
	b.report.add(figure{name: "the same beside a download", unit: "ms", value: busy.quantile(0.95), spread: busy, bar: atMost(50)})
	return nil
}

// readUntil reads until the text ends a line's part.
func readUntil(r io.Reader, text string) error {
	var seen strings.Builder
	buffer := make([]byte, 256)
	for !strings.Contains(seen.String(), text) {
		n, err := r.Read(buffer)
		if err != nil {
			return fmt.Errorf("waiting for %q after %q: %w", text, seen.String(), err)
		}
		seen.Write(buffer[:n])
	}
	return nil
}

// typeKeys types a letter, waits for its echo, and continues after a pause as a person would.
func typeKeys(terminal *os.File, count int) (samples, error) {
	var took samples
	echo := make([]byte, 64)
	for i := range count {
		key := []byte{byte('a' + i%26)}
		start := time.Now()
		if _, err := terminal.Write(key); err != nil {
			return nil, err
		}
		for {
			n, err := terminal.Read(echo)
			if err != nil {
				return nil, err
			}
			if bytes.Contains(echo[:n], key) {
				break
			}
		}
		took = append(took, milliseconds(time.Since(start)))
		time.Sleep(20 * time.Millisecond)
	}
	return took, nil
}

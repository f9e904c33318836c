//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/platform"
)

const (
	qemuName    = "qemu-system-riscv64"
	qemuPackage = "qemu-system-misc"

	qemuArm64Name    = "qemu-system-aarch64"
	qemuArm64Package = "qemu-system-arm"
)

func qemuVersion() string {
	out, err := output(exec.Command(qemuName, "--version"))
	if err != nil {
		return "none"
	}
	first, _, _ := strings.Cut(out, "\n")
	return first
}

// qemuGuest is a guest on QEMU's emulation, with the kernel, supervisor and root disk that agentvm boots.
type qemuGuest struct {
	command *exec.Cmd
	client  *guestrpc.Client
	console bytes.Buffer
	stop    context.CancelFunc
}

// qemuNetwork is what the guest of QEMU's own stack, libslirp, is given (qemu(1), -netdev user).
func qemuNetwork() *guestrpc.NetworkParams {
	return &guestrpc.NetworkParams{
		Address: netip.MustParsePrefix("10.0.2.15/24"), Gateway: netip.MustParseAddr("10.0.2.2"), DNS: []netip.Addr{netip.MustParseAddr("10.0.2.3")},
	}
}

// startQEMU returns when the guest can run commands. With a network it is that of QEMU's own stack, libslirp. flags are
// further ones for QEMU, such as -incoming for a guest that has booted before.
func (k *kit) startQEMU(ctx context.Context, network *guestrpc.NetworkParams, flags ...string) (*qemuGuest, error) {
	name, debian := qemuName, qemuPackage
	if k.architecture == platform.ARM64 {
		name, debian = qemuArm64Name, qemuArm64Package
	}
	if err := needTool(name, debian); err != nil {
		return nil, err
	}
	socket := k.path("control")
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	run, stop := context.WithCancel(ctx)
	g := &qemuGuest{stop: stop}
	arguments := k.qemuArguments(socket)
	if network != nil {
		arguments = append(arguments, "-netdev", "user,id=net", "-device", "virtio-net-device,netdev=net")
	}
	g.command = exec.CommandContext(run, name, append(arguments, flags...)...)
	g.command.Stdout, g.command.Stderr = &g.console, &g.console
	if err := g.command.Start(); err != nil {
		stop()
		return nil, err
	}
	params := guestrpc.StartParams{Hostname: "bench", Network: network}
	if slices.Contains(flags, "-incoming") {
		params.Restored = restored()
	}
	if err := g.greet(ctx, listener.(*net.UnixListener), params); err != nil {
		g.close()
		return nil, fmt.Errorf("QEMU's guest: %w\n%s", err, g.console.Bytes())
	}
	return g, nil
}

func (k *kit) qemuArguments(socket string) []string {
	machine := []string{"-M", "virt"}
	if k.architecture == platform.ARM64 {
		machine = []string{"-M", "virt,gic-version=3", "-cpu", "cortex-a72"}
	}
	return append(machine,
		"-smp", "1", "-m", fmt.Sprint(k.memory), "-nodefaults", "-display", "none", "-monitor", "none", "-no-reboot",
		"-global", "virtio-mmio.force-legacy=false", "-kernel", k.path("kernel"), "-initrd", k.path("initramfs"),
		"-append", "console=hvc0 quiet reboot=panic_warm fb_tunnels=none dummy.numdummies=0 ifb.numifbs=0 bdev_allow_write_mounted=1", "-device", "virtio-rng-device",
		"-device", "virtio-serial-device", "-chardev", "stdio,id=console", "-device", "virtconsole,chardev=console",
		"-chardev", "socket,id=control,path="+socket, "-device", "virtserialport,chardev=control,name=agentvm.control",
		"-drive", "if=none,id=root,format=raw,readonly=on,file="+k.path("root"), "-device", "virtio-blk-device,drive=root",
	)
}

func (g *qemuGuest) greet(ctx context.Context, listener *net.UnixListener, params guestrpc.StartParams) error {
	if err := listener.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	conn, err := listener.Accept()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if g.client, err = guestrpc.Dial(ctx, conn, guestrpc.ClientConfig{}); err != nil {
		return err
	}
	params.Time = time.Now()
	info, err := g.client.Start(ctx, params)
	if err == nil && info.NetworkWarning != "" {
		err = errors.New(info.NetworkWarning)
	}
	return err
}

func (g *qemuGuest) sh(ctx context.Context, line string) (string, error) {
	return g.run(ctx, line, nil)
}

func (g *qemuGuest) typed(ctx context.Context, keys string) (string, error) {
	var stdout bytes.Buffer
	p, err := g.client.Exec(ctx, guestrpc.ExecParams{
		Args: []string{"/bin/sh", "-i"}, Terminal: &guestrpc.Size{Columns: 120, Rows: 40}, Stdin: strings.NewReader(keys), Stdout: &stdout,
	})
	if err == nil {
		_, err = p.Wait(ctx)
	}
	return stdout.String(), err
}

func (g *qemuGuest) put(ctx context.Context, path string, content []byte) error {
	_, err := g.run(ctx, putLine(path), bytes.NewReader(content))
	return err
}

func (g *qemuGuest) run(ctx context.Context, line string, stdin io.Reader) (string, error) {
	var stdout, stderr bytes.Buffer
	p, err := g.client.Exec(ctx, guestrpc.ExecParams{
		Args: []string{"/bin/sh", "-c", line}, Stdin: stdin, Stdout: &stdout, Stderr: &stderr,
	})
	if err != nil {
		return "", err
	}
	status, err := p.Wait(ctx)
	if err != nil {
		return "", err
	}
	return stdout.String(), failed(line, status.Code, stderr.Bytes())
}

func (g *qemuGuest) pid() int { return g.command.Process.Pid }

func (g *qemuGuest) close() {
	if g.client != nil {
		_ = g.client.Close()
	}
	g.stop()
	_ = g.command.Wait()
}

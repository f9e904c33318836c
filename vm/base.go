package vm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/guest/supervisor"
	"agentvm/internal/host/platform"
	"agentvm/internal/machine"
	"agentvm/internal/machine/kernel"
	"agentvm/internal/storage/checkpoint"
	"agentvm/internal/storage/snapshot"
)

const (
	// savedTimeout is how long the guest of a machine that continues from a base may take to answer: it needs milliseconds.
	savedTimeout = 15 * time.Second
	// warmUpTime bounds the first commands in a guest that becomes a base.
	warmUpTime = 10 * time.Second
)

// usesBase reports whether VMs of this configuration continue from a base.
func (c Config) usesBase() bool {
	return !c.ColdBoot && c.Kernel == nil && (c.Disk == "" || !strings.Contains(c.KernelArguments, overlayArgument))
}

// networkShape returns what the guest of a saved machine knows of its network; nil: it has none.
func networkShape(n Network) *checkpoint.Network {
	if n.Disabled {
		return nil
	}
	shape := &checkpoint.Network{MTU: n.MTU, Subnet: n.Subnet.Masked().String(), DisableIPv6: n.DisableIPv6, Search: n.Search}
	if n.Address.IsValid() {
		shape.Address = n.Address.String()
	}
	return shape
}

// meta describes the machine that is made of r.
func (r *resources) meta(c Config) (snapshot.Meta, error) {
	m := snapshot.Meta{
		Created: time.Now().UTC(), Machine: c.machineDigest(r.architecture), Memory: c.Memory, CPUs: several(c.CPUs),
		Image: r.image.Name, RootDisk: bareDigest(r.image.RootDiskDigest), Shares: len(c.Mounts), KernelArguments: c.KernelArguments,
	}
	if r.architecture != platform.RISCV64 {
		m.Platform = r.architecture.Platform()
	}
	m.SpareShares = r.mountDevices(c) - m.Shares
	var errs [2]error
	m.Network, errs[0] = json.Marshal(networkShape(c.Network))
	switch {
	case r.origin != nil: // the machine has booted them already
		m.Kernel, m.Supervisor = r.origin.Kernel, r.origin.Supervisor
	case c.Kernel != nil:
		sum := sha256.Sum256(c.Kernel)
		m.Kernel = hex.EncodeToString(sum[:])
	default:
		m.Kernel, errs[1] = kernel.Digest(r.architecture)
	}
	if r.origin == nil {
		m.Supervisor = supervisor.Digest(r.architecture)
	}
	return m, errors.Join(errs[:]...)
}

// bareDigest cuts the algorithm's name off a digest.
func bareDigest(digest string) string { return strings.TrimPrefix(digest, "sha256:") }

// machineDigest identifies the emulator's build for an architecture.
func (c Config) machineDigest(architecture platform.Architecture) string {
	if c.emulator != nil {
		return c.emulator.digest
	}
	return bareDigest(machine.ModuleDigest(architecture, c.CPUs))
}

// openBase finds the base, or has the VM leave one.
func (r *resources) openBase(c Config) {
	meta, err := r.meta(c)
	if err != nil {
		c.Logger.Debug("no base", "error", err)
		return
	}
	var disk int64
	if r.overlay != nil {
		disk = r.overlay.Size()
	}
	r.base = checkpoint.NewBase(r.store.Dir(), meta, disk, c.Logger)
	if r.saved, r.createBase = r.base.Open(); r.saved != nil {
		r.memory = r.saved.Image
	}
	if r.createBase && r.overlay != nil {
		r.overlay.absent.Store(true)
	}
}

// bootAndCapture starts the guest with nothing that is this VM's own, has it run a first command, captures the machine for a base and gives
// the guest its configuration. Whatever prevents a base is not an error as long as the VM works.
func (v *VM) bootAndCapture(ctx context.Context, client *guestrpc.Client) error {
	began := time.Now()
	info, err := client.Start(ctx, guestrpc.StartParams{Time: time.Now(), Network: v.resources.network.Params()})
	if err != nil {
		return err
	}
	image, err := v.captureBase(ctx, client, info)
	if v.resources.overlay != nil {
		v.resources.overlay.absent.Store(false)
	}
	if err != nil && (ctx.Err() != nil || v.alive() != nil) {
		return err
	}
	v.config.Logger.Debug("timing: captured the machine", "took", time.Since(began), "error", err)
	if err := v.configureGuest(ctx, client, true); err != nil || image == nil {
		if image != nil {
			err = errors.Join(err, image.Close())
		}
		return err
	}
	// The VM is now as those that will start from the base. It runs a first command to record what they will write. With a writable disk
	// it runs none, since the disk may have another shell, the user's.
	var written []machine.Range
	if v.resources.overlay == nil {
		limited, cancel := context.WithTimeout(ctx, warmUpTime)
		err = firstCommand(limited, client)
		cancel()
	}
	if err == nil {
		err = v.withMachine(ctx, func(m emulator) (err error) { written, err = m.Written(); return err })
	}
	if err != nil && (ctx.Err() != nil || v.alive() != nil) {
		return errors.Join(err, image.Close())
	}
	v.config.Logger.Debug("timing: recorded the first writes", "error", err)
	if err = v.goTracked(func() { v.resources.base.Write(image, written) }); err != nil {
		err = errors.Join(err, image.Close())
	}
	return err
}

// warmupRuns is how often the first command runs. Only from the second or third run on does the kernel count the command's pages among
// those in use, which would otherwise cost each VM 50,000 instructions.
const warmupRuns = 3

// captureBase warms the guest up with commands, so that the base has what every first command reads and sets up, and captures its machine.
// An image whose shell does not end gets no base.
func (v *VM) captureBase(ctx context.Context, client *guestrpc.Client, info guestrpc.GuestInfo) (image *machine.MemoryImage, err error) {
	if info.NetworkWarning != "" {
		return nil, errors.New("the guest's network: " + readable([]byte(info.NetworkWarning), 1))
	}
	limited, cancel := context.WithTimeout(ctx, warmUpTime)
	defer cancel()
	for range warmupRuns {
		if err := firstCommand(limited, client); err != nil {
			return nil, err
		}
	}
	err = v.withMachine(ctx, func(m emulator) (err error) { image, err = m.Capture(machine.ExtentsForMany); return err })
	return image, err
}

func firstCommand(ctx context.Context, client *guestrpc.Client) error {
	p, err := client.Exec(ctx, guestrpc.ExecParams{Args: []string{"/bin/sh", "-c", "true"}, Dir: defaultDir})
	if err != nil {
		return fmt.Errorf("run a first command: %w", err)
	}
	select {
	case <-p.Done():
		return nil
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	return errors.Join(fmt.Errorf("the first command: %w", ctx.Err()), p.Kill(last))
}

// checkBase has the base that the VM was started from verified while the VM runs.
func (v *VM) checkBase() {
	if r := v.resources; r.base != nil && r.saved != nil {
		_ = v.goTracked(func() { r.base.Check(r.saved, v.halted) }) // a VM that has ended already leaves it to the next one
	}
}

package vm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"agentvm/internal/guest/supervisor"
	"agentvm/internal/guestrpc"
	"agentvm/internal/kernel"
	"agentvm/internal/machine"
	"agentvm/internal/shortage"
	"agentvm/internal/snapshot"
)

const (
	// baseFormat changes when a base of an older version would not do.
	baseFormat = 3
	// savedTimeout is how long the guest of a machine that continues from a base may take to answer: it needs milliseconds.
	savedTimeout = 15 * time.Second
	// warmUpTime bounds the first commands in a guest that becomes a base.
	warmUpTime = 10 * time.Second
	// baseTime bounds the writing of a base, which a VM's end waits for.
	baseTime = 10 * time.Second
)

// brokenBaseError says that a VM could not be started from its base.
type brokenBaseError struct {
	error
	remove func() // removes the base
}

func (e *brokenBaseError) Unwrap() error { return e.error }

// baseExtra is what a base records beside the machine's memory.
type baseExtra struct {
	// Written are the ranges that VMs write first when they start from it.
	Written []machine.Range `json:"written"`
}

// usesBase reports whether VMs of this configuration continue from a base.
func (c Config) usesBase() bool {
	return !c.ColdBoot && c.Kernel == nil && (c.Disk == "" || !strings.Contains(c.KernelArguments, overlayArgument))
}

// networkShape is what the guest of a saved machine knows of its network; nil: it has none.
type networkShape struct {
	MTU         int      `json:"mtu"`
	Subnet      string   `json:"subnet"`
	DisableIPv6 bool     `json:"disableIPv6,omitempty"`
	Search      []string `json:"search,omitempty"`
}

func (n Network) shape() *networkShape {
	if n.Disabled {
		return nil
	}
	return &networkShape{MTU: n.MTU, Subnet: n.Subnet.Masked().String(), DisableIPv6: n.DisableIPv6, Search: n.Search}
}

// meta describes the machine that is made of r.
func (r *resources) meta(c Config) (snapshot.Meta, error) {
	kernel, supervisor, err := r.linuxDigests(c)
	if err != nil {
		return snapshot.Meta{}, err
	}
	network, err := json.Marshal(c.Network.shape())
	return snapshot.Meta{
		Created: time.Now().UTC(), Machine: c.machineDigest(), Kernel: kernel, Supervisor: supervisor, Memory: c.Memory,
		Image: r.image.Name, RootDisk: bareDigest(r.image.RootDiskDigest), Shares: len(c.Mounts),
		Network: network, KernelArguments: c.KernelArguments,
	}, err
}

// bareDigest cuts the algorithm's name off a digest.
func bareDigest(digest string) string { return strings.TrimPrefix(digest, "sha256:") }

// machineDigest identifies the emulator's build.
func (c Config) machineDigest() string {
	if c.emulator != nil {
		return c.emulator.digest
	}
	return bareDigest(machine.ModuleDigest())
}

// baseName is the key of the base for machines that a meta describes, with a writable disk of so many bytes, or 0.
func baseName(m snapshot.Meta, disk int64) string {
	shape, _ := json.Marshal(struct {
		Format                                int
		Machine, Kernel, Supervisor, RootDisk string
		Memory                                uint64
		Shares                                int
		Network                               json.RawMessage
		KernelArguments                       string
		Disk                                  int64
		Translated                            bool
	}{baseFormat, m.Machine, m.Kernel, m.Supervisor, m.RootDisk, m.Memory, m.Shares, m.Network, m.KernelArguments, disk, machine.TranslatesByDefault()})
	sum := sha256.Sum256(shape)
	return hex.EncodeToString(sum[:16])
}

// openBase finds the base, or has the VM create one. Failures cost only time: the VM boots.
func (r *resources) openBase(ctx context.Context, c Config) {
	began := time.Now()
	meta, err := r.meta(c)
	if err != nil {
		c.Logger.Debug("no base", "error", err)
		return
	}
	r.baseKey = baseName(meta, r.overlay.size())
	r.saved, err = acquireSaved(r.store.Dir()+"\x00"+r.baseKey, false, func() (*snapshot.File, error) {
		s, err := snapshot.OpenStore(r.store.Dir())
		if err != nil {
			return nil, err
		}
		return s.Base(r.baseKey)
	})
	var bad *snapshot.File
	if err == nil {
		if err = r.saved.checkPiece(); err != nil {
			bad = r.saved.file
			r.saved.forget()
			r.saved.close()
			r.saved = nil
		}
	}
	switch {
	case err == nil:
		r.memory = r.saved.image
	case errors.Is(err, fs.ErrNotExist):
		r.createBase = true
	case shortage.Is(err):
		c.Logger.Warn("the saved machine that VMs of this kind start from cannot be read now, so this one boots", "error", err, "advice", shortage.Advice(err))
	default:
		c.Logger.Warn("the saved machine that VMs of this kind start from cannot be used and is removed", "error", err)
		r.removeBase(c, bad)
		r.createBase = true
	}
	if r.createBase && r.overlay != nil {
		r.overlay.absent.Store(true)
	}
	c.Logger.Debug("timing: looked for the base", "took", time.Since(began), "key", r.baseKey, "error", err)
}

// removeBase removes a base that does not work. bad is the file that was opened, so that one written meanwhile stays; it may be nil.
func (r *resources) removeBase(c Config, bad *snapshot.File) {
	if r.saved != nil {
		r.saved.forget()
	}
	ctx, cancel := context.WithTimeout(context.Background(), baseTime)
	defer cancel()
	s, err := snapshot.OpenStore(r.store.Dir())
	var needed []string
	if err == nil {
		needed, err = s.RemoveBase(ctx, r.baseKey, bad)
	}
	if len(needed) > 0 {
		c.Logger.Warn("snapshots are layered on the saved machine that cannot be used: it is kept for them alone, and what is wrong with it is wrong with them",
			"snapshots", strings.Join(needed, ", "))
	}
	if err != nil {
		c.Logger.Debug("remove the base", "key", r.baseKey, "error", err)
	}
}

// makeBase starts the guest with nothing that is this VM's own, has it run a first command, and captures the machine.
// The image is nil when there will be no base, which is no error.
func (v *VM) makeBase(ctx context.Context, client *guestrpc.Client) (image *machine.MemoryImage, err error) {
	began := time.Now()
	info, err := client.Start(ctx, guestrpc.StartParams{Time: time.Now(), Network: v.network.params()})
	if err != nil {
		return nil, err
	}
	image, err = v.captureBase(ctx, client, info)
	v.resources.overlay.present()
	switch {
	case err == nil:
		v.config.Logger.Debug("timing: captured the machine", "took", time.Since(began))
	case ctx.Err() == nil && v.alive() == nil:
		v.config.Logger.Debug("no base is made", "error", err)
		err = nil
	}
	return image, err
}

// saveBase has the base written. Before that the VM, which is now as those that will start from the base, runs a first command to record
// what they will write. With a writable disk it runs none, since the disk may have another shell, the user's.
func (v *VM) saveBase(ctx context.Context, client *guestrpc.Client, image *machine.MemoryImage) error {
	written, err := v.recordFirstWrites(ctx, client)
	if err != nil && (ctx.Err() != nil || v.alive() != nil) {
		return errors.Join(err, image.Close())
	}
	v.config.Logger.Debug("timing: recorded the first writes", "error", err)
	if err = v.goTracked(func() { v.writeBase(image, written) }); err != nil {
		err = errors.Join(err, image.Close())
	}
	return err
}

// recordFirstWrites runs a first command and returns what the machine has written since its capture.
func (v *VM) recordFirstWrites(ctx context.Context, client *guestrpc.Client) (written []machine.Range, err error) {
	limited, cancel := context.WithTimeout(ctx, warmUpTime)
	defer cancel()
	if v.resources.overlay == nil {
		err = firstCommand(limited, client)
	}
	if err != nil {
		return nil, err
	}
	err = v.withMachine(ctx, func(m emulator) (err error) { written, err = m.Written(); return err })
	return written, err
}

// captureBase warms the guest up and captures its machine.
func (v *VM) captureBase(ctx context.Context, client *guestrpc.Client, info guestrpc.GuestInfo) (image *machine.MemoryImage, err error) {
	if info.NetworkWarning != "" {
		return nil, errors.New("the guest's network: " + readable([]byte(info.NetworkWarning), 1))
	}
	if err := warmUp(ctx, client); err != nil {
		return nil, err
	}
	err = v.withMachine(ctx, func(m emulator) (err error) { image, err = m.Capture(); return err })
	return image, err
}

// warmupRuns is how often the first command runs. Only from the second or third run on does the kernel count the command's pages among
// those in use, which would otherwise cost each VM 50,000 instructions.
const warmupRuns = 3

// warmUp runs commands, so that the base has what every first command reads and sets up. An image whose shell does not end gets no base.
func warmUp(ctx context.Context, client *guestrpc.Client) error {
	ctx, cancel := context.WithTimeout(ctx, warmUpTime)
	defer cancel()
	for range warmupRuns {
		if err := firstCommand(ctx, client); err != nil {
			return err
		}
	}
	return nil
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

// writeBase writes the base. It runs in a tracked goroutine, so the VM's end waits for it.
func (v *VM) writeBase(image *machine.MemoryImage, written []machine.Range) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), baseTime)
	defer cancel()
	err := v.writeBaseOf(ctx, image, written)
	v.config.Logger.Debug("timing: wrote the base", "took", time.Since(began), "key", v.resources.baseKey, "error", err)
}

func (v *VM) writeBaseOf(ctx context.Context, image *machine.MemoryImage, written []machine.Range) error {
	defer image.Close()
	meta, err := v.resources.meta(v.config)
	if err != nil {
		return err
	}
	meta.LinearMemory = image.Size()
	if meta.Extra, err = json.Marshal(baseExtra{written}); err != nil {
		return err
	}
	s, err := snapshot.OpenStore(v.resources.store.Dir())
	if err != nil {
		return err
	}
	if err := s.WriteBase(ctx, v.resources.baseKey, snapshot.Content{Meta: meta, Memory: extents(image, nil)}); err != nil {
		return err
	}
	return s.Collect(ctx, nil)
}

// extents converts an image's extents for package snapshot. Those that are in a file of base stay there (InBase).
func extents(image *machine.MemoryImage, base *snapshot.File) []snapshot.Extent {
	inBase := make(map[*os.File]bool)
	if base != nil {
		for _, r := range base.Memory() {
			inBase[r.File] = true
		}
	}
	var list []snapshot.Extent
	for _, e := range image.Extents() {
		list = append(list, snapshot.Extent{
			At: e.At, Length: e.Length, Source: e.File, Offset: e.Offset, InBase: inBase[e.File],
		})
	}
	return list
}

// linuxDigests returns the digests of the kernel and supervisor that the machine boots or has booted.
func (r *resources) linuxDigests(c Config) (kernelDigest, supervisorDigest string, err error) {
	if r.origin != nil {
		return r.origin.Kernel, r.origin.Supervisor, nil
	}
	if c.Kernel != nil {
		sum := sha256.Sum256(c.Kernel)
		kernelDigest = hex.EncodeToString(sum[:])
	} else if kernelDigest, err = kernel.Digest(); err != nil {
		return "", "", err
	}
	supervisorDigest, err = supervisor.Digest()
	return kernelDigest, supervisorDigest, err
}

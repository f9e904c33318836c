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

	"agentvm/emulator"
	"agentvm/rpc"
	"agentvm/snapshot"
)

const (
	// baseFormat changes when a base of an older version would not do.
	baseFormat = 3
	// savedTimeout is how long the guest of a machine that goes on from a base may take to answer: it needs milliseconds.
	savedTimeout = 15 * time.Second
	// warmUpTime bounds the first command of a guest that is to be a base.
	warmUpTime = 10 * time.Second
	// baseTime bounds the writing of a base, and with it how long a VM's end may wait for that.
	baseTime = 10 * time.Second
)

// brokenBaseError says that a VM could not be started from its base.
type brokenBaseError struct {
	error
	remove func() // removes the base
}

func (e *brokenBaseError) Unwrap() error { return e.error }

// baseExtra is what a base says beside its memory.
type baseExtra struct {
	// Written is what VMs that start from it write first.
	Written []emulator.Range `json:"written"`
}

// usesBase says whether VMs of this configuration go on from a base.
func (c Config) usesBase() bool {
	return !c.ColdBoot && c.Kernel == nil && (c.Disk == "" || !strings.Contains(c.KernelArguments, upperArgument))
}

// networkShape is what a saved machine knows of its network; nil: it has none.
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

// meta describes the machine that is made of the parts.
func (p *parts) meta(c Config) (snapshot.Meta, error) {
	kernel, supervisor, err := p.linuxDigests(c)
	if err != nil {
		return snapshot.Meta{}, err
	}
	network, err := json.Marshal(c.Network.shape())
	return snapshot.Meta{
		Created: time.Now().UTC(), Machine: machineDigest(), Kernel: kernel, Supervisor: supervisor, Memory: c.Memory,
		Image: p.image.Name, RootDisk: bareDigest(p.image.RootDiskDigest), Shares: len(c.Mounts),
		Network: network, KernelArguments: c.KernelArguments,
	}, err
}

// bareDigest is a digest without the name of its algorithm.
func bareDigest(digest string) string { return strings.TrimPrefix(digest, "sha256:") }

func machineDigest() string { return bareDigest(emulator.ModuleDigest()) }

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
	}{baseFormat, m.Machine, m.Kernel, m.Supervisor, m.RootDisk, m.Memory, m.Shares, m.Network, m.KernelArguments, disk, emulator.TranslatesByDefault()})
	sum := sha256.Sum256(shape)
	return hex.EncodeToString(sum[:16])
}

// openBase finds the base, or has the VM leave one. What goes wrong costs time only.
func (p *parts) openBase(ctx context.Context, c Config) {
	began := time.Now()
	meta, err := p.meta(c)
	if err != nil {
		c.Logger.Debug("no base", "error", err)
		return
	}
	p.baseKey = baseName(meta, p.upper.size())
	p.saved, err = acquireSaved(p.store.Dir()+"\x00"+p.baseKey, false, func() (*snapshot.File, error) {
		s, err := snapshot.OpenStore(p.store.Dir())
		if err != nil {
			return nil, err
		}
		return s.Base(p.baseKey)
	})
	var bad *snapshot.File
	if err == nil {
		if err = p.saved.checkPiece(); err != nil {
			bad = p.saved.file
			p.saved.forget()
			p.saved.close()
			p.saved = nil
		}
	}
	switch {
	case err == nil:
		p.memory = p.saved.image
	case errors.Is(err, fs.ErrNotExist):
		p.layBase = true
	default:
		c.Logger.Warn("the saved machine that VMs of this kind start from cannot be used and is removed", "error", err)
		p.removeBase(c, bad)
		p.layBase = true
	}
	if p.layBase && p.upper != nil {
		p.upper.absent.Store(true)
	}
	c.Logger.Debug("timing: looked for the base", "took", time.Since(began), "key", p.baseKey, "error", err)
}

// removeBase removes a base that is of no use: the file that was opened, when there was one.
func (p *parts) removeBase(c Config, bad *snapshot.File) {
	if p.saved != nil {
		p.saved.forget()
	}
	ctx, cancel := context.WithTimeout(context.Background(), baseTime)
	defer cancel()
	s, err := snapshot.OpenStore(p.store.Dir())
	var needed []string
	if err == nil {
		needed, err = s.RemoveBase(ctx, p.baseKey, bad)
	}
	if len(needed) > 0 {
		c.Logger.Warn("snapshots are layered on the saved machine that cannot be used: it is kept for them alone, and what is wrong with it is wrong with them",
			"snapshots", strings.Join(needed, ", "))
	}
	if err != nil {
		c.Logger.Debug("remove the base", "key", p.baseKey, "error", err)
	}
}

// makeBase starts the guest with nothing that is this VM's own, lets it run a first command, and has what it is then written.
// The image is nil when there will be no base, which is no error.
func (v *VM) makeBase(ctx context.Context, client *rpc.Client) (image *emulator.Image, err error) {
	began := time.Now()
	info, err := client.Start(ctx, rpc.StartParams{Time: time.Now(), Network: v.network.params()})
	if err != nil {
		return nil, err
	}
	image, err = v.photographBase(ctx, client, info)
	v.parts.upper.present()
	switch {
	case err == nil:
		v.config.Logger.Debug("timing: captured the machine", "took", time.Since(began))
	case ctx.Err() == nil && v.alive() == nil:
		v.config.Logger.Debug("no base is made", "error", err)
		err = nil
	}
	return image, err
}

// keepBase has the base written. The VM, which has become what those that start from it will be, runs a first command as they do: what
// it has written by then, they will. With a writable disk it does not, for then the shell is the user's.
func (v *VM) keepBase(ctx context.Context, client *rpc.Client, image *emulator.Image) error {
	written, err := v.rehearse(ctx, client)
	if err != nil && (ctx.Err() != nil || v.alive() != nil) {
		return errors.Join(err, image.Close())
	}
	v.config.Logger.Debug("timing: rehearsed the first command", "error", err)
	if err = v.own(func() { v.writeBase(image, written) }); err != nil {
		err = errors.Join(err, image.Close())
	}
	return err
}

func (v *VM) rehearse(ctx context.Context, client *rpc.Client) (written []emulator.Range, err error) {
	limited, cancel := context.WithTimeout(ctx, warmUpTime)
	defer cancel()
	if v.parts.upper == nil {
		err = firstCommand(limited, client)
	}
	if err != nil {
		return nil, err
	}
	err = v.atDesk(ctx, func(m *emulator.Machine) (err error) { written, err = m.Written(); return err })
	return written, err
}

func (v *VM) photographBase(ctx context.Context, client *rpc.Client, info rpc.GuestInfo) (*emulator.Image, error) {
	if info.NetworkWarning != "" {
		return nil, errors.New("the guest's network: " + readable([]byte(info.NetworkWarning), 1))
	}
	if err := warmUp(ctx, client); err != nil {
		return nil, err
	}
	return v.capture(ctx)
}

// warmUps is how often the first command runs: the kernel counts the pages that it uses among those in use from the second
// or third time on, which would else cost each VM 50,000 instructions.
const warmUps = 3

// warmUp has the guest read and set up what every first command needs. An image whose shell does not end gets no base.
func warmUp(ctx context.Context, client *rpc.Client) error {
	ctx, cancel := context.WithTimeout(ctx, warmUpTime)
	defer cancel()
	for range warmUps {
		if err := firstCommand(ctx, client); err != nil {
			return err
		}
	}
	return nil
}

func firstCommand(ctx context.Context, client *rpc.Client) error {
	p, err := client.Exec(ctx, rpc.ExecParams{Args: []string{"/bin/sh", "-c", "true"}, Dir: defaultDir})
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

// capture has the worker make an image of the machine.
func (v *VM) capture(ctx context.Context) (image *emulator.Image, err error) {
	err = v.atDesk(ctx, func(m *emulator.Machine) (err error) { image, err = m.Capture(); return err })
	return image, err
}

// writeBase writes the base. It is a goroutine of the VM's, whose end waits for it.
func (v *VM) writeBase(image *emulator.Image, written []emulator.Range) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), baseTime)
	defer cancel()
	err := v.writeBaseOf(ctx, image, written)
	v.config.Logger.Debug("timing: wrote the base", "took", time.Since(began), "key", v.parts.baseKey, "error", err)
}

func (v *VM) writeBaseOf(ctx context.Context, image *emulator.Image, written []emulator.Range) error {
	defer image.Close()
	meta, err := v.parts.meta(v.config)
	if err != nil {
		return err
	}
	meta.LinearMemory = image.Size()
	if meta.Extra, err = json.Marshal(baseExtra{written}); err != nil {
		return err
	}
	s, err := snapshot.OpenStore(v.parts.store.Dir())
	if err != nil {
		return err
	}
	if err := s.WriteBase(ctx, v.parts.baseKey, snapshot.Content{Meta: meta, Memory: extents(image, nil)}); err != nil {
		return err
	}
	return s.Collect(ctx, nil)
}

// extents are those of an image in the words of package snapshot. What is as in the file that base has open is left to that.
func extents(image *emulator.Image, base *snapshot.File) []snapshot.Extent {
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

package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/share/guestfs"
	"agentvm/nat"
	"agentvm/vm"
)

// machine makes a VM of a *vm.VM.
type machine struct {
	*vm.VM
	config Config
	files  *machineFiles

	unheard atomic.Int64 // denials whose events are not waited for any more
}

var _ VM = (*machine)(nil)

// Stop stops the VM.
func (m *machine) Stop(ctx context.Context) error {
	return errors.Join(m.VM.Stop(ctx), m.files.Close())
}

// Close switches the VM off.
func (m *machine) Close() error { return errors.Join(m.VM.Close(), m.files.Close()) }

// Describe sets what is known after the boot.
func (m *machine) Describe(i *daemonrpc.Info) {
	image := m.Image()
	i.Kernel, i.Image, i.Platform = m.KernelRelease(), image.Name, image.Architecture.Platform()
	policy, _ := m.Policy(context.Background()) // neither asks the guest, nor fails
	forwards, _ := m.Ports(context.Background())
	i.Policy = policy.String()
	if m.config.Network.Disabled {
		i.Policy = "no network"
	}
	i.Mounts = i.Mounts[:0]
	mounts, _ := m.Mounts(context.Background()) // with an error too
	for _, one := range mounts {
		i.Mounts = append(i.Mounts, one.Mount.String())
	}
	i.Ports = i.Ports[:0]
	for _, f := range forwards {
		i.Ports = append(i.Ports, describePort(f))
	}
}

// describePort is an open port as daemonrpc.Info.Ports has it.
func describePort(f nat.Forward) string {
	return fmt.Sprintf("%s -> %s/%s", f.Listen, f.Target(), f.Protocol)
}

const (
	settleTime  = 2 * time.Second // most come within 200 ms
	settlePause = 2 * time.Millisecond
)

// SettleDenials waits for events of denials: a command may end before it is known which process's connection was denied. Events that do
// not come in time are not waited for again.
func (m *machine) SettleDenials(ctx context.Context) {
	if m.files.audit == nil {
		return
	}
	for deadline := time.Now().Add(settleTime); ; {
		stats, _ := m.NetworkStats(ctx) // never fails
		s := stats.Egress
		missing := int64(s.Denied+s.Refused) - int64(s.EventsLost) - m.files.audit.denials.Load()
		if missing <= m.unheard.Load() || ctx.Err() != nil {
			return
		}
		if time.Now().After(deadline) {
			m.unheard.Store(missing)
			return
		}
		time.Sleep(settlePause)
	}
}

// Files is the guest's bulk connection.
func (m *machine) Files(ctx context.Context) (*guestrpc.FilesClient, error) {
	return guestfs.Client(ctx, m.VM.Files())
}

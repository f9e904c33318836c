package vm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/machine"
	"agentvm/internal/share/mount"
	"agentvm/wasi"
)

// Mount is a host directory that the guest sees, for Config.Mounts.
type Mount = mount.Spec

// ParseMount reads a mount as the flag --mount has it, HOST[:GUEST][:ro|:cow]. A relative HOST becomes absolute.
func ParseMount(text string) (Mount, error) { return mount.Parse(text) }

// share is one mounted host directory: its server and the stream to the machine.
type share struct {
	spec   mount.Spec
	tag    string
	server *mount.Server
	stream *wasi.Stream
}

type shares []*share

// shareSize is the capacity in bytes of a share's stream: about one of the largest messages.
const shareSize = 1 << 20

// openShares makes servers for open host directories. On failure all are closed.
func openShares(set *hostSet, guard *mount.Guard, of Config) (shares, error) {
	var list shares
	for i, m := range set.mounts {
		c := m.serverConfig()
		c.Guard, c.Memory, c.Logger = guard, of.memory, of.Logger
		of.mountShare.give(&c)
		server, err := mount.NewServer(c)
		if err != nil {
			return nil, errors.Join(err, list.close())
		}
		list = append(list, &share{
			spec: m.spec, tag: mountTag(i), server: server, stream: wasi.NewStream(shareSize),
		})
	}
	return list, nil
}

func (m *hostMount) serverConfig() mount.Config {
	return mount.Config{
		Dir: m.spec.HostPath, Place: m.place, ReadOnly: m.spec.FixedHost(), Bases: m.spec.CopyOnWrite, Masks: m.masks, Covered: m.covered,
		Protected: slices.Concat(mount.DefaultProtected, m.spec.Protected), Unprotected: m.spec.Unprotected,
	}
}

// specs returns the mounts' specifications, with the identities of the directories.
func (list shares) specs() (specs []mount.Spec) {
	for _, s := range list {
		specs = append(specs, s.spec)
	}
	return specs
}

// devices returns the machine's ends of the streams.
func (list shares) devices() (devices []machine.Share) {
	for _, s := range list {
		devices = append(devices, machine.Share{Tag: s.tag, File: s.stream})
	}
	return devices
}

// mounts returns what the guest has to mount.
func (list shares) mounts() (mounts []guestrpc.Mount) {
	for _, s := range list {
		mounts = append(mounts, guestMount(s.tag, s.spec))
	}
	return mounts
}

func guestMount(tag string, m Mount) guestrpc.Mount {
	return guestrpc.Mount{Tag: tag, Target: m.GuestPath, ReadOnly: m.FixedHost(), CopyOnWrite: m.CopyOnWrite}
}

// mountTag is the tag of a machine's i-th virtio-fs device.
func mountTag(i int) string { return fmt.Sprintf("mount%d", i) }

// serve starts a goroutine for each share, which ends when the machine has closed its end. The server logs failures.
func (list shares) serve(ctx context.Context, streams *sync.WaitGroup) {
	for _, s := range list {
		streams.Go(func() { _ = s.server.Serve(ctx, s.stream.Host()) })
	}
}

func (list shares) close() error {
	var errs []error
	for _, s := range list {
		errs = append(errs, s.server.Close())
	}
	return errors.Join(errs...)
}

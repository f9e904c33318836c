package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"path"
	"slices"
	"sync"
	"syscall"
	"time"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/host/hostpath"
	"agentvm/internal/machine"
	"agentvm/internal/share/mount"
	"agentvm/wasi"
)

// A machine has some virtio-fs devices more than mounts when it boots, into which mounts are put while it runs: adding one needs no new device,
// of which a guest would have to learn. A device without a mount answers EIO.
const (
	// minMountDevices is how many devices a machine has at least. VMs with different numbers of mounts can then start from one base.
	minMountDevices = 8
	// minSpareMounts is how many mounts can be added at least, up to machine.MaxShares in all.
	minSpareMounts = 4

	// mountTime bounds how long a guest may take to mount or unmount.
	mountTime = 10 * time.Second
	// destroyTime is how long a guest's word that a mount has ended may take to come, after it has unmounted.
	destroyTime = time.Second
)

// mountDevices returns how many virtio-fs devices a machine with so many mounts boots with.
func mountDevices(mounts int) int {
	return min(max(minMountDevices, mounts+minSpareMounts), machine.MaxShares)
}

// MountInfo describes a mount of a VM that runs.
type MountInfo struct {
	// Mount has the identity of its directory.
	Mount Mount
	// Added says that it was added while the VM ran.
	Added bool
	// Instructions are the files in it with instructions for agents that the guest has written. Those of an added mount are not known.
	Instructions []WrittenFile
	// Err is why an added mount does not work any more: its programs get EIO. nil: it works.
	Err error
}

// WrittenFile is a file of the host that the guest has written.
type WrittenFile = mount.WrittenFile

// spareMount is a device that has no mount of Config.Mounts.
type spareMount struct {
	tag    string
	stream *wasi.Stream
	relay  *mount.Relay

	// addedMounts.mu guards these.
	spec   Mount
	server *mount.Attachment // nil: it has no mount
	busy   bool              // its mount is being added or removed
}

// addedMounts are the mounts that are added to a VM that runs.
type addedMounts struct {
	mu     sync.Mutex
	spares []*spareMount
}

func (r *resources) newAddedMounts(c Config) *addedMounts {
	a := &addedMounts{}
	for i := len(c.Mounts); i < r.mountDevices(c); i++ {
		stream := wasi.NewStream(shareSize)
		s := &spareMount{tag: mountTag(i), stream: stream, relay: mount.NewRelay(stream.Host(), c.memory)}
		if slices.Contains(r.usedDevices, s.tag) {
			s.relay.ContinueMounted()
		}
		a.spares = append(a.spares, s)
	}
	return a
}

// mountDevices returns how many devices the machine has. One that continues from a snapshot has those that it had.
func (r *resources) mountDevices(c Config) int {
	if r.origin != nil {
		return r.origin.Shares + r.origin.SpareShares
	}
	return mountDevices(len(c.Mounts))
}

// used returns the tags of devices that the guest uses, or may soon.
func (a *addedMounts) used() (tags []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.spares {
		if mounted, _ := s.relay.Mounted(); mounted || s.busy {
			tags = append(tags, s.tag)
		}
	}
	return tags
}

func (a *addedMounts) devices() (devices []machine.Share) {
	for _, s := range a.spares {
		devices = append(devices, machine.Share{Tag: s.tag, File: s.stream})
	}
	return devices
}

// serve starts a goroutine for each device, which ends with close or with the machine.
func (a *addedMounts) serve(streams *sync.WaitGroup) {
	for _, s := range a.spares {
		streams.Go(func() { _ = s.relay.Serve() })
	}
}

// close ends the devices, and their servers even when they hang.
func (a *addedMounts) close() {
	for _, s := range a.spares {
		s.relay.Close()
	}
}

// list returns the mounts that were added.
func (a *addedMounts) list() (list []MountInfo) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.spares {
		if s.server != nil {
			list = append(list, MountInfo{Mount: s.spec, Added: true, Err: s.server.Err()})
		}
	}
	return list
}

// take takes a device for a mount that is to be added.
func (a *addedMounts) take(spec Mount, given []Mount) (*spareMount, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	same := func(m Mount) bool { return m.GuestPath == spec.GuestPath }
	if slices.ContainsFunc(given, same) || slices.ContainsFunc(a.spares, func(s *spareMount) bool { return (s.server != nil || s.busy) && same(s.spec) }) {
		return nil, &mountError{"something of the host is mounted there already: remove it first, or name another path", syscall.EBUSY}
	}
	lingering := 0
	for _, s := range a.spares {
		if s.server != nil || s.busy {
			continue
		}
		if mounted, _ := s.relay.Mounted(); mounted {
			lingering++
			continue
		}
		s.spec, s.busy = spec, true
		return s, nil
	}
	if len(a.spares) == 0 {
		return nil, errors.New("the VM has no room for another mount: it continues from a snapshot of an earlier version, or was started with as many mounts as can be")
	}
	used := ""
	if lingering > 0 {
		used = fmt.Sprintf(" (%d were removed, and programs in the VM still use them)", lingering)
	}
	return nil, fmt.Errorf("at most %d mounts can be added to this VM, and there are as many%s: remove one first", len(a.spares), used)
}

// settle ends busy. Without a server the device has no mount.
func (a *addedMounts) settle(s *spareMount, server *mount.Attachment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s.server, s.busy = server, false
}

// AddMount mounts a host directory in the VM while it runs, as Config.Mounts does at its start, until RemoveMount or the VM's end. Forks and
// snapshots do not have it. A mount at a path where something is mounted already, and one more than the VM has room for, are refused.
func (v *VM) AddMount(ctx context.Context, m Mount) error {
	server, err := openMountServer(ctx, v.configNow(), m)
	if err != nil {
		return err
	}
	device, conn := net.Pipe()
	err = v.goTracked(func() {
		_ = server.Serve(context.Background(), conn) // the relay closes it
		_ = server.Close()
	})
	if err != nil {
		return errors.Join(err, device.Close(), server.Close())
	}
	return v.AttachMount(ctx, server.Mount(), device)
}

// AttachMount is AddMount with a server elsewhere: MountServer.Serve at the other end of conn, which belongs to the VM from now on.
func (v *VM) AttachMount(ctx context.Context, m Mount, conn io.ReadWriteCloser) error {
	err := v.attachMount(ctx, m, conn)
	if err != nil {
		_ = conn.Close()
		return fmt.Errorf("mount %s at %s: %w", m.HostPath, m.GuestPath, v.explain(err))
	}
	return nil
}

func (v *VM) attachMount(ctx context.Context, m Mount, conn io.ReadWriteCloser) error {
	client, err := v.guest(ctx)
	if err != nil {
		return err
	}
	s, err := v.added.take(m, v.config.Mounts)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, mountTime, fmt.Errorf("the guest has not mounted it within %v", mountTime))
	defer cancel()
	server, err := s.relay.Attach(conn)
	if err != nil {
		v.added.settle(s, nil)
		return err
	}
	if err = withCause(ctx, client.MountShare(ctx, guestMount(s.tag, m), time.Now())); err == nil {
		v.added.settle(s, server)
		return nil
	}
	server.Detach()
	if !errors.As(err, new(*capnprpc.Error)) { // the guest may have mounted it nevertheless
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), destroyTime)
		defer cancel()
		_ = client.UnmountShare(last, m.GuestPath, true)
	}
	v.added.settle(s, nil)
	return err
}

// RemoveMount unmounts a directory that AddMount has mounted. While programs in the VM use it the error is EBUSY (package syscall), and it stays;
// with force they get EIO from then on, and what they have not written back is lost.
func (v *VM) RemoveMount(ctx context.Context, guestPath string, force bool) error {
	err := v.removeMount(ctx, path.Clean(guestPath), force)
	if err != nil {
		return fmt.Errorf("remove the mount at %s: %w", guestPath, v.explain(err))
	}
	return nil
}

func (v *VM) removeMount(ctx context.Context, guestPath string, force bool) error {
	if slices.ContainsFunc(v.config.Mounts, func(m Mount) bool { return m.GuestPath == guestPath }) {
		return &mountError{"the VM was started with it: it stays until the VM is stopped", errors.ErrUnsupported}
	}
	client, err := v.guest(ctx)
	if err != nil {
		return err
	}
	s, server, err := v.added.takeBack(guestPath)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeoutCause(ctx, mountTime, fmt.Errorf("the guest has not unmounted it within %v", mountTime))
	err = withCause(limited, client.UnmountShare(limited, guestPath, false))
	cancel()
	if errors.Is(err, fs.ErrNotExist) { // the guest was slow the last time, and has done it since
		err = nil
	}
	if err != nil && force {
		server.Detach() // whatever the guest says, it can reach the directory no more
		limited, cancel := context.WithTimeout(ctx, mountTime)
		err = client.UnmountShare(limited, guestPath, true)
		cancel()
		v.added.settle(s, nil)
		if err != nil {
			err = fmt.Errorf("the guest cannot reach the directory any more, but has not unmounted it: %w", err)
		}
		return err
	}
	if err != nil {
		v.added.settle(s, server)
		return err
	}
	s.awaitDestroyed(ctx)
	server.Detach()
	v.added.settle(s, nil)
	return nil
}

// awaitDestroyed waits a moment for the guest's word that it does not use the device any more, so that another mount can have it.
func (s *spareMount) awaitDestroyed(ctx context.Context) {
	limit := time.NewTimer(destroyTime)
	defer limit.Stop()
	for {
		mounted, changed := s.relay.Mounted()
		if !mounted {
			return
		}
		select {
		case <-changed:
		case <-limit.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// takeBack takes the device of a mount that is to be removed.
func (a *addedMounts) takeBack(guestPath string) (*spareMount, *mount.Attachment, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.IndexFunc(a.spares, func(s *spareMount) bool { return s.spec.GuestPath == guestPath && (s.server != nil || s.busy) })
	if i < 0 {
		return nil, nil, &mountError{"nothing of the host is mounted there", fs.ErrNotExist}
	}
	s := a.spares[i]
	if s.busy {
		return nil, nil, &mountError{"it is being added or removed just now", syscall.EBUSY}
	}
	s.busy = true
	return s, s.server, nil
}

// Mounts lists the mounts of the VM, those of its start first.
func (v *VM) Mounts(context.Context) ([]MountInfo, error) { return v.mounts(), v.alive() }

func (v *VM) mounts() (list []MountInfo) {
	for _, m := range v.config.Mounts {
		list = append(list, MountInfo{Mount: m, Instructions: v.resources.guard.Instructions(m.HostPath)})
	}
	return append(list, v.added.list()...)
}

// configNow is the VM's configuration with the mounts that it has now.
func (v *VM) configNow() Config {
	c := v.config
	c.Mounts, c.StoreDir = nil, v.resources.store.Dir()
	for _, m := range v.mounts() {
		c.Mounts = append(c.Mounts, m.Mount)
	}
	return c
}

// mountError says in its own words what the error beneath it is.
type mountError struct {
	what string
	is   error
}

func (e *mountError) Error() string { return e.what }
func (e *mountError) Unwrap() error { return e.is }

// MountServer serves a directory to a VM that another process owns, for VM.AttachMount. It must be closed.
type MountServer struct {
	server *mount.Server
	spec   Mount
	real   string
	logger *slog.Logger
}

// OpenMountServer opens the directory of a mount that is to be added to a VM of this configuration, and compares it with the VM's other mounts
// and sockets as its start does: what a guest must not change through it is refused, or hidden.
func OpenMountServer(ctx context.Context, c Config, m Mount) (*MountServer, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	return openMountServer(ctx, c, m)
}

// openMountServer is OpenMountServer for a configuration that has its defaults.
func openMountServer(ctx context.Context, c Config, m Mount) (*MountServer, error) {
	store, err := c.storeDir()
	if err != nil {
		return nil, err
	}
	others := slices.DeleteFunc(slices.Clone(c.Mounts), func(other Mount) bool { return !isThere(other) })
	c.Mounts = append(others, m)
	set, err := openHostSet(c, store)
	if err != nil {
		return nil, err
	}
	defer set.close()
	added := set.mounts[len(set.mounts)-1]
	if !added.spec.FixedHost() {
		if err := set.guard.Remember(ctx, store, []*hostpath.Place{added.place}); err != nil {
			return nil, err
		}
	}
	config := added.serverConfig()
	config.Memory, config.Logger = c.memory, c.Logger
	c.mountShare.give(&config)
	server, err := mount.NewServer(config)
	if err != nil {
		return nil, err
	}
	return &MountServer{server, added.spec, added.place.Real, c.Logger}, nil
}

// isThere reports whether a mount's directory is where it was: otherwise nothing can lead to it, which other mounts would have to protect.
func isThere(m Mount) bool {
	place, err := mount.OpenDir(m.HostPath, m.Identity)
	return err == nil && place.Close() == nil
}

// Mount returns the mount, with the identity of its directory.
func (s *MountServer) Mount() Mount { return s.spec }

// Dir returns the directory's path without links.
func (s *MountServer) Dir() string { return s.real }

// Logger is the configuration's.
func (s *MountServer) Logger() *slog.Logger { return s.logger }

// Serve answers the requests of one connection until it ends, and then closes it.
func (s *MountServer) Serve(ctx context.Context, conn io.ReadWriteCloser) error {
	return s.server.Serve(ctx, conn)
}

// Close frees the server.
func (s *MountServer) Close() error { return s.server.Close() }

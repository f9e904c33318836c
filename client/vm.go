package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"agentvm/egress"
	"agentvm/internal/daemon"
	"agentvm/internal/daemon/confine"
	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/share/guestfs"
	"agentvm/nat"
	"agentvm/vm"
)

// AnyVM is what can be done with a VM, whether it runs in this process or a daemon owns it: *vm.VM and *VM. The methods are documented at
// vm.VM. Making forks and ending the use of a VM are not part of it: forks have names when daemons own them, and Close switches a *vm.VM off
// but only leaves a *VM.
type AnyVM interface {
	// Run runs a command to its end, Start starts one.
	Run(ctx context.Context, c vm.Command) (*vm.Result, error)
	Start(ctx context.Context, c vm.Command) (vm.Process, error)
	// Adopt continues with a command of before the VM was saved.
	Adopt(ctx context.Context, received uint64, c vm.Command) (vm.Process, error)

	// Jobs are commands whose output is kept.
	StartJob(ctx context.Context, c vm.Command, o vm.JobOptions) (vm.Job, error)
	Jobs(ctx context.Context) ([]vm.JobInfo, error)
	Job(ctx context.Context, id string) (vm.Job, error)

	// Files has the guest's files, and Changes what the guest has changed in copy-on-write mounts.
	Files() *vm.Files
	Changes() *vm.Changes

	// DialContext, HTTPClient and Fetch reach servers in the VM.
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
	HTTPClient() *http.Client
	Fetch(r *http.Request) (*http.Response, error)
	Sockets(ctx context.Context) ([]vm.Socket, error)

	// The network and its policy.
	Policy(ctx context.Context) (egress.Policy, error)
	SetPolicy(ctx context.Context, p egress.Policy) (cut int, err error)
	ReplacePolicy(ctx context.Context, version string, p egress.Policy) (cut int, err error)
	Explain(ctx context.Context, host string, port uint16, protocol string, addresses ...netip.Addr) (egress.Decision, error)
	Flows(ctx context.Context) ([]vm.Flow, error)
	Denials(ctx context.Context) ([]egress.Event, error)
	NetworkStats(ctx context.Context) (vm.NetworkStats, error)
	Forwards(ctx context.Context) ([]net.Addr, error)
	Forward(ctx context.Context, f nat.Forward) (net.Addr, error)
	Ports(ctx context.Context) ([]nat.Forward, error)
	CloseForward(ctx context.Context, at net.Addr) error

	// Directories of the host.
	Mounts(ctx context.Context) ([]vm.MountInfo, error)
	AddMount(ctx context.Context, m vm.Mount) error
	RemoveMount(ctx context.Context, guestPath string, force bool) error

	Stats(ctx context.Context) (vm.Stats, error)
	Console(ctx context.Context) ([]byte, error)

	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	Snapshot(ctx context.Context, path string, o vm.SnapshotOptions) (vm.SnapshotInfo, error)
	Stop(ctx context.Context) error
}

var (
	_ AnyVM = (*vm.VM)(nil)
	_ AnyVM = (*VM)(nil)
)

// VM is a connection to a VM that a daemon owns. Its methods are those of vm.VM. Close it; the VM runs on until Stop.
type VM struct {
	store   *Store
	daemon  *daemon.Client
	ctx     context.Context // ends with Close
	end     context.CancelFunc
	stopped atomic.Bool // Stop was called

	fetching func() *http.Client

	mu    sync.Mutex
	files *guestrpc.FilesClient // nil until it is needed
}

// attach makes a VM of a connection, which belongs to it from now on.
func (s *Store) attach(c *daemon.Client) *VM {
	v := &VM{store: s, daemon: c}
	v.ctx, v.end = context.WithCancel(context.Background())
	v.fetching = sync.OnceValue(c.HTTPClient)
	return v
}

// Name is the VM's.
func (v *VM) Name() string { return v.daemon.Name() }

// Close ends the connection, and with it the commands that Run and Start have started. The VM runs on.
func (v *VM) Close() error {
	v.end()
	v.fetching().CloseIdleConnections()
	v.mu.Lock()
	files := v.files
	v.files = nil
	v.mu.Unlock()
	if files != nil {
		_ = files.Close()
	}
	return v.daemon.Close()
}

// sentinels are errors of a VM that a daemon can only send as text.
var sentinels = []error{vm.ErrStopped, vm.ErrNoNetwork, egress.ErrPolicyChanged}

// explain gives the error of a call the identity that it has in the daemon's process.
func (v *VM) explain(err error) error {
	if err == nil {
		return nil
	}
	if (errors.Is(err, daemonrpc.ErrClosed) || errors.Is(err, capnprpc.ErrClosed)) && v.stopped.Load() {
		return &identified{vm.ErrStopped, err}
	}
	var answer *capnprpc.Error
	if errors.As(err, &answer) {
		for _, sentinel := range sentinels {
			if strings.Contains(answer.Message, sentinel.Error()) {
				return &identified{sentinel, err}
			}
		}
	}
	return err
}

// identified is an error that errors.Is also finds to be another.
type identified struct{ is, err error }

func (e *identified) Error() string   { return e.err.Error() }
func (e *identified) Unwrap() []error { return []error{e.is, e.err} }

// Files has the guest's files, over a second connection that delays no command.
func (v *VM) Files() *vm.Files {
	return guestfs.NewLazy(func(ctx context.Context) (*guestrpc.FilesClient, error) {
		v.mu.Lock()
		files := v.files
		v.mu.Unlock()
		if files != nil {
			return files, nil
		}
		made, err := v.daemon.Files(ctx)
		if err != nil {
			return nil, v.explain(err)
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.files != nil || v.ctx.Err() != nil { // another call, or Close, was faster
			_ = made.Close()
			if v.files == nil {
				return nil, daemonrpc.ErrClosed
			}
			return v.files, nil
		}
		v.files = made
		return made, nil
	}, v.explain)
}

// Changes is vm.VM.Changes. This process, not the daemon, reads and changes the host's files.
func (v *VM) Changes() *vm.Changes {
	return vm.ChangesOf(v.Files(), func(ctx context.Context) (vm.Config, error) {
		info, err := v.daemon.Info(ctx)
		var c Config
		if err == nil {
			err = json.Unmarshal(info.Config, &c)
		}
		if err != nil {
			return vm.Config{}, v.explain(err)
		}
		added, err := v.Mounts(ctx)
		if err != nil {
			return vm.Config{}, err
		}
		mounts := c.VMMounts()
		for _, m := range added {
			if m.Added {
				mounts = append(mounts, m.Mount)
			}
		}
		return vm.Config{StoreDir: c.StoreDir, Mounts: mounts}, nil
	})
}

// Mounts is vm.VM.Mounts.
func (v *VM) Mounts(ctx context.Context) (list []vm.MountInfo, err error) {
	infos, err := v.daemon.Mounts(ctx)
	for _, i := range infos {
		m := vm.MountInfo{Mount: i.Mount, Added: i.Added, Instructions: i.Instructions}
		m.Mount.Identity = i.Identity
		if i.Error != "" {
			m.Err = errors.New(i.Error)
		}
		list = append(list, m)
	}
	return list, v.explain(err)
}

// AddMount is vm.VM.AddMount. The directory has a server of its own, a process that this one starts and that ends with the mount: the daemon,
// which is confined, cannot open it. Later starts of the VM do not have the mount, and while there is one the VM is not hibernated.
func (v *VM) AddMount(ctx context.Context, m vm.Mount) error {
	return v.explain(v.daemon.AddMount(ctx, m))
}

// RemoveMount is vm.VM.RemoveMount.
func (v *VM) RemoveMount(ctx context.Context, guestPath string, force bool) error {
	return v.explain(v.daemon.RemoveMount(ctx, guestPath, force))
}

// DialContext is vm.VM.DialContext.
func (v *VM) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := splitLocal(network, address)
	var bulk *daemonrpc.Client
	if err == nil {
		bulk, err = v.daemon.Bulk(ctx)
	}
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: fmt.Errorf("%s: %w", address, v.explain(err))}
	}
	conn, err := bulk.DialLocal(ctx, host, port, daemonrpc.ForDial)
	if err != nil {
		return nil, v.explain(err)
	}
	return conn, nil
}

// splitLocal splits an address of the VM's loopback interface. The daemon checks that it is one.
func splitLocal(network, address string) (host string, port uint16, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, fmt.Errorf("%w: %w", syscall.EINVAL, err)
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("%w: port %q: want a number up to 65535", syscall.EINVAL, text)
	}
	localhost, known := map[string]string{"tcp": "localhost", "tcp4": "127.0.0.1", "tcp6": "::1"}[network]
	if !known {
		return "", 0, fmt.Errorf("%w: network %q: want tcp, tcp4 or tcp6", syscall.EINVAL, network)
	}
	if host == "localhost" {
		return localhost, uint16(n), nil
	}
	if a, err := netip.ParseAddr(host); err != nil || network == "tcp4" && !a.Is4() || network == "tcp6" && !a.Is6() {
		return "", 0, fmt.Errorf("%w: %q is not the VM's own loopback address for %s", syscall.EADDRNOTAVAIL, host, network)
	}
	return host, uint16(n), nil
}

// HTTPClient is vm.VM.HTTPClient.
func (v *VM) HTTPClient() *http.Client { return v.fetching() }

// Fetch is vm.VM.Fetch.
func (v *VM) Fetch(r *http.Request) (*http.Response, error) { return v.HTTPClient().Do(r) }

// Sockets is vm.VM.Sockets.
func (v *VM) Sockets(ctx context.Context) ([]vm.Socket, error) {
	list, err := v.daemon.Sockets(ctx)
	return list, v.explain(err)
}

// Listens says whether a socket accepts what peers send by themselves: a TCP listener, or a UDP socket with a port that is not connected.
func Listens(s vm.Socket) bool {
	if s.Network == "tcp" {
		return s.State == guestrpc.SocketListen
	}
	return s.Remote.Port() == 0 && s.Local.Port() != 0
}

// Policy is vm.VM.Policy.
func (v *VM) Policy(ctx context.Context) (egress.Policy, error) {
	p, err := v.daemon.Policy(ctx)
	return p, v.explain(err)
}

// SetPolicy is vm.VM.SetPolicy. The VM's later starts have the new policy, too.
func (v *VM) SetPolicy(ctx context.Context, p egress.Policy) (cut int, err error) {
	cut, err = v.daemon.SetPolicy(ctx, p, "")
	return cut, v.explain(err)
}

// ReplacePolicy is vm.VM.ReplacePolicy. The VM's later starts have the new policy, too.
func (v *VM) ReplacePolicy(ctx context.Context, version string, p egress.Policy) (cut int, err error) {
	cut, err = v.daemon.SetPolicy(ctx, p, version)
	return cut, v.explain(err)
}

// Explain is vm.VM.Explain.
func (v *VM) Explain(ctx context.Context, host string, port uint16, protocol string, addresses ...netip.Addr) (egress.Decision, error) {
	d, err := v.daemon.Explain(ctx, host, port, protocol, addresses...)
	return d, v.explain(err)
}

// Flows is vm.VM.Flows.
func (v *VM) Flows(ctx context.Context) ([]vm.Flow, error) {
	list, err := v.daemon.Flows(ctx)
	return list, v.explain(err)
}

// Denials is vm.VM.Denials. It waits a moment for denials that are not complete yet.
func (v *VM) Denials(ctx context.Context) ([]egress.Event, error) {
	list, err := v.daemon.Denials(ctx)
	return list, v.explain(err)
}

// NetworkStats is vm.VM.NetworkStats.
func (v *VM) NetworkStats(ctx context.Context) (vm.NetworkStats, error) {
	s, err := v.daemon.NetworkStats(ctx)
	return s, v.explain(err)
}

// Forwards is vm.VM.Forwards.
func (v *VM) Forwards(ctx context.Context) (list []net.Addr, err error) {
	ports, err := v.Ports(ctx)
	for _, f := range ports {
		at, _ := listenAddr(f.Listen.String(), f.Protocol == "udp") // Ports has read it
		list = append(list, at)
	}
	return list, err
}

// Ports is vm.VM.Ports.
func (v *VM) Ports(ctx context.Context) (list []nat.Forward, err error) {
	info, err := v.daemon.Info(ctx)
	if err != nil {
		return nil, v.explain(err)
	}
	for _, text := range info.Ports { // 127.0.0.1:8080 -> 80/tcp
		f, err := nat.ParseForward(strings.Replace(text, " -> ", ":", 1))
		if err != nil {
			return nil, fmt.Errorf("port %q of %s: %w", text, v.Name(), err)
		}
		list = append(list, f)
	}
	return list, nil
}

// CloseForward is vm.VM.CloseForward. The VM's later starts do not open the port either.
func (v *VM) CloseForward(ctx context.Context, at net.Addr) error {
	return v.explain(v.daemon.Change(ctx, daemonrpc.Change{CloseForward: at.String() + "/" + at.Network()}))
}

// Timeouts are those of a VM, as Config has them, for Extend. nil leaves one as it is, 0 takes it away.
type Timeouts struct{ Idle, Hibernate, Lifetime *time.Duration }

// Extend replaces the time-outs of a VM that runs, and of its later starts.
func (v *VM) Extend(ctx context.Context, t Timeouts) error {
	return v.explain(v.daemon.Change(ctx, daemonrpc.Change{IdleTimeout: t.Idle, HibernateAfter: t.Hibernate, MaxLifetime: t.Lifetime}))
}

func listenAddr(text string, udp bool) (net.Addr, error) {
	at, err := netip.ParseAddrPort(text)
	if udp {
		return net.UDPAddrFromAddrPort(at), err
	}
	return net.TCPAddrFromAddrPort(at), err
}

// Forward is vm.VM.Forward, except that ctx bounds the call only: the port is open until CloseForward, also after later starts.
func (v *VM) Forward(ctx context.Context, f nat.Forward) (net.Addr, error) {
	text, err := v.daemon.Forward(ctx, f.String())
	if err != nil {
		return nil, v.explain(err)
	}
	return listenAddr(text, f.Protocol == "udp")
}

// Forwards lead ports of the host to servers in a VM for as long as this process wants it.
type Forwards = daemon.Forwards

// ListenForwards listens for all of the list, or for none; Forwards.Serve then leads connections to 127.0.0.1 or ::1 of the VM, and UDP to
// its address. onError is called, from several goroutines, with the reason why a connection could not be made; nil discards.
func (v *VM) ListenForwards(ctx context.Context, list []nat.Forward, onError func(error)) (*Forwards, error) {
	f, err := v.daemon.ListenForwards(ctx, list, onError)
	return f, v.explain(err)
}

// State is the VM's state.
func (v *VM) State(ctx context.Context) (State, error) {
	s, err := v.daemon.State(ctx)
	return s, v.explain(err)
}

// Config returns what the VM runs with, with the policy that holds now.
func (v *VM) Config(ctx context.Context) (c Config, err error) {
	info, err := v.daemon.Info(ctx)
	if err == nil {
		err = json.Unmarshal(info.Config, &c)
	}
	if err == nil && !c.Network.Disabled {
		c.Network.Policy, err = v.daemon.Policy(ctx)
	}
	return c, v.explain(err)
}

// DiskWaits says since when the guest waits for room on the host's disk, and for which file. The time is zero when it does not wait.
func (v *VM) DiskWaits(ctx context.Context) (since time.Time, path string, err error) {
	since, path, err = v.daemon.DiskWaits(ctx)
	return since, path, v.explain(err)
}

// Confinement says what confines the daemon's process.
func (v *VM) Confinement(ctx context.Context) ([]confine.Layer, error) {
	list, err := v.daemon.Confinement(ctx)
	return list, v.explain(err)
}

// Preview has the daemon serve links to servers in the VM, unless it does already, and returns the identity that links lead to.
func (v *VM) Preview(ctx context.Context) (Identity, error) {
	place, err := v.daemon.Preview(ctx)
	return Identity{ID: place.ID, PreviewPort: place.PreviewPort}, v.explain(err)
}

// Stats is vm.VM.Stats. A paused VM is an error for which errors.Is(err, syscall.EAGAIN) holds.
func (v *VM) Stats(ctx context.Context) (vm.Stats, error) {
	s, err := v.daemon.Stats(ctx)
	return s, v.explain(err)
}

// Console is vm.VM.Console.
func (v *VM) Console(ctx context.Context) ([]byte, error) {
	b, err := v.daemon.Console(ctx)
	return b, v.explain(err)
}

// Pause is vm.VM.Pause.
func (v *VM) Pause(ctx context.Context) error { return v.explain(v.daemon.Pause(ctx)) }

// Resume is vm.VM.Resume.
func (v *VM) Resume(ctx context.Context) error { return v.explain(v.daemon.Resume(ctx)) }

// Snapshot is vm.VM.Snapshot: the daemon writes the file, to an absolute path that a confined daemon can write to. The daemon sets
// o.Started.
func (v *VM) Snapshot(ctx context.Context, path string, o vm.SnapshotOptions) (m vm.SnapshotInfo, err error) {
	m, err = v.daemon.Snapshot(ctx, daemonrpc.SnapshotRequest{Path: path, Comment: o.Comment, Layered: o.Base})
	return m, v.explain(err)
}

// stopTime is how long the guest's programs have to end.
const stopTime = 10 * time.Second

// Stop is vm.VM.Stop. The daemon has ended, too, when it returns.
func (v *VM) Stop(ctx context.Context) error {
	again := v.stopped.Swap(true)
	err := v.daemon.Stop(ctx, stopTime)
	if again && errors.Is(err, daemonrpc.ErrClosed) {
		return nil
	}
	return err
}

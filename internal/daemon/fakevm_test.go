package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"agentvm/egress"
	"agentvm/images"
	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/platform"
	"agentvm/internal/storage/snapshot"
	"agentvm/nat"
	"agentvm/vm"
)

// fakeVM runs programs of its own in this process.
type fakeVM struct {
	done chan struct{}
	once sync.Once
	runs atomic.Int32 // daemons that run it

	paused  atomic.Bool
	flows   atomic.Int32   // connections to its ports
	writing sync.WaitGroup // like a VM's, its end waits for writes of output

	mu    sync.Mutex
	cause error
	how   string // "stop" or "close"
	grace bool   // Stop waits for its context

	forgot bool // Adopt finds no program
	old    bool // programs cannot be adopted

	image   images.Image
	health  atomic.Int32
	servers map[string]string // by port: addresses of the servers "in" it
	ports   []nat.Forward
	mounts  []vm.MountInfo
	served  []io.ReadWriteCloser // their servers
	policy  egress.Policy
}

func newFakeVM() *fakeVM { return &fakeVM{done: make(chan struct{})} }

func (v *fakeVM) end(how string, cause error) {
	v.once.Do(func() {
		v.mu.Lock()
		v.how, v.cause = how, cause
		v.mu.Unlock()
		close(v.done)
	})
}

func (v *fakeVM) ended() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.how
}

func (v *fakeVM) Stop(ctx context.Context) error {
	if v.grace {
		<-ctx.Done()
	}
	v.end("stop", nil)
	v.writing.Wait()
	return ctx.Err()
}
func (v *fakeVM) Close() error {
	v.end("close", nil)
	v.writing.Wait()
	return nil
}
func (v *fakeVM) Halted() <-chan struct{} { v.runs.Add(1); return v.done } // asked for when it is the daemon's
func (v *fakeVM) Done() <-chan struct{}   { return v.done }
func (v *fakeVM) Wait(ctx context.Context) error {
	<-v.done
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.cause
}
func (v *fakeVM) Stats(context.Context) (guestrpc.Stats, error) {
	return guestrpc.Stats{MemoryTotal: 77}, nil
}
func (v *fakeVM) SettleDenials(context.Context)                   {}
func (v *fakeVM) Denials(context.Context) ([]egress.Event, error) { return nil, nil }
func (v *fakeVM) Flows(context.Context) ([]vm.Flow, error)        { return nil, nil }
func (v *fakeVM) NetworkStats(context.Context) (s vm.NetworkStats, _ error) {
	s.Limits = []nat.LimitUse{{Limit: "forward flows", Used: int(v.flows.Load())}}
	return s, nil
}
func (v *fakeVM) Policy(context.Context) (egress.Policy, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.policy, nil
}
func (v *fakeVM) ReplacePolicy(_ context.Context, version string, p egress.Policy) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if version != "" && v.policy.Version() != version {
		return 0, egress.ErrPolicyChanged
	}
	v.policy = p
	return 0, p.Validate()
}
func (v *fakeVM) DiskWaits() (since time.Time, _ string)  { return since, "" }
func (v *fakeVM) Console(context.Context) ([]byte, error) { return nil, nil }
func (v *fakeVM) Explain(context.Context, string, uint16, string, ...netip.Addr) (d egress.Decision, _ error) {
	return d, nil
}
func (v *fakeVM) Forward(ctx context.Context, f nat.Forward) (net.Addr, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ports = append(v.ports, f)
	var at net.Addr = net.TCPAddrFromAddrPort(f.Listen)
	if f.Protocol == "udp" {
		at = net.UDPAddrFromAddrPort(f.Listen)
	}
	context.AfterFunc(ctx, func() { _ = v.CloseForward(ctx, at) })
	return at, nil
}
func (v *fakeVM) CloseForward(_ context.Context, at net.Addr) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ports = slices.DeleteFunc(v.ports, func(f nat.Forward) bool { return f.Listen.String() == at.String() })
	return nil
}
func (v *fakeVM) Ports(context.Context) ([]nat.Forward, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.ports), nil
}
func (v *fakeVM) AttachMount(_ context.Context, m vm.Mount, conn io.ReadWriteCloser) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mounts, v.served = append(v.mounts, vm.MountInfo{Mount: m, Added: true}), append(v.served, conn)
	return nil
}
func (v *fakeVM) RemoveMount(_ context.Context, guestPath string, force bool) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	i := slices.IndexFunc(v.mounts, func(m vm.MountInfo) bool { return m.Mount.GuestPath == guestPath })
	if i < 0 {
		return syscall.ENOENT
	}
	err := v.served[i].Close()
	v.mounts, v.served = slices.Delete(v.mounts, i, i+1), slices.Delete(v.served, i, i+1)
	return err
}
func (v *fakeVM) Mounts(context.Context) ([]vm.MountInfo, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.mounts), nil
}
func (v *fakeVM) Files(context.Context) (*guestrpc.FilesClient, error) { return nil, syscall.ENOSYS }
func (v *fakeVM) Pause(context.Context) error                          { v.paused.Store(true); return nil }
func (v *fakeVM) Resume(context.Context) error                         { v.paused.Store(false); return nil }
func (v *fakeVM) Paused() bool                                         { return v.paused.Load() }
func (v *fakeVM) Snapshot(_ context.Context, path string, o vm.SnapshotOptions) (snapshot.Meta, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return snapshot.Meta{}, err
	}
	_, err = f.WriteString("snapshot")
	return snapshot.Meta{Comment: o.Comment}, errors.Join(err, f.Close())
}

// publish serves the ports of the configuration: whoever connects gets the pid, and what he has sent as soon as he sends no more.
func (v *fakeVM) publish(b booting) error {
	for _, f := range b.config.Network.Forwards {
		l, err := b.listen(context.Background(), "tcp4", f.Listen.String())
		if err != nil {
			return err
		}
		f.Listen, f.Protocol = netip.MustParseAddrPort(l.Addr().String()), "tcp"
		v.ports = append(v.ports, f)
		go func() {
			<-v.done
			_ = l.Close()
		}()
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				v.flows.Add(1)
				go func() {
					defer v.flows.Add(-1)
					defer func() { _ = conn.Close() }()
					_, _ = fmt.Fprintln(conn, os.Getpid())
					sent, _ := io.ReadAll(conn)
					_, _ = conn.Write(sent)
				}()
			}
		}()
	}
	return nil
}

// DialContext connects to the test's servers.
func (v *fakeVM) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host != "localhost" {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.EADDRNOTAVAIL}
	}
	v.mu.Lock()
	server := v.servers[port]
	v.mu.Unlock()
	if server == "" {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", server)
}
func (v *fakeVM) DialFetch(ctx context.Context, network, address string) (net.Conn, error) {
	return v.DialContext(ctx, network, address)
}
func (v *fakeVM) Access() vm.Access {
	return vm.Access{Listen: vm.PortPolicy{Deny: []vm.PortRange{{First: 9, Last: 9}}}}
}
func (v *fakeVM) Sockets(context.Context) ([]vm.Socket, error) {
	return []vm.Socket{{Network: "tcp", PID: 7}}, nil
}
func (v *fakeVM) Image() images.Image { return v.image }
func (v *fakeVM) Describe(i *daemonrpc.Info) {
	i.Kernel, i.Image = "fake", cmp.Or(v.image.Name, i.Image)
	i.Platform = cmp.Or(v.image.Architecture, platform.Default).Platform()
}

// fakeProcess is a program of a fakeVM.
type fakeProcess struct {
	vm     *fakeVM
	c      vm.Command
	ctx    context.Context
	kill   context.CancelFunc
	done   chan struct{}
	code   int
	signal int
	err    error
	sizes  chan vm.Size
	mu     sync.Mutex
}

func (v *fakeVM) Start(_ context.Context, c vm.Command) (vm.Process, error) {
	select {
	case <-v.done:
		return nil, vm.ErrStopped
	default:
	}
	if c.Args[0] == "refuse" {
		return nil, errors.New("the guest has no processes left")
	}
	p := &fakeProcess{vm: v, c: c, done: make(chan struct{}), sizes: make(chan vm.Size, 10)}
	p.ctx, p.kill = context.WithCancel(context.Background())
	go func() {
		p.run()
		close(p.done)
	}()
	return p, nil
}

// Adopt finds a program of a VM that another process has run.
func (v *fakeVM) Adopt(ctx context.Context, _ uint64, c vm.Command) (vm.Process, error) {
	if v.forgot {
		return nil, fmt.Errorf("no program: %w", syscall.ENOENT)
	}
	c.Args = []string{"sleep"}
	return v.Start(ctx, c)
}

func (v *fakeVM) CanAdopt() bool { return !v.old }

// run executes the programs.
func (p *fakeProcess) run() {
	var arg string
	if len(p.c.Args) > 1 {
		arg = p.c.Args[1]
	}
	switch p.c.Args[0] {
	case "sync":
	case "echo":
		_, p.err = io.WriteString(p.c.Stdout, strings.Join(p.c.Args[1:], " ")+"\n")
	case "exit":
		_, _ = io.WriteString(p.c.Stderr, "bad\n")
		p.code, _ = strconv.Atoi(arg)
	case "health": // exits with what the test says
		p.code = int(p.vm.health.Load())
		_, _ = io.WriteString(p.c.Stderr, strings.Repeat("sick ", 10000))
	case "cat":
		_, p.err = io.Copy(p.c.Stdout, p.c.Stdin)
	case "flood": // so many bytes
		n, _ := strconv.Atoi(arg)
		p.vm.writing.Add(1)
		defer p.vm.writing.Done()
		for i := 0; i < n && p.ctx.Err() == nil && p.vm.ended() == ""; i += 1024 {
			_, p.err = p.c.Stdout.Write([]byte(strings.Repeat(fmt.Sprintf("%15d\n", i), 64)))
		}
	case "poweroff":
		p.vm.end("itself", &vm.GuestError{Reason: vm.PoweredOff})
	case "reboot":
		p.vm.end("itself", &vm.GuestError{Reason: vm.Rebooted})
	case "size":
		s := <-p.sizes
		_, p.err = fmt.Fprintf(p.c.Stdout, "%d", s.Columns)
	default: // runs until it is killed
		select {
		case <-p.ctx.Done():
		case <-p.vm.done:
			p.err = vm.ErrStopped
		}
	}
}

func (p *fakeProcess) Done() <-chan struct{} { return p.done }
func (p *fakeProcess) Wait(context.Context) (*vm.Result, error) {
	var timeout <-chan time.Time
	if p.c.Timeout > 0 {
		timeout = time.After(p.c.Timeout)
	}
	select {
	case <-p.done:
	case <-p.ctx.Done(): // killed: it may be in a Read of its input, which ends when Wait has returned
	case <-timeout:
		_ = p.Signal(context.Background(), 9)
		return &vm.Result{ExitCode: 137, Signal: 9, TimedOut: true}, nil
	case <-p.vm.done:
		p.kill()
		return &vm.Result{}, vm.ErrStopped
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.signal != 0 {
		return &vm.Result{ExitCode: p.code, Signal: p.signal}, nil
	}
	return &vm.Result{ExitCode: p.code}, p.err
}

func (p *fakeProcess) Signal(_ context.Context, number int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.code, p.signal = 128+number, number
	p.kill()
	return nil
}

func (p *fakeProcess) Kill(ctx context.Context) error { return p.Signal(ctx, 9) }

func (p *fakeProcess) Resize(_ context.Context, s vm.Size) error {
	p.sizes <- s
	return nil
}

// The roles of a test's child process, see TestMain.
const (
	roleEnv = "AGENTVM_TEST_DAEMON"

	roleFake    = "fake"    // a daemon with a fakeVM
	roleReal    = "real"    // a daemon
	roleDie     = "die"     // ends with a message
	roleHang    = "hang"    // never writes its address; writes its pid
	roleForeign = "foreign" // publishes the state of another process
	roleStarter = "starter" // a process that starts one, and inherits things
	roleBad     = "bad"     // a daemon whose VM cannot be booted
	roleOverrun = "overrun" // a daemon whose VM cannot be stopped after a moment
	roleFrozen  = "frozen"  // the same, and Go stands still a little later
	roleAtOnce  = "at once" // the same, and at once
	roleKilled  = "killed"  // a daemon that is killed while its VM boots

	wakerName     = "--waker"     // of the activator
	activatorName = "--activator" // in place of a VM's name: the activator, whose daemons have the role
	mountName     = "--mount"     // before a VM's name: the server of a mount

	roleStranger = "stranger" // a process of another user, which tries to talk to a daemon
)

// awaitHeard waits until the starter has a client, and knows how far its VM is.
func awaitHeard(dir string) {
	for {
		if _, err := os.Stat(filepath.Join(dir, "heard")); err == nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// play is the child process.
func play(role, dir string, args []string) error {
	name := args[0]
	s := Store{Dir: dir, Version: "test"}
	if name == activatorName || name == wakerName {
		s.Command, s.Environment = []string{os.Args[0], dir}, []string{roleEnv, "GORACE"}
		if name == wakerName {
			return RunWaker(context.Background(), s, os.Stdin, os.Stdout)
		}
		s.WakerCommand = []string{os.Args[0], dir, wakerName}
		return runActivator(context.Background(), s, 200*time.Millisecond)
	}
	if name == mountName {
		return ServeMount(context.Background(), s, args[1], os.Stdin, os.Stdout)
	}
	t := timing{stateCheck: 10 * time.Millisecond}.withDefaults()
	p := paths{filepath.Join(dir, name)}
	switch role {
	case roleFake:
		return run(context.Background(), s, name, t, func(_ context.Context, b booting) (VM, error) {
			b.progress(0, "pulling its image")
			time.Sleep(10 * time.Millisecond)
			v := newFakeVM()
			return v, v.publish(b)
		})
	case roleBad:
		return run(context.Background(), s, name, t, func(context.Context, booting) (VM, error) {
			return nil, errors.New("no such image: nothing")
		})
	case roleOverrun, roleFrozen, roleAtOnce:
		t.ownProcess = true
		return run(context.Background(), s, name, t, func(_ context.Context, b booting) (VM, error) {
			go neverReturn(dir, role, b.overrun)
			return newFakeVM(), nil
		})
	case roleStarter:
		return startFromOutside(s, name)
	case roleKilled:
		return run(context.Background(), s, name, t, func(_ context.Context, b booting) (VM, error) {
			b.progress(0, "boots")
			awaitHeard(dir)
			fmt.Fprintln(os.Stderr, "last words")
			self, err := os.FindProcess(os.Getpid())
			if err == nil {
				err = self.Kill()
			}
			time.Sleep(time.Minute)
			return nil, err
		})
	case roleReal:
		return Run(context.Background(), s, name)
	case roleStranger:
		return tryAsStranger(dir, name)
	case roleHang:
		err := os.WriteFile(filepath.Join(dir, "pid"), []byte(strconv.Itoa(os.Getpid())), 0o600)
		time.Sleep(time.Minute)
		return err
	case roleForeign:
		err := p.writeState(state{Version: protocolVersion, Name: name, Pid: os.Getppid(), Address: "127.0.0.1:9", Token: newToken()})
		time.Sleep(time.Minute)
		return err
	}
	return errors.New("the reason it died of")
}

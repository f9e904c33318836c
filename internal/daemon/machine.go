package daemon

import (
	"context"
	"io"
	"log/slog"
	"net"
	"time"

	"agentvm/egress"
	"agentvm/images"
	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/storage/snapshot"
	"agentvm/nat"
	"agentvm/vm"
)

// VM is the part of a *vm.VM that a daemon uses.
type VM interface {
	daemonrpc.VM // what clients ask of it

	Start(ctx context.Context, c vm.Command) (vm.Process, error)
	// Adopt continues with a command of before the VM was saved, of whose output received bytes were kept. CanAdopt is false where it cannot.
	Adopt(ctx context.Context, received uint64, c vm.Command) (vm.Process, error)
	CanAdopt() bool
	// Stop ends the VM in order, or at once when ctx ends first.
	Stop(ctx context.Context) error
	// Close switches the VM off.
	Close() error
	// Image is what it was made of.
	Image() images.Image
	// Halted is closed when nothing runs in the VM any more, Done after that, when its resources are free.
	Halted() <-chan struct{}
	Done() <-chan struct{}
	// Wait returns why the VM has ended; nil after Stop or Close.
	Wait(ctx context.Context) error
	// SettleDenials waits a moment for denials that Denials does not know yet.
	SettleDenials(ctx context.Context)
	Denials(ctx context.Context) ([]egress.Event, error)
	Flows(ctx context.Context) ([]vm.Flow, error)
	ReplacePolicy(ctx context.Context, version string, p egress.Policy) (cut int, err error)
	Forward(ctx context.Context, f nat.Forward) (net.Addr, error)
	CloseForward(ctx context.Context, at net.Addr) error
	Ports(ctx context.Context) ([]nat.Forward, error)
	// AttachMount adds a mount, whose server is at the other end of conn; RemoveMount removes it.
	AttachMount(ctx context.Context, m vm.Mount, conn io.ReadWriteCloser) error
	RemoveMount(ctx context.Context, guestPath string, force bool) error
	Mounts(ctx context.Context) ([]vm.MountInfo, error)
	// Pause stops the VM until Resume. Paused reports whether it is paused.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	Paused() bool
	// Snapshot writes the VM into a file.
	Snapshot(ctx context.Context, path string, o vm.SnapshotOptions) (snapshot.Meta, error)
	// DialContext connects to the VM's loopback interface as a program in the VM does, DialFetch as a request by its owner.
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
	DialFetch(ctx context.Context, network, address string) (net.Conn, error)
	// Access is the policy for both.
	Access() vm.Access
	// Describe sets Kernel, Image, Memory, Mounts, Ports and Policy as far as the VM knows them.
	Describe(*daemonrpc.Info)
}

// bootFunc starts a VM. ctx bounds the start.
type bootFunc func(ctx context.Context, b booting) (VM, error)

// booting are the parameters of a boot.
type booting struct {
	name     string
	config   Config
	restore  *Restoration // nil: it boots
	paths    paths
	listen   func(ctx context.Context, network, address string) (net.Listener, error) // see vm.Network.Listen
	progress func(slog.Level, string)                                                 // lines for people; it returns quickly
	overrun  func(time.Duration)                                                      // see vm.Config.Overrun
	confine  func()                                                                   // see vm.Config.BeforeRun
	logger   *slog.Logger
	again    bool   // the guest has restarted itself
	program  string // see vm.Config.Program
}

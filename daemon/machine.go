package daemon

import (
	"context"
	"log/slog"
	"net"

	"agentvm/rpc"
	"agentvm/snapshot"
	"agentvm/vm"
)

// VM is what a daemon runs: a *vm.VM behind Run.
type VM interface {
	Spawn(ctx context.Context, c vm.Command) (Process, error)
	// Stop ends the VM in order, or as it is when ctx ends first.
	Stop(ctx context.Context) error
	// Close switches the VM off.
	Close() error
	Done() <-chan struct{}
	// Wait returns why the VM has ended; nil after Stop or Close.
	Wait(ctx context.Context) error
	Stats(ctx context.Context) (rpc.Stats, error)
	// Ask answers a question about the network, see docs/daemon.md.
	Ask(ctx context.Context, name string, json []byte) ([]byte, error)
	Files(ctx context.Context) (*rpc.FilesClient, error)
	// Pause has the VM stand still until Resume; Paused says whether it does.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	Paused() bool
	// Snapshot writes the VM into a file.
	Snapshot(ctx context.Context, path string, o vm.SnapshotOptions) (snapshot.Meta, error)
	// DialContext connects to the VM's loopback as a program of the VM does, DialFetch as a request of its owner's.
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
	DialFetch(ctx context.Context, network, address string) (net.Conn, error)
	// Access is the policy that both are under.
	Access() vm.Access
	Sockets(ctx context.Context) ([]vm.Socket, error)
	// Describe fills what the VM knows of Kernel, Image, Memory, Ports and Policy.
	Describe(*rpc.DaemonInfo)
}

// Process is a program that runs in a VM: a *vm.Process behind Run.
type Process interface {
	Wait(ctx context.Context) (*vm.Result, error)
	Signal(ctx context.Context, signal int) error
	Kill(ctx context.Context) error
	Resize(ctx context.Context, size vm.Size) error
}

// bootFunc starts a VM. ctx bounds the start. progress is for people; it returns quickly.
type bootFunc func(ctx context.Context, b booting) (VM, error)

// booting is what a VM is started with.
type booting struct {
	name     string
	config   Config
	restore  *Restoration // nil: it boots
	paths    paths
	progress func(slog.Level, string)
	logger   *slog.Logger
}

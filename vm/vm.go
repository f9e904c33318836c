package vm

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"agentvm/images"
	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/network/reach"
	"agentvm/internal/storage/checkpoint"
	"agentvm/internal/work/job"
)

// VM is a running virtual machine. Its goroutines:
//
//	worker ── Machine.Run ──► closes the machine and thereby every stream ──► halted ──► frees the rest ──► done
//	  ▲                                  │                                                  │
//	workQueue: pauses, captures          │                                                  │
//	console, one for each mount ◄────────┘ end with their streams     network's, client's ◄─┘
//	handshake: runs in the goroutine of Start or Restore; a fork starts one for it
//	watch: ends the worker when the guest's supervisor has gone, and keeps the guest's clock right
type VM struct {
	config    Config
	resources *resources // freed after halted
	identity  checkpoint.Identity
	image     images.Image
	console   *console
	machine   emulator // owned by the worker: see workQueue; other goroutines may only call Progress
	queue     *workQueue
	pause     *pause
	clockDue  atomic.Bool // the guest's clock has to be set
	bulk      *bulk       // carries files, and the host's connections with the guest's loopback interface
	dialer    *reach.Dialer
	added     *addedMounts

	kill      context.CancelCauseFunc // ends the worker
	slices    *sliceWatch             // reports slices that last too long
	streams   sync.WaitGroup          // goroutines that end with the machine's streams
	connected chan struct{}           // closed when the handshake is over and client, info and readyErr are set
	client    *guestrpc.Client        // use guest to get it
	info      guestrpc.GuestInfo
	readyErr  error
	knownInfo guestrpc.GuestInfo // what guestInfo returns until then
	halted    chan struct{}      // closed when the machine has stopped and cause is set
	done      chan struct{}      // closed when everything of the VM is freed
	cause     error              // why the machine stopped; read after halted
	stuck     chan struct{}      // closed when the machine cannot be stopped any more and stuckErr is set
	stuckErr  error
	tracked   sync.WaitGroup // goroutines that goTracked has started
	jobs      *job.Table

	mu       sync.Mutex
	stopping bool
	ended    bool // goTracked starts no more goroutines
}

const (
	// streamSize is the capacity in bytes of the control stream: a few messages, so that neither side waits for each.
	streamSize  = 256 << 10
	consoleSize = 64 << 10
	// lostTime is how long the machine may run on after its supervisor has gone: a kernel panic takes a moment to print.
	lostTime = 5 * time.Second
	// drainTime bounds the reading of answers that have arrived when the machine stops.
	drainTime = time.Second
)

// work is the goroutine that owns the machine. It ends the VM when the machine stops.
func (v *VM) work(ctx context.Context, r *resources) {
	defer close(v.done)
	exit, err := v.runLoop(ctx)
	v.slices.stop()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if e := v.machine.Close(); e != nil {
		v.config.Logger.Warn("close the machine", "error", e)
	}
	v.added.close()
	v.streams.Wait()
	var lost *GuestError
	switch console := v.console.bytes(); {
	case v.isStopping():
		v.cause = ErrStopped
	case errors.As(err, &lost):
		lost.Console = console
		v.cause = lost
	default:
		v.cause = explain(exit, err, console)
	}
	close(v.halted)
	v.config.Logger.Debug("machine stopped", "instructions", v.Instructions(), "cause", v.cause)
	<-v.connected
	if err := v.resources.network.Close(); err != nil {
		v.config.Logger.Warn("close the network", "error", err)
	}
	v.closeClient()
	v.waitTracked()
	if err := r.release(); err != nil {
		v.config.Logger.Warn("free the VM", "error", err)
	}
}

// closeClient ends the client after it has read what the guest sent last, so that no result that has arrived is lost.
func (v *VM) closeClient() {
	if v.client == nil {
		return
	}
	select {
	case <-v.client.Done():
	case <-time.After(drainTime):
	}
	_ = v.client.Close()
}

// watch stops a machine whose supervisor has gone, and keeps the guest's clock right. It ends with the machine.
func (v *VM) watch(client *guestrpc.Client) {
	clock := newClockWatch(hostClocks(), v.syncClockSoon)
	ticker := time.NewTicker(clockInterval)
	defer ticker.Stop()
	for gone := false; !gone; {
		select {
		case <-client.Done():
			gone = true
		case <-ticker.C:
			if v.Paused() {
				continue
			}
			clock.check()
			v.settleClock(context.Background())
		case <-v.halted:
			return
		}
	}
	select {
	case <-time.After(lostTime):
		v.kill(&GuestError{Reason: Lost})
	case <-v.halted:
	}
}

// explain returns why the VM ended when that is what caused err, else err.
func (v *VM) explain(err error) error {
	if errors.Is(err, syscall.ESHUTDOWN) && v.isStopping() {
		return ErrStopped // the guest refused it because Stop has it power off
	}
	if err == nil || !errors.Is(err, capnprpc.ErrClosed) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	select {
	case <-v.halted:
		return v.cause
	case <-v.stuck:
		return v.stuckErr
	case <-time.After(lostTime + time.Second):
		return err
	}
}

// Image returns what the VM has booted.
func (v *VM) Image() images.Image { return v.image }

// KernelRelease returns the release of the running kernel, as uname -r prints it.
func (v *VM) KernelRelease() string { return v.guestInfo().Release }

// BootTime returns how long the guest took from its kernel's first instruction until it answered, by its own clock.
func (v *VM) BootTime() time.Duration { return v.guestInfo().Boot }

// Instructions returns how many instructions the guest has executed since power-on. It lags by up to a millisecond while the
// guest computes and is exact while it waits.
func (v *VM) Instructions() uint64 { return v.machine.Progress().Retired }

// Console returns the last 64 KiB of what the guest's kernel printed.
func (v *VM) Console(context.Context) ([]byte, error) { return v.console.bytes(), nil }

// Stats is a reading of the guest's counters, as the guest reports them: processor time, load, memory, processes, bytes and
// packets of its network card. Times are totals since boot.
type Stats = guestrpc.Stats

// Stats reads the guest's counters.
func (v *VM) Stats(ctx context.Context) (Stats, error) {
	client, err := v.guest(ctx)
	if err != nil {
		return Stats{}, err
	}
	stats, err := client.Stats(ctx)
	return stats, v.explain(err)
}

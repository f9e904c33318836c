package vm

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"agentvm/emulator"
	"agentvm/images"
	"agentvm/rpc"
)

// VM is a running virtual machine. Its goroutines:
//
//	worker ── Machine.Run ──► closes the machine and thereby every stream ──► halted ──► frees the rest ──► done
//	  ▲                                  │                                                  │
//	desk: pauses, captures               │                                                  │
//	console, one for each mount ◄────────┘ end with their streams     network's, client's ◄─┘
//	greeting: Start's and Restore's own goroutine, one of a fork's
//	watch: ends the worker when the guest's supervisor has gone, and keeps the guest's clock right
type VM struct {
	config   Config
	parts    *parts // freed after halted
	identity identity
	image    images.Image
	console  *console
	machine  *emulator.Machine // the worker's: see desk; others may only ask for what it has Retired
	desk     *desk
	pause    *pause
	clockDue atomic.Bool // the guest's clock is to be set
	network  *network    // nil: the VM has none
	bulk     *bulk       // files, and connections of the host's with the guest's loopback interface
	locals   *locals     // of those, how many
	fetching fetching    // HTTP with servers in the VM

	kill      context.CancelCauseFunc // ends the worker
	streams   sync.WaitGroup          // goroutines that end with the machine's streams
	dialed    chan struct{}           // closed when the greeting is over and client, info and greetErr are set
	client    *rpc.Client             // see guest
	info      rpc.GuestInfo
	greetErr  error
	knownInfo rpc.GuestInfo  // until then
	halted    chan struct{}  // closed when the machine has stopped and cause is set
	done      chan struct{}  // closed when nothing of the VM is left
	cause     error          // why the machine stopped; read after halted
	owned     sync.WaitGroup // goroutines that end after the machine, see own

	mu        sync.Mutex
	stopping  bool
	ended     bool                // own starts no more goroutines
	processes map[string]*Process // durable ones
	started   int                 // how many of them ever
}

const (
	// streamSize is the capacity in bytes of the control stream: a few messages, so that neither side waits for each.
	streamSize  = 256 << 10
	consoleSize = 64 << 10
	// lostTime is how long the machine may run on after its supervisor has gone: a kernel panic takes a moment to print.
	lostTime = 5 * time.Second
	// drainTime is how long answers that have arrived may take to be read after the machine has stopped.
	drainTime = time.Second
)

// work is the goroutine that owns the machine. It ends the VM when the machine stops.
func (v *VM) work(ctx context.Context, p *parts) {
	defer close(v.done)
	exit, err := v.drive(ctx)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if e := v.machine.Close(); e != nil {
		v.config.Logger.Warn("close the machine", "error", e)
	}
	v.streams.Wait()
	v.setCause(exit, err)
	close(v.halted)
	v.config.Logger.Debug("machine stopped", "instructions", v.Instructions(), "cause", v.cause)
	<-v.dialed
	if err := v.network.close(); err != nil {
		v.config.Logger.Warn("close the network", "error", err)
	}
	v.hangUp()
	v.endOwned()
	if err := p.release(); err != nil {
		v.config.Logger.Warn("free the VM", "error", err)
	}
}

func (v *VM) setCause(exit emulator.Exit, err error) {
	var lost *GuestError
	switch {
	case v.isStopping():
		v.cause = ErrStopped
	case errors.As(err, &lost):
		lost.Console = v.console.bytes()
		v.cause = lost
	default:
		v.cause = explain(exit, err, v.console.bytes())
	}
}

// hangUp ends the client after it has read what the guest said last: a result that has arrived is not lost.
func (v *VM) hangUp() {
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
func (v *VM) watch(client *rpc.Client) {
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

// explain replaces err by the reason of the VM's end when that is what caused it.
func (v *VM) explain(err error) error {
	if err == nil || !errors.Is(err, rpc.ErrClosed) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	select {
	case <-v.halted:
		return v.cause
	case <-time.After(lostTime + time.Second):
		return err
	}
}

// Image is what the VM has booted.
func (v *VM) Image() images.Image { return v.image }

// KernelRelease is the release of the running kernel, as uname -r prints it.
func (v *VM) KernelRelease() string { return v.guestInfo().Release }

// BootTime is how long the guest took from its kernel's first instruction until it answered, by its own clock.
func (v *VM) BootTime() time.Duration { return v.guestInfo().Boot }

// Instructions is how many instructions the guest has executed since power-on. It lags by up to a millisecond while the
// guest computes and is exact while it waits.
func (v *VM) Instructions() uint64 { return v.machine.Retired() }

// Console returns the last ConsoleTail bytes of what the guest's kernel printed.
func (v *VM) Console() []byte { return v.console.bytes() }

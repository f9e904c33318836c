package vm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/network/reach"
	"agentvm/wasi"
)

// entropySize is how many random bytes a guest gets that continues from a saved machine.
const entropySize = 64

// handshake waits until the guest answers and configures it. It sets readyErr; its caller then closes connected.
//
//	boots, and leaves a base:         hello ─► start without configuration ─► warm-up ─► capture ─► configureGuest ─► a command
//	continues from a saved machine:   hello, new session ─► configureGuest
//	boots:                            hello ─► configureGuest
func (v *VM) handshake(ctx context.Context, control *wasi.StreamHost) {
	v.readyErr = v.explain(v.connect(ctx, control))
}

func (v *VM) connect(ctx context.Context, control *wasi.StreamHost) error {
	limit := v.config.BootTimeout
	chosen := limit > 0
	if !chosen {
		limit = defaultBootTimeout
	}
	if v.resources.base != nil && v.resources.memory != nil { // it need not boot: it answers within milliseconds, or is broken
		limit = min(limit, savedTimeout)
	}
	var again func() bool
	if !chosen {
		again = isStarved(limit, v.Instructions)
	}
	ctx, cancel := v.withActiveTimeout(ctx, limit, again, fmt.Errorf("the guest has not answered for %v", limit))
	defer cancel()
	began := time.Now()
	client, err := guestrpc.Dial(ctx, control, guestrpc.ClientConfig{Logger: v.config.Logger, KeepPrograms: v.resources.keepPrograms, Memory: v.config.memory})
	if err != nil {
		return withCause(ctx, err)
	}
	v.client = client
	v.config.Logger.Debug("timing: connected to the guest", "took", time.Since(began), "instructions", v.Instructions())
	v.resources.network.Connect(client, v.dialer.DialPublished)
	if err := v.goTracked(func() { v.watch(client) }); err != nil {
		return err
	}
	if !v.resources.createBase {
		return withCause(ctx, v.configureGuest(ctx, client, v.resources.memory != nil))
	}
	return withCause(ctx, v.bootAndCapture(ctx, client))
}

// isStarved returns what says, each time that a limit is reached, whether the guest is at work and has had too little of a processor for it: not
// one that waits, or is lost in a loop.
func isStarved(limit time.Duration, executed func() uint64) func() bool {
	first := executed()
	last, times := first, 0
	return func() bool {
		now := executed()
		works := now-last > uint64(limit.Seconds()*idleRate) && now-first < bootInstructions
		last = now
		times++
		return works && times < longestBoot
	}
}

// configureGuest gives the guest what is this VM's own. restored says that the guest has been started before.
func (v *VM) configureGuest(ctx context.Context, client *guestrpc.Client, restored bool) error {
	began := time.Now()
	sockets, connect := v.hostCommandSocket()
	params := guestrpc.StartParams{
		Time: time.Now(), Hostname: v.config.Hostname, Env: v.config.hostCommandsEnv(slices.Concat(v.image.Env, v.config.secretsEnv(), v.config.Env)),
		Mounts: v.resources.shares.mounts(), Network: v.resources.network.Params(),
		CACertificate: slices.Concat(v.config.CACertificate, v.config.authority.PEM()), Flags: v.config.guestFlags() | guestrpc.AdoptPrograms,
		UnixSockets: sockets, Connect: connect, Hosts: v.resources.network.HostLines(), Directories: v.directories(),
		ListenDenied: reach.DeniedPorts(v.config.Access.Listen),
	}
	if restored {
		id := v.identity
		if v.resources.network != nil {
			id.MAC, _ = v.resources.network.Card() // the saved guest may have another one
		}
		params.Restored = &guestrpc.Restored{
			Entropy: make([]byte, entropySize), Generation: id.Generation, GenerationID: id.ID, NewIdentity: id.Renewed, MAC: id.MAC,
			KeepPrograms: v.resources.keepPrograms, Programs: v.resources.adopts,
		}
		_, _ = rand.Read(params.Restored.Entropy) // used nowhere else
	}
	info, err := client.Start(ctx, params)
	if err != nil {
		return err
	}
	v.info = info
	if err := v.installHostCommands(ctx); err != nil {
		return fmt.Errorf("give the guest the host's commands: %w", err)
	}
	if time.Since(began) > clockTolerance { // the guest was busy, and its clock is behind by that long
		v.clockDue.Store(true)
		_ = v.goTracked(func() { <-v.connected; v.settleClock(context.Background()) })
	}
	v.config.Logger.Debug("timing: the guest has started", "took", time.Since(began), "instructions", v.Instructions())
	for what, text := range map[string]string{"network": info.NetworkWarning, "disk": info.DiskWarning} {
		if text != "" {
			v.config.Logger.Warn("the guest's " + what + ": " + readable([]byte(text), 1))
		}
	}
	return nil
}

// withCause adds to err why ctx has ended, if it has.
func withCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w (%w)", cause, err)
	}
	return err
}

// guest returns the client once the handshake is over and the machine is not paused. All calls to the guest get it here.
func (v *VM) guest(ctx context.Context) (*guestrpc.Client, error) {
	if err := v.alive(); err != nil {
		return nil, err
	}
	if err := v.ready(ctx); err != nil {
		return nil, err
	}
	if err := v.running(ctx); err != nil {
		return nil, err
	}
	return v.client, v.alive()
}

// ready waits for the end of the handshake and returns its error.
func (v *VM) ready(ctx context.Context) error {
	select {
	case <-v.connected:
		return v.readyErr
	default:
	}
	select {
	case <-v.connected:
		return v.readyErr
	case <-v.halted:
		return v.cause
	case <-v.stuck:
		return v.stuckErr
	case <-ctx.Done():
		return ctx.Err()
	}
}

// guestInfo is what the guest reports about itself. A fork whose guest has not answered yet has its VM's.
func (v *VM) guestInfo() guestrpc.GuestInfo {
	select {
	case <-v.connected:
		return v.info
	default:
		return v.knownInfo
	}
}

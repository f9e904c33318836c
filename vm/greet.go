package vm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"agentvm/rpc"
	"agentvm/wasi"
)

// greet waits until the guest answers and gives it its parameters; greetErr is what went wrong. Its caller closes dialed.
//
//	boots, and is to leave a base:  hello ─► generic start ─► warm-up ─► capture ─► personal start ─► a command
//	goes on from a saved machine:   hello, new session ─► personal start
//	boots:                          hello ─► personal start
func (v *VM) greet(ctx context.Context, control *wasi.StreamHost) {
	v.greetErr = v.explain(v.meet(ctx, control))
}

func (v *VM) meet(ctx context.Context, control *wasi.StreamHost) error {
	limit := v.greetTime()
	ctx, cancel := v.patient(ctx, limit, fmt.Errorf("the guest has not answered for %v", limit))
	defer cancel()
	began := time.Now()
	client, err := rpc.Dial(ctx, control, rpc.ClientConfig{Logger: v.config.Logger, KeepPrograms: v.parts.keepPrograms})
	if err != nil {
		return withCause(ctx, err)
	}
	v.client = client
	v.config.Logger.Debug("timing: greeted the guest", "took", time.Since(began), "instructions", v.Instructions())
	v.network.connect(client)
	if err := v.own(func() { v.watch(client) }); err != nil {
		return err
	}
	if !v.parts.layBase {
		return withCause(ctx, v.personalStart(ctx, client, v.parts.memory != nil))
	}
	return withCause(ctx, v.startTwice(ctx, client))
}

// startTwice leaves a base on the way.
func (v *VM) startTwice(ctx context.Context, client *rpc.Client) error {
	image, err := v.makeBase(ctx, client)
	if err != nil {
		return err
	}
	err = v.personalStart(ctx, client, true)
	switch {
	case image == nil:
	case err != nil:
		err = errors.Join(err, image.Close())
	default:
		err = v.keepBase(ctx, client, image)
	}
	return err
}

// greetTime is how long the guest may take to answer. One that need not boot is soon known to be broken.
func (v *VM) greetTime() time.Duration {
	if v.parts.baseKey != "" && v.parts.memory != nil {
		return min(v.config.BootTimeout, savedTimeout)
	}
	return v.config.BootTimeout
}

// personalStart gives the guest what is this VM's own. goesOn says that it has been started before.
func (v *VM) personalStart(ctx context.Context, client *rpc.Client, goesOn bool) error {
	began := time.Now()
	params := rpc.StartParams{
		Time: time.Now(), Hostname: v.config.Hostname, Env: slices.Concat(v.image.Env, v.config.Env),
		Mounts: v.parts.shares.mounts(), Network: v.network.params(),
		CACertificate: v.config.CACertificate, NoNewPrivileges: v.config.NoNewPrivileges,
		UnixSockets: rpcSockets(v.config.UnixSockets), Connect: v.socketConnector(), ListenDenied: v.config.Access.Listen.denied(),
	}
	if goesOn {
		params.Restored = v.identity.restored(v.parts.keepPrograms)
	}
	info, err := client.Start(ctx, params)
	if err != nil {
		return err
	}
	v.info = info
	if time.Since(began) > clockTolerance { // the guest was busy, and its clock is late by that
		v.clockDue.Store(true)
		_ = v.own(func() { <-v.dialed; v.settleClock(context.Background()) })
	}
	v.config.Logger.Debug("timing: the guest has started", "took", time.Since(began), "instructions", v.Instructions())
	for what, text := range map[string]string{
		"network": info.NetworkWarning, "disk": info.DiskWarning, "mounts": info.ShareWarning,
	} {
		if text != "" {
			v.config.Logger.Warn("the guest's " + what + ": " + readable([]byte(text), 1))
		}
	}
	return nil
}

// withCause says why ctx ended when it did.
func withCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w (%w)", cause, err)
	}
	return err
}

// guest is the one way to the guest: it waits until the guest has been greeted and the machine is not paused.
func (v *VM) guest(ctx context.Context) (*rpc.Client, error) {
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

// ready waits until the guest has been greeted.
func (v *VM) ready(ctx context.Context) error {
	select {
	case <-v.dialed:
		return v.greetErr
	default:
	}
	select {
	case <-v.dialed:
		return v.greetErr
	case <-v.halted:
		return v.cause
	case <-ctx.Done():
		return ctx.Err()
	}
}

// guestInfo is what the guest said of itself; of one that has not answered yet, what is known.
func (v *VM) guestInfo() rpc.GuestInfo {
	select {
	case <-v.dialed:
		return v.info
	default:
		return v.knownInfo
	}
}

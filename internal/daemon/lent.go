package daemon

import (
	"context"
	"fmt"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/guest/capnprpc"
	"agentvm/nat"
)

// lentForward is a port of the host that one client has for as long as it wants. It is in no configuration.
type lentForward struct {
	d      *daemon
	v      VM
	name   string // ADDRESS:PORT/PROTOCOL
	cancel context.CancelFunc
	closed chan struct{} // by closeForward
}

// LendForward opens a port for a client. The rules are those for the VM's owner, as for TCP, and those for ports that lead into the VM.
func (h handler) LendForward(ctx context.Context, forward string) (string, daemonrpc.LentForward, error) {
	f, err := nat.ParseForward(forward)
	if err != nil {
		return "", nil, invalid("%s", err)
	}
	v, err := h.d.await(ctx, nil)
	if err != nil {
		return "", nil, err
	}
	if err := v.Access().DecideFetch(f.GuestPort); err != nil {
		return "", nil, fmt.Errorf("port %d of the VM: %w", f.GuestPort, err)
	}
	life, cancel := context.WithCancel(context.Background())
	at, err := v.Forward(life, f)
	if err != nil {
		cancel()
		return "", nil, err
	}
	l := &lentForward{d: h.d, v: v, name: at.String() + "/" + at.Network(), cancel: cancel, closed: make(chan struct{})}
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	if h.d.lent == nil {
		h.d.lent = make(map[string]*lentForward)
	}
	h.d.lent[l.name] = l
	return at.String(), l, nil
}

// Ended waits until closeForward has closed the port, or the VM has ended.
func (l *lentForward) Ended(ctx context.Context) error {
	select {
	case <-l.closed:
		return nil
	case <-l.v.Halted():
		return &capnprpc.Error{Kind: capnprpc.KindState, Message: "the VM has ended, and with it port " + l.name}
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Release closes the port, unless that has happened.
func (l *lentForward) Release() {
	l.d.returned(l)
	l.cancel()
}

// returned takes a lent port out of the list, and reports whether it was there.
func (d *daemon) returned(l *lentForward) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lent[l.name] != l { // another may have the address by now
		return false
	}
	delete(d.lent, l.name)
	return true
}

// reclaim is called when a port was closed by a client, and reports whether it was a lent one, whose client then learns of it.
func (d *daemon) reclaim(name string) bool {
	d.mu.Lock()
	l := d.lent[name]
	d.mu.Unlock()
	if l == nil || !d.returned(l) {
		return false
	}
	close(l.closed)
	return true
}

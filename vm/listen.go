package vm

import (
	"context"
	"errors"
	"net"

	"agentvm/rpc"
)

// Listen listens in the guest, as a program of the VM would: programs of the guest that connect to 127.0.0.1:PORT, or [::1]:PORT, reach
// what Accept returns. network and address are as for DialContext, but that "localhost" is 127.0.0.1 unless network is "tcp6",
// and port 0 is any free one, see Addr. ctx bounds the beginning only. The listener ends with Close or with the VM; it goes on after
// a pause, and forks and restored VMs do not have it.
//
// Up to 128 connections wait for Accept, and count as open; more wait in the guest. Errors are *net.OpError around an errno:
// EADDRINUSE a program of the guest, or another listener, has the port; EACCES network.listen denies it; EADDRNOTAVAIL and EINVAL as for
// DialContext. Accept's wrap net.ErrClosed after Close and after the VM's end, and are EINVAL when the listener was ended in the guest.
func (v *VM) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	host, port, err := parseLocal(network, address)
	if err == nil {
		err = v.decide(CallerProgram, OpListen, port)
	}
	var loopback *rpc.Loopback
	if err == nil {
		loopback, err = v.loopback(ctx)
	}
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: localAddr(address), Err: err}
	}
	l, err := loopback.Listen(ctx, host, port, rpc.ListenConfig{Admit: v.locals.connections.take})
	if err != nil {
		return nil, localFault("listen", address, v.explainFiles(err))
	}
	if err := v.decide(CallerProgram, OpListen, uint16(l.Addr().(*net.TCPAddr).Port)); err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: l.Addr(), Err: errors.Join(err, l.Close())}
	}
	return l, nil
}

//go:build linux

package sockets

import "agentvm/rpc"

// connections are the states of what is reset: all but what listens and what is over anyway.
const connections = ^uint32(1<<rpc.SocketListen | 1<<rpc.SocketClosed | 1<<timeWait)

// Reset ends every TCP connection to another machine, whose end is not there any more. Programs see ECONNABORTED. Connections
// inside this machine stay. A kernel that cannot do it gives EOPNOTSUPP, when there was anything to do.
func Reset() error {
	return destroyAll("reset a connection", connections, func(e entry) bool { return !local(e) })
}

// local says that both ends are in this machine: a connection to an address of one's own comes from the same address.
func local(e entry) bool {
	remote := e.Remote.Addr()
	return remote.IsLoopback() || remote.IsUnspecified() || remote == e.Local.Addr()
}

// CloseListeners ends every TCP listener at the ports that denied names. Its programs see it as if shutdown(2) had been called:
// accept fails with EINVAL. A kernel that cannot do it gives EOPNOTSUPP, when there was anything to do.
func CloseListeners(denied func(port uint16) bool) error {
	return destroyAll("close a listener", 1<<rpc.SocketListen, func(e entry) bool {
		return e.State == rpc.SocketListen && denied(e.Local.Port())
	})
}

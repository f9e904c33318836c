package guestrpc

import (
	"context"
	"fmt"
	"net/netip"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc/guestwire"
)

// MaxSockets bounds the answer of Client.Sockets.
const MaxSockets = 4096

// maxProcessName is more than the 15 bytes of a Linux process name, and bounds what a hostile guest makes the host keep.
const maxProcessName = 64

// Socket is a TCP or UDP socket in the guest, as its kernel sees it. A hostile guest may report anything.
type Socket struct {
	Family  int    `json:"family"`    // 4 or 6
	Network string `json:"transport"` // "tcp" or "udp"
	// Local and Remote have IPv4 addresses as such, also where the socket is an IPv6 one. Remote is the unspecified address
	// and port 0 when the socket is not connected.
	Local   netip.AddrPort `json:"local"`
	Remote  netip.AddrPort `json:"remote"`
	State   SocketState    `json:"state"`
	UID     uint32         `json:"uid"`
	PID     int            `json:"pid"`     // 0: no process has it, or the one that had it has ended
	Process string         `json:"process"` // the kernel's short name of PID, at most 15 bytes of anything
}

// SocketQuery names one socket by the addresses in its packets. A TCP socket is found by both ends; a listener, or a UDP socket that
// is not connected, by a Remote of the zero value.
type SocketQuery struct {
	Network       string // "tcp" or "udp"
	Local, Remote netip.AddrPort
}

// SocketState is Linux's number of a TCP state (include/net/tcp_states.h), also used for UDP: Established when connected,
// else Closed.
type SocketState uint8

// The states that callers use. String knows all.
const (
	SocketEstablished SocketState = 1
	SocketClosed      SocketState = 7
	SocketListen      SocketState = 10
)

// String is the state's name of RFC 9293 section 3.3.2, with underscores.
func (s SocketState) String() string {
	names := [...]string{
		1: "ESTABLISHED", "SYN_SENT", "SYN_RECEIVED", "FIN_WAIT_1", "FIN_WAIT_2", "TIME_WAIT", "CLOSED", "CLOSE_WAIT",
		"LAST_ACK", "LISTEN", "CLOSING", "SYN_RECEIVED",
	}
	if int(s) < len(names) && s > 0 {
		return names[s]
	}
	return fmt.Sprintf("STATE_%d", uint8(s))
}

// MarshalText is String.
func (s SocketState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Sockets lists the guest's TCP and UDP sockets, listeners among them, without connections in TIME_WAIT; at most MaxSockets, in no
// order.
func (c *Client) Sockets(ctx context.Context) ([]Socket, error) { return c.sockets(ctx, nil) }

// FindSocket looks for one socket; ok is false when the guest has none like it. It costs the guest less than Sockets.
func (c *Client) FindSocket(ctx context.Context, q SocketQuery) (s Socket, ok bool, err error) {
	list, err := c.sockets(ctx, &q)
	if err != nil || len(list) == 0 {
		return Socket{}, false, err
	}
	return list[0], true, nil
}

func (c *Client) sockets(ctx context.Context, q *SocketQuery) ([]Socket, error) {
	future, release := c.supervisor.Sockets(ctx, func(call guestwire.Supervisor_sockets_Params) error {
		return q.write(call.NewQuery)
	})
	defer release()
	r, err := capnprpc.Await(c.fault, "list sockets", future.Struct)
	if err != nil {
		return nil, err
	}
	return ReadSockets(r.Sockets())
}

func (q *SocketQuery) write(create func() (guestwire.SocketQuery, error)) error {
	if q == nil {
		return nil
	}
	w, err := create()
	if err != nil {
		return err
	}
	w.SetTransport(transportOf(q.Network))
	if err := capnprpc.WriteEndpoint(w.NewLocal, q.Local); err != nil {
		return err
	}
	return capnprpc.WriteEndpoint(w.NewRemote, q.Remote)
}

func readSocketQuery(w guestwire.SocketQuery) (*SocketQuery, error) {
	if !w.IsValid() {
		return nil, nil
	}
	q := &SocketQuery{Network: w.Transport().String()}
	var err error
	if q.Local, err = capnprpc.ReadEndpoint(w.Local()); err != nil {
		return nil, err
	}
	q.Remote, err = capnprpc.ReadEndpoint(w.Remote())
	return q, err
}

func transportOf(network string) guestwire.Transport {
	if network == "udp" {
		return guestwire.Transport_udp
	}
	return guestwire.Transport_tcp
}

func WriteSockets(create func(int32) (guestwire.Socket_List, error), sockets []Socket) error {
	return capnprpc.WriteList(create, sockets[:min(len(sockets), MaxSockets)], Socket.write)
}

func (s Socket) write(w guestwire.Socket) error {
	w.SetTransport(transportOf(s.Network))
	w.SetState(uint8(s.State))
	w.SetUid(s.UID)
	w.SetPid(uint32(s.PID))
	w.SetFamily(uint8(s.Family))
	if err := capnprpc.WriteEndpoint(w.NewLocal, s.Local); err != nil {
		return err
	}
	if err := capnprpc.WriteEndpoint(w.NewRemote, s.Remote); err != nil {
		return err
	}
	return w.SetProcess(s.Process)
}

func ReadSockets(list guestwire.Socket_List, err error) ([]Socket, error) {
	if err == nil && list.Len() > MaxSockets {
		return nil, fmt.Errorf("the guest lists %d sockets (limit %d)", list.Len(), MaxSockets)
	}
	return capnprpc.ReadList(list, err, MaxSockets, readSocket)
}

func readSocket(w guestwire.Socket) (s Socket, err error) {
	s.Network, s.State, s.UID, s.PID = "tcp", SocketState(w.State()), w.Uid(), int(w.Pid())
	if w.Transport() == guestwire.Transport_udp {
		s.Network = "udp"
	}
	if s.Local, err = capnprpc.ReadEndpoint(w.Local()); err != nil {
		return s, err
	}
	if s.Remote, err = capnprpc.ReadEndpoint(w.Remote()); err != nil {
		return s, err
	}
	s.Family = familyOf(w.Family(), s.Local)
	name, err := w.ProcessBytes()
	s.Process = string(name[:min(len(name), maxProcessName)])
	return s, err
}

// familyOf returns a socket's family as the guest reports it, or as its address has it when the guest does not.
func familyOf(reported uint8, local netip.AddrPort) int {
	switch {
	case reported == 4 || reported == 6:
		return int(reported)
	case local.Addr().Is6():
		return 6
	}
	return 4
}

package sshd

import (
	"context"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"

	"golang.org/x/crypto/ssh"
)

// directTCP is the data of a direct-tcpip channel (RFC 4254 section 7.2).
type directTCP struct {
	Host     string
	Port     uint32
	FromHost string
	FromPort uint32
}

// forward connects a channel with a server in the VM. The VM's own controls on ports decide (network.connect); other hosts than the VM itself
// are refused, for what a guest may reach is the policy of its network and not the client's to widen.
func (s *Server) forward(ctx context.Context, c ssh.NewChannel) {
	var to directTCP
	if err := ssh.Unmarshal(c.ExtraData(), &to); err != nil || to.Port == 0 || to.Port > 65535 {
		_ = c.Reject(ssh.ConnectionFailed, "want a host and a port")
		return
	}
	if a, err := netip.ParseAddr(to.Host); to.Host != "localhost" && (err != nil || !a.IsLoopback()) {
		_ = c.Reject(ssh.Prohibited, "only servers in the VM: localhost, 127.0.0.1 or ::1")
		return
	}
	conn, err := s.config.VM.DialContext(ctx, "tcp", net.JoinHostPort(to.Host, strconv.Itoa(int(to.Port))))
	if err != nil {
		_ = c.Reject(ssh.ConnectionFailed, err.Error())
		return
	}
	defer conn.Close()
	channel, requests, err := c.Accept()
	if err != nil {
		return
	}
	defer channel.Close()
	stop := context.AfterFunc(ctx, func() { _ = channel.Close() })
	defer stop()
	var requesting, sending sync.WaitGroup
	requesting.Go(func() { ssh.DiscardRequests(requests) }) // until the channel is closed
	sending.Go(func() {
		_, _ = io.Copy(conn, channel)
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		} else {
			_ = conn.Close()
		}
	})
	_, _ = io.Copy(channel, conn)
	_ = channel.CloseWrite()
	sending.Wait()
	_ = channel.Close()
	requesting.Wait()
}

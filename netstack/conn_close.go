package netstack

import (
	"net"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// CloseWrite sends FIN after what is queued. Reading continues.
func (c *Conn) CloseWrite() error { return c.shutdown(tcpip.ShutdownWrite) }

// CloseRead makes Read return io.EOF; what the guest sends afterwards is dropped. Writing continues.
func (c *Conn) CloseRead() error { return c.shutdown(tcpip.ShutdownRead) }

func (c *Conn) shutdown(how tcpip.ShutdownFlags) error {
	if isClosed(c.gone) {
		return c.opError("shutdown", net.ErrClosed)
	}
	err := c.endpoint.Shutdown(how)
	c.noteEnd()
	if err != nil {
		return c.opError("shutdown", syscall.ENOTCONN)
	}
	return nil
}

// Close gives the connection up: blocked calls return [net.ErrClosed]. What was written is still delivered, then FIN;
// the guest gets RST instead when it has sent something that was not read, or does not answer for half a minute.
func (c *Conn) Close() error { return c.end("close", false) }

// Abort sends RST and forgets what was queued. Blocked calls return [net.ErrClosed].
func (c *Conn) Abort() { _ = c.end("abort", true) }

func (c *Conn) end(op string, reset bool) error {
	c.mu.Lock()
	if c.closed {
		again := reset && !c.reset
		c.reset = c.reset || reset
		looking := c.looking
		c.mu.Unlock()
		if again && !looking {
			c.endpoint.Abort()
			c.noteEnd()
		}
		return c.opError(op, net.ErrClosed)
	}
	c.closed, c.reset = true, reset
	close(c.gone)
	looking := c.looking
	c.mu.Unlock()
	if looking {
		// The endpoint must not free what a ReadTo is writing. Shutting both ways with unread bytes resets
		// at once and frees nothing; that ReadTo does the rest.
		c.endpoint.Shutdown(tcpip.ShutdownRead | tcpip.ShutdownWrite)
		c.noteEnd()
		return nil
	}
	c.release(reset)
	return nil
}

// release frees the endpoint, after FIN or RST. Its memory must not be used then.
func (c *Conn) release(reset bool) {
	if reset {
		c.endpoint.Abort()
	} else {
		timeout := tcpip.TCPUserTimeoutOption(orphanTimeout)
		c.endpoint.SetSockOpt(&timeout)
		c.network.flows.orphan(c)
		c.endpoint.Close()
	}
	c.noteEnd()
}

// State is the connection's state as RFC 9293, section 3.3.2 calls it, with underscores: ESTABLISHED, FIN_WAIT_1 ...
func (c *Conn) State() string {
	switch c.endpoint.EndpointState() {
	case tcp.StateConnecting, tcp.StateSynSent:
		return "SYN_SENT"
	case tcp.StateSynRecv:
		return "SYN_RECEIVED"
	case tcp.StateEstablished:
		return "ESTABLISHED"
	case tcp.StateFinWait1:
		return "FIN_WAIT_1"
	case tcp.StateFinWait2:
		return "FIN_WAIT_2"
	case tcp.StateClosing:
		return "CLOSING"
	case tcp.StateCloseWait:
		return "CLOSE_WAIT"
	case tcp.StateLastAck:
		return "LAST_ACK"
	case tcp.StateTimeWait:
		return "TIME_WAIT"
	default:
		return "CLOSED"
	}
}

// SetKeepAlive probes the guest after idle without traffic and then every interval; after count probes without an
// answer the connection ends with ETIMEDOUT. idle of zero or less: no probes.
func (c *Conn) SetKeepAlive(idle, interval time.Duration, count int) error {
	if idle <= 0 {
		c.endpoint.SocketOptions().SetKeepAlive(false)
		return nil
	}
	first, next := tcpip.KeepaliveIdleOption(idle), tcpip.KeepaliveIntervalOption(interval)
	for _, o := range []tcpip.SettableSocketOption{&first, &next} {
		if err := c.endpoint.SetSockOpt(o); err != nil {
			return c.opError("set", toErrno(err))
		}
	}
	if err := c.endpoint.SetSockOptInt(tcpip.KeepaliveCountOption, count); err != nil {
		return c.opError("set", toErrno(err))
	}
	c.endpoint.SocketOptions().SetKeepAlive(true)
	return nil
}

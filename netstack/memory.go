package netstack

import "sync"

// What connections and sockets take of Config.Memory. Each begins with little, and grows while its reader keeps up and there
// is memory to spare: a few flows are as fast as they can be, a thousand unread ones hold a bounded number of bytes.
const (
	// FlowMemory is what a TCP connection takes at least: a receive buffer and what gVisor lets it exceed that by (one frame), a
	// send buffer, the structures of both, and the stacks of the goroutines that move its bytes. Who accepts or dials a
	// connection takes it from the budget before, and gives it back when the connection has ended.
	FlowMemory = 160 << 10
	// SocketMemory is the same of a UDP socket.
	SocketMemory = 64 << 10

	// Of the budget, this much is given to what begins with more than the least, and to what grows.
	beginParts, growParts, budgetParts = 1, 3, 8
)

// extraMemory is what one connection or socket has taken of the budget beyond the least.
type extraMemory struct {
	mu    sync.Mutex
	bytes int64
	ended bool
}

// grow takes more, when there is enough to spare.
func (m *extraMemory) grow(n *Network, bytes int, parts int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended || !n.config.Memory.TakeWithin(int64(bytes), parts, budgetParts) {
		return false
	}
	m.bytes += int64(bytes)
	return true
}

// end gives everything back. Nothing is taken afterwards.
func (m *extraMemory) end(n *Network) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n.config.Memory.Give(m.bytes)
	m.bytes, m.ended = 0, true
}

// begin sizes a connection's receive buffer.
func (c *Conn) begin() {
	c.window = receiveBuffer
	if c.extra.grow(c.network, receiveBufferFirst-receiveBuffer, beginParts) {
		c.window = receiveBufferFirst
		c.endpoint.SocketOptions().SetReceiveBufferSize(int64(c.window), true)
	}
}

// taken says that the reader has taken n bytes. Each time that it was as much as the window, the receive buffer doubles.
// The caller holds readMu.
func (c *Conn) taken(n int) {
	if c.window >= receiveBufferMax {
		return
	}
	if c.read += n; c.read < c.window/2 {
		return
	}
	c.read = 0
	if c.extra.grow(c.network, c.window, growParts) {
		c.window *= 2
		c.endpoint.SocketOptions().SetReceiveBufferSize(int64(c.window), true)
	}
}

// mark is how many bytes may be unacknowledged now: high, or less while there is no memory for that. low goes with it.
func (c *Conn) mark() (high, low int) {
	if c.sendable >= c.high {
		return c.high, c.low
	}
	return c.sendable, min(c.low, c.sendable/4)
}

// drainedOnce says that the guest has acknowledged all but the low mark of what the high mark allows: it keeps up, and
// may be sent twice as much at once. The caller holds writeMu.
func (c *Conn) drainedOnce() {
	if c.sendable < c.high && c.extra.grow(c.network, c.sendable, growParts) {
		c.sendable *= 2
	}
}

// beginSending is drainedOnce for marks that are new: the first connections have as much as they want at once.
func (c *Conn) beginSending() {
	if more := c.high - c.sendable; more > 0 && c.extra.grow(c.network, more, beginParts) {
		c.sendable = c.high
	}
}

// begin sizes a socket's receive buffer.
func (c *PacketConn) begin() {
	if c.extra.grow(c.network, datagramBufferFirst-datagramBuffer, beginParts) {
		return // gVisor's default
	}
	c.endpoint.SocketOptions().SetReceiveBufferSize(datagramBuffer, true)
}

package netstack

import (
	"net"
	"os"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/waiter"
)

// Marks of a connection until SetWatermarks.
const (
	defaultHigh = 256 << 10
	defaultLow  = 128 << 10
)

// Write queues p for the guest and returns when all of it is queued. It waits while more than the high mark is not
// acknowledged, until that is down to the low mark. It fails with syscall.ECONNRESET after the guest's RST,
// syscall.ETIMEDOUT when the guest stopped answering, and syscall.EPIPE after CloseWrite.
func (c *Conn) Write(p []byte) (int, error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	written := 0
	defer c.source.Reset(nil)
	for {
		if err := c.writeGate(); err != nil {
			return written, err
		}
		if c.stalled && !c.drained() {
			c.awaitWritable()
			continue
		}
		if written == len(p) {
			return written, nil
		}
		c.source.Reset(p[written:])
		n, err := c.endpoint.Write(&c.source, tcpip.WriteOptions{})
		written += int(n)
		if _, full := err.(*tcpip.ErrWouldBlock); full {
			c.stalled = true
		} else if err != nil {
			return written, c.failure("write", err)
		}
	}
}

// writeGate says why a write cannot continue.
func (c *Conn) writeGate() error {
	if isClosed(c.gone) {
		return c.opError("write", net.ErrClosed)
	}
	if c.writeDeadline.passed() {
		return c.opError("write", os.ErrDeadlineExceeded)
	}
	return nil
}

func (c *Conn) awaitWritable() {
	select {
	case <-c.writable:
	case <-c.writeDeadline.done():
	case <-c.gone:
	}
}

// drained says whether a stalled writer may continue, and otherwise makes sure that it is woken when it may.
//
// gVisor wakes writers when the queue shrinks to less than half of the send buffer's size: while we wait, that size is
// twice the low mark, and the high mark otherwise. Acknowledgements are not processed while we hold the endpoint's lock,
// so that none is missed in between.
func (c *Conn) drained() bool {
	if !c.drainedTo() {
		return false
	}
	c.stalled = false
	c.drainedOnce()
	high, _ := c.mark()
	c.endpoint.SocketOptions().SetSendBufferSize(int64(high), false)
	return true
}

func (c *Conn) drainedTo() bool {
	_, low := c.mark()
	c.endpoint.LockUser()
	defer c.endpoint.UnlockUser()
	if c.holds(low) {
		c.endpoint.SocketOptions().SetSendBufferSize(2*int64(low+1), false)
		return false
	}
	return true
}

// holds says whether more than n bytes are not acknowledged. It leaves the send buffer's size changed: gVisor does not
// tell how much it holds, but whether that is less than this size. The endpoint must be locked.
func (c *Conn) holds(n int) bool {
	c.endpoint.SocketOptions().SetSendBufferSize(int64(n)+1, false)
	return c.endpoint.Readiness(waiter.WritableEvents)&waiter.WritableEvents == 0
}

// SetWatermarks sets how many bytes that Write has accepted may be unacknowledged by the guest: Write blocks when
// there are high, until there are low; less while Config.Memory has not enough. high is at least 1, low from 0 to high-1; other values are brought into this range.
func (c *Conn) SetWatermarks(high, low int) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	c.high = max(high, 1)
	c.low = min(max(low, 0), c.high-1)
	c.beginSending()
	if !c.stalled {
		high, _ := c.mark()
		c.endpoint.SocketOptions().SetSendBufferSize(int64(high), true)
	}
}

// Unacked is how many bytes Write has accepted that the guest has not acknowledged yet. After CloseWrite it is not
// known, and 0: [Conn.State] leaves FIN_WAIT_1 or LAST_ACK when everything is acknowledged.
func (c *Conn) Unacked() int {
	c.endpoint.LockUser()
	defer c.endpoint.UnlockUser()
	size := c.endpoint.SocketOptions().GetSendBufferSize()
	defer c.endpoint.SocketOptions().SetSendBufferSize(size, false)
	most := 1
	for c.holds(most) {
		most *= 2
	}
	least := 0
	for least < most {
		if middle := (least + most) / 2; c.holds(middle) {
			least = middle + 1
		} else {
			most = middle
		}
	}
	return least
}

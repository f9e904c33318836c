package netstacktest

import (
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"time"
)

// HeaderSize is that of a virtio_net_hdr with num_buffers (Virtio 1.2, section 5.1.6).
const HeaderSize = 12

// wireBytes is how much a wire holds each way before writers wait.
const wireBytes = 1 << 20

// Wire is an in-memory link in QEMU's framing: 32-bit big-endian length, then the frame. The network's end is an
// io.ReadWriter for Run; the guest's end takes and gives whole frames.
type Wire struct{ toGuest, toNetwork *pipe }

// NewWire returns a wire that carries nothing yet.
func NewWire() *Wire { return &Wire{toGuest: newPipe(), toNetwork: newPipe()} }

// Host is the network's end, for netstack.Network.Run. Closing it ends the wire.
func (w *Wire) Host() io.ReadWriteCloser { return hostEnd{w} }

type hostEnd struct{ wire *Wire }

func (h hostEnd) Read(p []byte) (int, error)  { return h.wire.toNetwork.Read(p) }
func (h hostEnd) Write(p []byte) (int, error) { return h.wire.toGuest.Write(p) }
func (h hostEnd) Close() error                { return h.wire.Close() }

// Send gives the network one frame (with its virtio_net_hdr, if the link has them). It waits for room.
func (w *Wire) Send(frame []byte) error {
	return w.SendRaw(appendFrame(make([]byte, 0, 4+len(frame)), frame))
}

func appendFrame(b, frame []byte) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(frame))), frame...)
}

// SendRaw gives the network bytes that may be no frames at all.
func (w *Wire) SendRaw(b []byte) error {
	_, err := w.toNetwork.Write(b)
	return err
}

// Receive waits for one frame of the network's. One goroutine at a time may receive.
func (w *Wire) Receive() ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(w.toGuest, size[:]); err != nil {
		return nil, err
	}
	frame := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err := io.ReadFull(w.toGuest, frame)
	return frame, err
}

// ErrTimeout is ReceiveWithin's when nothing came.
var ErrTimeout = errors.New("no frame came")

// ReceiveWithin is Receive with a limit for the wait until the frame's first byte.
func (w *Wire) ReceiveWithin(limit time.Duration) ([]byte, error) {
	if !w.toGuest.wait(limit) {
		return nil, ErrTimeout
	}
	return w.Receive()
}

// Close ends the wire: both ends read io.EOF behind what was sent.
func (w *Wire) Close() error {
	w.toGuest.close()
	w.toNetwork.close()
	return nil
}

// pipe is a bounded stream of bytes.
type pipe struct {
	mu      sync.Mutex
	changed sync.Cond
	bytes   []byte // a ring
	start   int
	size    int
	closed  bool
}

func newPipe() *pipe {
	p := &pipe{}
	p.changed.L = &p.mu
	return p
}

func (p *pipe) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.size == 0 && !p.closed && len(b) > 0 {
		p.changed.Wait()
	}
	if p.size == 0 && len(b) > 0 {
		return 0, io.EOF
	}
	n := min(len(b), p.size)
	first := copy(b[:n], p.bytes[p.start:min(p.start+n, len(p.bytes))])
	copy(b[first:n], p.bytes)
	p.start, p.size = (p.start+n)%max(len(p.bytes), 1), p.size-n
	p.changed.Broadcast()
	return n, nil
}

func (p *pipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	written := 0
	for written < len(b) {
		for p.size == wireBytes && !p.closed {
			p.changed.Wait()
		}
		if p.closed {
			return written, io.ErrClosedPipe
		}
		written += p.put(b[written:])
		p.changed.Broadcast()
	}
	return written, nil
}

// put copies what fits.
func (p *pipe) put(b []byte) int {
	p.grow(min(p.size+len(b), wireBytes))
	n := min(len(b), len(p.bytes)-p.size)
	end := (p.start + p.size) % len(p.bytes)
	first := copy(p.bytes[end:], b[:n])
	copy(p.bytes, b[first:n])
	p.size += n
	return n
}

// grow makes the ring hold n bytes: most wires of tests carry little.
func (p *pipe) grow(n int) {
	if n <= len(p.bytes) {
		return
	}
	larger := make([]byte, min(max(n, 2*len(p.bytes), 4096), wireBytes))
	first := copy(larger[:p.size], p.bytes[p.start:min(p.start+p.size, len(p.bytes))])
	copy(larger[first:p.size], p.bytes)
	p.bytes, p.start = larger, 0
}

// wait says whether there is something to read (the end counts) within limit.
func (p *pipe) wait(limit time.Duration) bool {
	over := false
	timer := time.AfterFunc(limit, func() {
		p.mu.Lock()
		over = true
		p.mu.Unlock()
		p.changed.Broadcast()
	})
	defer timer.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.size == 0 && !p.closed && !over {
		p.changed.Wait()
	}
	return p.size > 0 || p.closed
}

func (p *pipe) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.changed.Broadcast()
}

package mount

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"agentvm/internal/host/budget"
	"agentvm/internal/host/errno"
)

// Relay connects one virtio-fs device with one server after another, of which each may be in a process of its own. The device outlives them: its
// stream never ends because of a server.
//
//	guest ── device ── requests ──► forward ──► server, or without one: EIO at once
//	                ◄── replies ─── Attach's goroutine ◄── whole, of known requests ── server
//
// A request is answered once: by the server, or with EIO when that ends. Neither side is trusted: of the guest only the framing is looked at, as
// the server looks at the rest; a server that sends what is not a reply to a request ends.
type Relay struct {
	device io.ReadWriteCloser
	memory *budget.Budget

	sending sync.Mutex // one message to the device at a time

	mu      sync.Mutex
	server  *Attachment         // nil: there is none
	pending map[uint64]struct{} // requests that the server has not answered, by their number
	mounted bool                // the guest uses the device: FUSE_INIT has gone to a server, which has not refused it, and no FUSE_DESTROY since
	init    uint64              // the number of that FUSE_INIT
	changed chan struct{}       // closed and replaced when mounted changes
	closed  bool
	readers sync.WaitGroup
}

// Attachment is a server that a Relay has.
type Attachment struct {
	relay *Relay
	conn  io.ReadWriteCloser
	once  sync.Once
	ended chan struct{}
	err   error
}

const (
	// maxUnanswered bounds the requests that a server has not answered. A guest's kernel asks for less than a tenth of it.
	maxUnanswered = 4096
	// relayMemory is what a server costs: a message each way.
	relayMemory = 2 * maxMessage
)

// Errors of Attach, and reasons of an Attachment's end.
var (
	ErrAttached   = errors.New("the device has a server")
	errServerGone = errors.New("its server has ended")
	errDetached   = errors.New("its server was detached")
	errReply      = errors.New("its server has sent what is no reply to a request")
)

// NewRelay makes a relay for a device. memory is charged with what a server costs; it may be nil.
func NewRelay(device io.ReadWriteCloser, memory *budget.Budget) *Relay {
	return &Relay{device: device, memory: memory, pending: make(map[uint64]struct{}), changed: make(chan struct{})}
}

// Close ends the device and the server, if any. It does not wait for Serve.
func (r *Relay) Close() {
	r.mu.Lock()
	r.closed = true
	server := r.server
	r.mu.Unlock()
	r.device.Close() // frees a reply that waits to be sent
	if server != nil {
		server.end(errDetached)
	}
}

// Serve carries requests until the device ends or Close, and then closes both. A server that does not read keeps it until Close.
func (r *Relay) Serve() error {
	err := r.forward()
	r.Close()
	r.readers.Wait()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) {
		return nil
	}
	return err
}

// forward reads requests of the device.
func (r *Relay) forward() error {
	in := bufio.NewReader(r.device)
	var buffer []byte
	for {
		message, err := readFrame(in, requestHeader, &buffer)
		if err != nil {
			return err
		}
		op, unique := binary.LittleEndian.Uint32(message[4:]), binary.LittleEndian.Uint64(message[8:])
		server, refused := r.note(op, unique)
		if server != nil {
			if _, err := server.conn.Write(message); err != nil {
				server.end(errServerGone) // which answers it
			}
		} else if refused != 0 || answered(op) {
			r.answer(unique, refused)
		}
		if len(message) > smallBuffer {
			buffer = nil // large ones are rare
		}
	}
}

// answered reports whether a request has a reply.
func answered(op uint32) bool { return op != opForget && op != opBatchForget && op != opInterrupt }

// note notes a request that is about to go to the server, and returns that; or with which error the request is refused, 0 being success.
func (r *Relay) note(op uint32, unique uint64) (server *Attachment, refused errno.Errno) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if op == opDestroy {
		r.setMountedLocked(false)
	}
	if r.server == nil {
		if op == opDestroy || !answered(op) {
			return nil, 0
		}
		return nil, errno.EIO
	}
	if !answered(op) {
		return r.server, 0
	}
	if _, twice := r.pending[unique]; twice || len(r.pending) >= maxUnanswered {
		return nil, errno.EIO
	}
	r.pending[unique] = struct{}{}
	if op == opInit {
		r.init = unique
		r.setMountedLocked(true)
	}
	return r.server, 0
}

func (r *Relay) setMountedLocked(to bool) {
	if r.mounted != to {
		r.mounted = to
		close(r.changed)
		r.changed = make(chan struct{})
	}
}

// Mounted reports whether the guest uses the device, as far as it has told; the channel is closed when that has changed.
func (r *Relay) Mounted() (mounted bool, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mounted, r.changed
}

// ContinueMounted says, before Serve, that the guest uses the device already, with a server that is no more.
func (r *Relay) ContinueMounted() { r.mounted = true }

// Attach gives the device a server, which belongs to the relay from now on. It must be ended with Detach, also when it has ended by itself.
func (r *Relay) Attach(conn io.ReadWriteCloser) (*Attachment, error) {
	a := &Attachment{relay: r, conn: conn, ended: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		conn.Close()
		return nil, io.ErrClosedPipe
	case r.server != nil:
		conn.Close()
		return nil, ErrAttached
	}
	r.server = a
	r.memory.Charge(relayMemory)
	r.readers.Go(a.receive)
	return a, nil
}

// receive carries replies until the server ends.
func (a *Attachment) receive() {
	in := bufio.NewReader(a.conn)
	var buffer []byte
	for {
		message, err := readFrame(in, replyHeader, &buffer)
		if errors.Is(err, errFrame) {
			a.end(errReply)
			return
		}
		if err != nil {
			a.end(errServerGone)
			return
		}
		if !a.relay.take(a, binary.LittleEndian.Uint64(message[8:]), binary.LittleEndian.Uint32(message[4:]) != 0) {
			a.end(errReply)
			return
		}
		a.relay.send(message)
		if len(message) > smallBuffer {
			buffer = nil
		}
	}
}

// take takes the request that a server answers out of those that wait, if it is there.
func (r *Relay) take(a *Attachment, unique uint64, refused bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, found := r.pending[unique]
	if r.server != a || !found {
		return false
	}
	delete(r.pending, unique)
	if refused && unique == r.init { // the guest's kernel sends no FUSE_DESTROY then
		r.setMountedLocked(false)
	}
	return true
}

// end ends the server, and has what it has not answered answered. The first reason counts.
func (a *Attachment) end(why error) {
	a.once.Do(func() {
		a.conn.Close()
		r := a.relay
		r.mu.Lock()
		left := r.pending
		r.pending = make(map[uint64]struct{})
		r.server = nil
		if _, waits := left[r.init]; waits {
			r.setMountedLocked(false)
		}
		r.mu.Unlock()
		r.memory.Give(relayMemory)
		// Not here, for the guest may take no replies. receive, which waits for this function, is a reader too: Serve has not waited yet.
		r.readers.Go(func() {
			for unique := range left {
				r.answer(unique, errno.EIO)
			}
		})
		a.err = why
		close(a.ended)
	})
}

// Detach ends the server: every request gets EIO from now on.
func (a *Attachment) Detach() { a.end(errDetached) }

// Ended is closed when the server has ended; Err then says why.
func (a *Attachment) Ended() <-chan struct{} { return a.ended }

// Err returns why the server has ended, or nil when it has not.
func (a *Attachment) Err() error {
	select {
	case <-a.ended:
		return a.err
	default:
		return nil
	}
}

// answer answers a request in the server's place.
func (r *Relay) answer(unique uint64, number errno.Errno) {
	out := encoder{buf: make([]byte, replyHeader)}
	out.header(number, unique)
	r.send(out.buf)
}

// send gives the device one message. When that fails the device has ended, and forward hears of it.
func (r *Relay) send(message []byte) {
	r.sending.Lock()
	defer r.sending.Unlock()
	_, _ = r.device.Write(message)
}

// readFrame reads one message with a header of so many bytes, into buffer, which it replaces by a larger one where it must.
func readFrame(in *bufio.Reader, header int, buffer *[]byte) ([]byte, error) {
	first, err := in.Peek(4)
	if err != nil {
		if len(first) > 0 {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	n := binary.LittleEndian.Uint32(first)
	if n < uint32(header) || n > maxMessage {
		return nil, fmt.Errorf("%w: %d bytes, limit %d", errFrame, n, maxMessage)
	}
	if int(n) > len(*buffer) {
		*buffer = make([]byte, max(int(n), smallBuffer))
	}
	message := (*buffer)[:n]
	if _, err := io.ReadFull(in, message); err != nil {
		return nil, io.ErrUnexpectedEOF
	}
	return message, nil
}

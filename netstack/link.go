package netstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// The goroutines of a running link:
//
//	run (the caller's)   link.Read ─► framer ─► capture ─► filter ─► gVisor, or echo
//	writer               queue ─► link.Write, one call for all that is there
//	capture's, if any    frames ─► pcap
//
// The first thing that goes wrong, ends or is closed decides what run returns; it closes queue and link, which unblocks
// the rest, and run waits for all.

var errRunTwice = errors.New("network link: Run was called before; make a new Network")

// run moves frames until the link or ctx ends or close is called. It may be called once. It returns nil when the link
// ended between two frames or close was called, ctx's error when that was first.
//
// Reads and writes that block are only unblocked by closing the link: a link that is an io.Closer is closed when run
// ends. With any other, run returns after its last Read and Write have.
func (e *linkEndpoint) run(ctx context.Context, link io.ReadWriter) error {
	end := newEnding(e.queue, link)
	if err := e.begin(end.stop); err != nil {
		return err
	}
	finish := e.startGoroutines(ctx, link, end)
	end.stop(e.receive(link))
	finish()
	for range end.dropped {
		e.counters.drop(DropClosed)
	}
	return end.err
}

// begin makes sure that there is one run, and gives close its way to end it.
func (e *linkEndpoint) begin(stop func(error)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.started {
		return errRunTwice
	}
	if e.closed {
		return fmt.Errorf("network link: %w", net.ErrClosed)
	}
	e.started, e.stop = true, stop
	return nil
}

// close ends run and every waiting send. What is sent afterwards is dropped. It does not wait for run to return.
func (e *linkEndpoint) close() {
	e.mu.Lock()
	e.closed = true
	stop := e.stop
	e.mu.Unlock()
	if stop != nil {
		stop(nil)
		return
	}
	for range e.queue.close() {
		e.counters.drop(DropClosed)
	}
}

// startGoroutines starts all but the reading one. The function that it returns waits for them, after end.stop.
func (e *linkEndpoint) startGoroutines(ctx context.Context, link io.Writer, end *ending) (finish func()) {
	var group sync.WaitGroup
	e.queue.start()
	group.Go(func() { end.stop(e.transmit(link)) })
	group.Go(func() {
		select {
		case <-ctx.Done():
			end.stop(ctx.Err())
		case <-end.done:
		}
	})
	if e.capture != nil {
		go e.capture.run() // stop waits for it
	}
	return func() {
		group.Wait()
		if e.capture != nil {
			e.capture.stop()
		}
	}
}

// ending is how the first of run's goroutines to stop stops the others.
type ending struct {
	queue   *sendQueue
	link    any
	once    sync.Once
	done    chan struct{}
	err     error // valid after done
	dropped int   // frames that were queued; valid after done
}

func newEnding(queue *sendQueue, link any) *ending {
	return &ending{queue: queue, link: link, done: make(chan struct{})}
}

func (d *ending) stop(err error) {
	d.once.Do(func() {
		d.err = err
		d.dropped = d.queue.close()
		if c, ok := d.link.(io.Closer); ok {
			_ = c.Close() // nothing of the guest is lost by it that was not lost already
		}
		close(d.done)
	})
	<-d.done
}

// transmit writes what senders queue.
func (e *linkEndpoint) transmit(link io.Writer) error {
	var batch []byte
	for {
		if batch = e.queue.take(batch); batch == nil {
			return nil
		}
		if _, err := link.Write(batch); err != nil {
			return linkError("write", err)
		}
	}
}

// receive reads frames and hands them on.
func (e *linkEndpoint) receive(link io.Reader) error {
	frames := newFramer(link, e.config.header)
	for {
		head, frame, err := frames.next()
		if err != nil {
			return linkError("read", err)
		}
		e.counters.framesIn.Add(1)
		e.counters.bytesIn.Add(uint64(len(frame)))
		if e.capture != nil && len(frame) >= frameMin {
			e.capture.record(parseOffload(head), frame)
		}
		if why := e.handle(parseOffload(head), frame); why != "" {
			e.counters.drop(why)
		}
	}
}

// linkError is nil for a link that was closed or that came to its end.
func linkError(what string, err error) error {
	for _, closed := range []error{io.EOF, io.ErrClosedPipe, net.ErrClosed, os.ErrClosed} {
		if errors.Is(err, closed) {
			return nil
		}
	}
	return fmt.Errorf("network link: %s: %w", what, err)
}

// handle gives one frame to whom it is for.
func (e *linkEndpoint) handle(o offload, frame []byte) DropReason {
	p, why := e.filter.check(o, frame)
	if why != "" {
		if p.expired && e.config.expired != nil {
			e.config.expired(p.quote())
		}
		return why
	}
	if p.solicits && e.config.solicited != nil {
		e.config.solicited(p.source)
	}
	if e.answersARP(&p) || e.answersSolicitation(&p) {
		return ""
	}
	if e.config.datagram != nil {
		if from, to, ok := p.datagram(); ok && !e.config.datagram(from, to) {
			return DropSocketFull
		}
	}
	if !p.echo {
		return e.deliver(&p)
	}
	if e.config.echo == nil {
		return DropEcho
	}
	e.counters.echoes.Add(1)
	e.config.echo(p.echoRequest())
	return ""
}

// deliver copies the frame into gVisor's pooled buffers and hands it over, on this goroutine. gVisor processes TCP
// segments on goroutines of its own.
func (e *linkEndpoint) deliver(p *packet) DropReason {
	dispatcher := e.attached()
	if dispatcher == nil {
		return DropNoStack
	}
	packet := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: makeBuffer(p.frame)})
	defer packet.DecRef()
	if !e.ParseHeader(packet) {
		return DropTruncated
	}
	packet.PktType = p.kind
	dispatcher.DeliverNetworkPacket(p.ethertype, packet)
	return ""
}

// makeBuffer copies a frame. gVisor pools views of up to 64 KiB; the largest frames exceed that by their Ethernet
// header, which then gets a view of its own.
func makeBuffer(frame []byte) buffer.Buffer {
	if len(frame) <= buffer.MaxChunkSize {
		return buffer.MakeWithView(buffer.NewViewWithData(frame))
	}
	b := buffer.MakeWithView(buffer.NewViewWithData(frame[:frameMin]))
	_ = b.Append(buffer.NewViewWithData(frame[frameMin:]))
	return b
}

package netstack

import (
	"bufio"
	"encoding/binary"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

const (
	captureBuffer = 4 << 20         // bytes of frames that wait for the capture's writer
	captureGrace  = 2 * time.Second // for a writer that still writes when the network ends
	snapLength    = 256 << 10       // larger than any frame; what tcpdump writes

	recordHeader = 12 // of a record in the buffer: time in ns, length
)

// capture writes every frame of the link to a pcap file (classic format, microseconds, LINKTYPE_ETHERNET), frames that
// the filter drops included.
//
//	link ─record─► pending ─► writing ─► io.Writer
//	               (bounded)   on the capture's own goroutine
//
// The format is written here and not by gopacket, because that brings tables of 5 MB which every process would keep and every
// garbage collection would look through.
//
// Frames are as they are on the link, without their virtio_net_hdr: with offload, TCP packets of up to 64 KiB whose
// checksum is that of the pseudo header only. (Wireshark calls it partial.)
//
// record never waits. Frames for which there is no room, or that come after the writer has failed, are counted as lost.
type capture struct {
	to     io.Writer
	clock  tcpip.Clock
	logger *slog.Logger
	done   chan struct{} // closed when the goroutine has ended

	frames, lost atomic.Uint64

	mu      sync.Mutex
	changed sync.Cond
	pending []byte // records
	queued  uint64 // records so far
	stopped bool
	failed  bool
}

func newCapture(to io.Writer, clock tcpip.Clock, logger *slog.Logger) *capture {
	c := &capture{to: to, clock: clock, logger: logger, done: make(chan struct{})}
	c.changed.L = &c.mu
	return c
}

// record copies a frame. It may be called from any goroutine.
func (c *capture) record(o offload, frame []byte) {
	now := c.clock.Now().UnixNano()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed || c.stopped || len(c.pending)+recordHeader+len(frame) > captureBuffer {
		c.lost.Add(1)
		return
	}
	c.pending = binary.LittleEndian.AppendUint64(c.pending, uint64(now))
	c.pending = binary.LittleEndian.AppendUint32(c.pending, uint32(len(frame)))
	c.pending = append(c.pending, frame...)
	if copied := c.pending[len(c.pending)-len(frame):]; o.needsChecksum && o.fits(copied) {
		o.complete(copied) // what the guest's device, or the gateway's, does not need; who reads the file does
	}
	c.queued++
	c.changed.Signal()
}

// run writes until stop.
func (c *capture) run() {
	defer close(c.done)
	buffered := bufio.NewWriterSize(c.to, 64<<10)
	_, err := buffered.Write(captureHeader())
	if err == nil {
		err = buffered.Flush()
	}
	var batch []byte
	for err == nil {
		if batch = c.take(batch); len(batch) == 0 {
			return
		}
		var frames uint64
		if frames, err = c.write(buffered, batch); err == nil {
			err = buffered.Flush() // so that a capture can be watched, and is whole if the host crashes
		}
		if err == nil {
			c.frames.Add(frames)
		}
	}
	c.fail(err)
}

// take waits for records and gives their bytes; none after stop. spare is the last batch.
func (c *capture) take(spare []byte) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.pending) == 0 && !c.stopped {
		c.changed.Wait()
	}
	batch := c.pending
	c.pending = spare[:0]
	return batch
}

// captureHeader begins the file (draft-ietf-opsawg-pcap section 4): magic number for microseconds, version 2.4, time zone,
// accuracy, longest frame, LINKTYPE_ETHERNET.
func captureHeader() []byte {
	h := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	h = binary.LittleEndian.AppendUint16(h, 2)
	h = binary.LittleEndian.AppendUint16(h, 4)
	for _, word := range []uint32{0, 0, snapLength, 1} {
		h = binary.LittleEndian.AppendUint32(h, word)
	}
	return h
}

// write writes packet records (section 5): seconds, microseconds, bytes in the file, bytes of the frame.
func (c *capture) write(w io.Writer, batch []byte) (frames uint64, err error) {
	for len(batch) > 0 {
		at := time.Duration(binary.LittleEndian.Uint64(batch))
		length := binary.LittleEndian.Uint32(batch[8:])
		var header []byte
		for _, word := range []uint32{uint32(at / time.Second), uint32(at % time.Second / time.Microsecond), length, length} {
			header = binary.LittleEndian.AppendUint32(header, word)
		}
		frame := batch[recordHeader : recordHeader+int(length)]
		if _, err := w.Write(header); err != nil {
			return frames, err
		}
		if _, err := w.Write(frame); err != nil {
			return frames, err
		}
		frames++
		batch = batch[recordHeader+len(frame):]
	}
	return frames, nil
}

// fail ends the capture; the network continues.
func (c *capture) fail(err error) {
	c.mu.Lock()
	c.failed, c.pending = true, nil
	c.lost.Add(c.queued - c.frames.Load())
	c.mu.Unlock()
	c.logger.Warn("the network's capture has ended: it cannot be written", "error", err)
}

// stop writes what is pending and ends the goroutine. A writer that does not return keeps its goroutine: there is no
// way to interrupt it, and it must not hold the VM's end up.
func (c *capture) stop() {
	c.mu.Lock()
	c.stopped = true
	c.changed.Signal()
	c.mu.Unlock()
	late := make(chan struct{})
	timer := c.clock.AfterFunc(captureGrace, func() { close(late) })
	defer timer.Stop()
	select {
	case <-c.done:
	case <-late:
		c.logger.Warn("the network's capture is incomplete: its writer does not return", "waited", captureGrace)
	}
}

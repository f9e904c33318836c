package netstack

import (
	"slices"
	"testing"
)

// FuzzLinkFrame gives frames with any virtio_net_hdr to the filter and, if admitted, to gVisor behind it. It fails on
// a panic, on an admitted frame that is not the guest's, and on more bytes towards the guest than the queue may hold.
func FuzzLinkFrame(f *testing.F) {
	for _, test := range filterTests() {
		if len(test.frame) < 3000 {
			f.Add(virtioHeader(0, 0, 0, 0, 0), test.frame)
			f.Add(virtioHeader(1, 1, 1460, 34, 16), test.frame)
		}
	}
	config := linkDefaults(f)
	config.header, config.echo = true, func(echoRequest) {}
	e := newLink(config)
	s := newLinkStack(f, e, prefixOf(addrGateway, 24), prefixOf(addrGateway6, 64))
	if err := s.SetPromiscuousMode(1, true); err != nil {
		f.Fatal(err)
	}
	if err := s.SetSpoofing(1, true); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, head, frame []byte) {
		if len(frame) > frameMax {
			return // the framer's affair
		}
		o := parseOffload(head)
		p, why := e.filter.check(o, slices.Clone(frame))
		if why == "" && (!slices.Equal(p.frame[6:12], macGuest) || len(p.frame) > len(frame) || p.transportAt > len(p.frame)) {
			t.Errorf("admitted %d bytes of %x as %+v", len(p.frame), frame, p)
		}
		if why == "" && p.version == 4 && p.source != addrGuest && !p.source.IsUnspecified() {
			t.Errorf("admitted a source of %v", p.source)
		}
		e.handle(o, frame)
		if n := discard(e.queue); n > e.queue.limit+frameMax {
			t.Errorf("%d bytes were queued", n)
		}
	})
}

// FuzzLinkStream gives a whole stream to the reader, the filter and gVisor.
func FuzzLinkStream(f *testing.F) {
	var frames [][]byte
	for _, test := range filterTests() {
		if len(test.frame) < 500 {
			frames = append(frames, test.frame)
		}
	}
	f.Add(streamOf(nil, frames[:10]...), false)
	f.Add(streamOf(virtioHeader(0, 0, 0, 0, 0), frames[10:20]...), true)
	f.Add(streamOf(virtioHeader(1, 1, 1000, 34, 16), frames[20:30]...), true)
	f.Add([]byte{0, 0, 0, 0, 255, 255, 255, 255}, false)
	config := linkDefaults(f)
	var links [2]*linkEndpoint
	for i := range links {
		config.header = i == 1
		links[i] = newLink(config)
		newLinkStack(f, links[i], prefixOf(addrGateway, 24), prefixOf(addrGateway6, 64))
	}
	f.Fuzz(func(t *testing.T, stream []byte, header bool) {
		e := links[0]
		if header {
			e = links[1]
		}
		before := e.stats().FramesFromGuest
		_ = e.receive(&pieceReader{stream, 1000})
		if n := e.stats().FramesFromGuest - before; n > uint64(len(stream)/prefixSize) {
			t.Errorf("%d frames out of %d bytes", n, len(stream))
		}
	})
}

// discard empties a queue without a reader, and gives the number of bytes.
func discard(q *sendQueue) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := len(q.pending)
	q.pending, q.frames = q.pending[:0], 0
	return n
}

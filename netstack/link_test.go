package netstack

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentvm/wasi"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// scriptedLink reads what it is given and then blocks until it is closed, or fails.
type scriptedLink struct {
	io.Reader
	readErr, writeErr error // readErr nil: block
	closed            chan struct{}
	once              sync.Once
}

func newScriptedLink(read []byte, readErr, writeErr error) *scriptedLink {
	return &scriptedLink{Reader: bytes.NewReader(read), readErr: readErr, writeErr: writeErr, closed: make(chan struct{})}
}

func (s *scriptedLink) Read(p []byte) (int, error) {
	if n, err := s.Reader.Read(p); err == nil {
		return n, nil
	}
	if s.readErr != nil {
		return 0, s.readErr
	}
	<-s.closed
	return 0, net.ErrClosed
}

func (s *scriptedLink) Write(p []byte) (int, error) {
	if s.writeErr != nil {
		return 0, s.writeErr
	}
	<-s.closed // a guest that never reads
	return 0, io.ErrClosedPipe
}

func (s *scriptedLink) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

func TestRunEnds(t *testing.T) {
	frame := testFrame{transport: protoTCP, payload: tcpSegment(5)}.bytes()
	broken := errors.New("broken")
	tests := []struct {
		name string
		link func() *scriptedLink // made inside the bubble
		stop func(*linkEndpoint, context.CancelFunc)
		send bool
		want error
		says string
	}{
		{name: "end of the link", link: func() *scriptedLink { return newScriptedLink(streamOf(nil, frame), io.EOF, nil) }},
		{name: "end of the link while a write blocks", link: func() *scriptedLink { return newScriptedLink(streamOf(nil, frame), io.EOF, nil) }, send: true},
		{name: "the machine closed", link: func() *scriptedLink { return newScriptedLink(nil, io.ErrClosedPipe, nil) }},
		{name: "the machine closed while writing", link: func() *scriptedLink { return newScriptedLink(nil, nil, io.ErrClosedPipe) }, send: true},
		{name: "end inside a frame", link: func() *scriptedLink { return newScriptedLink(streamOf(nil, frame)[:9], io.EOF, nil) }, want: io.ErrUnexpectedEOF},
		{name: "garbage", link: func() *scriptedLink { return newScriptedLink([]byte("garbage"), nil, nil) }, says: "lost its framing"},
		{name: "read fails", link: func() *scriptedLink { return newScriptedLink(nil, broken, nil) }, want: broken, says: "read"},
		{name: "write fails", link: func() *scriptedLink { return newScriptedLink(nil, nil, broken) }, send: true, want: broken, says: "write"},
		{name: "close", link: func() *scriptedLink { return newScriptedLink(nil, nil, nil) }, stop: func(e *linkEndpoint, _ context.CancelFunc) { e.close() }},
		{name: "close while a write blocks", link: func() *scriptedLink { return newScriptedLink(nil, nil, nil) }, send: true, stop: func(e *linkEndpoint, _ context.CancelFunc) { e.close() }},
		{name: "cancel", link: func() *scriptedLink { return newScriptedLink(nil, nil, nil) }, stop: func(_ *linkEndpoint, cancel context.CancelFunc) { cancel() }, want: context.Canceled},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				e, link := newLink(linkDefaults(t)), test.link()
				result := make(chan error, 1)
				go func() { result <- e.run(ctx, link) }()
				if test.send {
					e.sendFrame(filled(60, 1))
				}
				synctest.Wait()
				if test.stop != nil {
					test.stop(e, cancel)
				}
				err := <-result
				if (test.want == nil && test.says == "") != (err == nil) || test.want != nil && !errors.Is(err, test.want) ||
					err != nil && !strings.Contains(err.Error(), test.says) {
					t.Errorf("run returned %v, want %v %s", err, test.want, test.says)
				}
				select {
				case <-link.closed:
				default:
					t.Error("the link is still open")
				}
				if e.sendFrame(filled(60, 1)) || e.stats().Dropped[DropClosed] == 0 {
					t.Errorf("a frame after run was taken; stats %v", e.stats())
				}
				if err := e.run(ctx, link); err == nil {
					t.Error("run could be called twice")
				}
			})
		})
	}
}

func TestRunAfterClose(t *testing.T) {
	e := newLink(linkDefaults(t))
	e.close()
	if err := e.run(t.Context(), newScriptedLink(nil, io.EOF, nil)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want %v", err, net.ErrClosed)
	}
}

// TestSendsBeforeRunAreKept has the stack talk before anybody moves frames.
func TestSendsBeforeRunAreKept(t *testing.T) {
	e := newLink(linkDefaults(t))
	if !e.sendFrame(filled(60, 1)) {
		t.Fatal("dropped")
	}
	stream := wasi.NewStream(1 << 10)
	go func() { _ = e.run(t.Context(), stream.Host()) }()
	_, got, err := newFramer(newMachineEnd(stream), false).next()
	if err != nil || !bytes.Equal(got, filled(60, 1)) {
		t.Errorf("got %v, %v", got, err)
	}
	e.close()
}

// packetOf makes a packet as gVisor hands it over, with the link header to come.
func packetOf(size int) *stack.PacketBuffer {
	p := stack.NewPacketBuffer(stack.PacketBufferOptions{
		ReserveHeaderBytes: header.EthernetMinimumSize, Payload: buffer.MakeWithData(filled(size, 1)),
	})
	p.NetworkProtocolNumber = header.IPv4ProtocolNumber
	return p
}

// send writes one packet and gives gVisor's error.
func send(e *linkEndpoint, size int) tcpip.Error {
	p := packetOf(size)
	defer p.DecRef()
	e.AddHeader(p)
	var list stack.PacketBufferList
	list.PushBack(p)
	_, err := e.WritePackets(list)
	return err
}

// TestGuestThatNeverReads bounds what such a guest costs: memory, the first sender's wait, and nothing after close.
func TestGuestThatNeverReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := linkDefaults(t)
		config.queueBytes, config.stall = 64<<10, testStall
		e := newLink(config)
		link := newScriptedLink(nil, nil, nil)
		var group sync.WaitGroup
		group.Go(func() { _ = e.run(context.Background(), link) })
		start := time.Now()
		sent := 0
		for send(e, 1000) == nil {
			sent++
			synctest.Wait() // until the writer has taken what it can
		}
		if most := config.queueBytes / 1000; sent > most {
			t.Errorf("%d packets of 1000 bytes were taken, at most %d fit", sent, most)
		}
		if took := time.Since(start); took != testStall {
			t.Errorf("the first sender gave up after %v, want %v", took, testStall)
		}
		err := send(e, 1000)
		if _, ok := err.(*tcpip.ErrNoBufferSpace); !ok || time.Since(start) != testStall {
			t.Errorf("the second sender got %v after %v, want %v at once", err, time.Since(start), &tcpip.ErrNoBufferSpace{})
		}
		if n := e.stats().Dropped[DropQueueFull]; n != 2 {
			t.Errorf("counted %d drops, want 2", n)
		}
		e.close()
		group.Wait()
		if _, ok := send(e, 1000).(*tcpip.ErrClosedForSend); !ok {
			t.Error("a packet was taken after close")
		}
	})
}

func TestPacketsThatAreNoFrames(t *testing.T) {
	e := newLink(linkDefaults(t))
	if _, ok := send(e, frameMax).(*tcpip.ErrMessageTooLong); !ok {
		t.Error("a packet that the machine cannot take was queued")
	}
	if e.sendFrame(filled(13, 0)) || e.sendFrame(filled(frameMax+1, 0)) {
		t.Error("a frame that the machine cannot take was queued")
	}
	if n := e.stats().Dropped[DropSendOversized]; n != 3 {
		t.Errorf("counted %d drops, want 3", n)
	}
}

// TestHandle looks at what becomes of frames between link and stack.
func TestHandle(t *testing.T) {
	ping := testFrame{transport: protoICMPv4, payload: echoMessage(8)}.bytes()
	solicitation := testFrame{to: groupMAC(allRouters()), source: addrGuestLL, destination: allRouters(), ttl: 255, transport: protoICMPv6, payload: icmpMessage(133, filled(4, 0)...)}.bytes()

	t.Run("echo", func(t *testing.T) {
		var got []echoRequest
		config := linkDefaults(t)
		config.echo = func(r echoRequest) { got = append(got, r) }
		e := newLink(config)
		if why := e.handle(offload{}, ping); why != "" || len(got) != 1 || got[0].destination != addrServer || e.stats().Echoes != 1 {
			t.Errorf("reason %q, echoes %v", why, got)
		}
	})
	t.Run("echo without a handler", func(t *testing.T) {
		if why := newLink(linkDefaults(t)).handle(offload{}, ping); why != DropEcho {
			t.Errorf("reason %q, want %q", why, DropEcho)
		}
	})
	t.Run("router solicitation", func(t *testing.T) {
		asked := 0
		config := linkDefaults(t)
		config.solicited = func(from netip.Addr) {
			if from == addrGuestLL {
				asked++
			}
		}
		newLink(config).handle(offload{}, solicitation)
		if asked != 1 {
			t.Errorf("the hook was called %d times for the guest", asked)
		}
	})
	t.Run("no stack", func(t *testing.T) {
		frame := testFrame{transport: protoTCP, payload: tcpSegment(0)}.bytes()
		if why := newLink(linkDefaults(t)).handle(offload{}, frame); why != DropNoStack {
			t.Errorf("reason %q, want %q", why, DropNoStack)
		}
	})
}

// TestRunCounts reads a stream of good, bad and short frames.
func TestRunCounts(t *testing.T) {
	stream := streamOf(virtioHeader(0, 0, 0, 0, 0),
		testFrame{from: macStranger}.bytes(), testFrame{from: macStranger}.bytes(),
		arpFrame(1, macGuest, addrGuest, addrServer), filled(13, 0))
	stream = append(stream, streamOf(nil, filled(11, 0), nil)...) // shorter than a virtio_net_hdr
	var file bytes.Buffer
	config := linkDefaults(t)
	config.header, config.capture = true, &file
	e := newLink(config)
	if err := e.run(t.Context(), newScriptedLink(stream, io.EOF, nil)); err != nil {
		t.Fatal(err)
	}
	s := e.stats()
	if s.FramesFromGuest != 6 || s.BytesFromGuest != 34+34+42+13 || s.CapturedFrames != 3 ||
		s.Dropped[DropSourceMAC] != 2 || s.Dropped[DropARP] != 1 || s.Dropped[DropTruncated] != 3 {
		t.Errorf("stats %+v", s)
	}
}

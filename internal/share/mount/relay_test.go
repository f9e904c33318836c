package mount

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentvm/internal/host/budget"
	"agentvm/internal/host/errno"
	"agentvm/internal/share/mount/fusetest"
)

// relayed is a relay that serves a device.
type relayed struct {
	*Relay
	guest  net.Conn // the guest's end of the device
	served chan error
}

// relay begins a relay, which ends with the test.
func relay(t testing.TB, memory *budget.Budget) *relayed {
	device, guest := net.Pipe()
	r := &relayed{NewRelay(device, memory), guest, make(chan error, 1)}
	go func() { r.served <- r.Serve() }()
	t.Cleanup(func() {
		guest.Close()
		r.Close()
		select {
		case <-r.served:
		case <-time.After(20 * time.Second):
			t.Error("Serve did not return after the device ended")
		}
	})
	return r
}

// begin attaches a connection, of which it returns the other end.
func (r *relayed) begin(t testing.TB) (*Attachment, net.Conn) {
	t.Helper()
	conn, server := net.Pipe()
	a, err := r.Attach(conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return a, server
}

// serve attaches a server of a directory.
func (r *relayed) serve(t testing.TB, dir string) *Attachment {
	t.Helper()
	server, err := NewServer(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	a, conn := r.begin(t)
	done := make(chan error, 1)
	go func() { done <- server.Serve(context.Background(), conn) }()
	t.Cleanup(func() {
		a.Detach()
		<-done
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// ask sends one request and returns the number of its reply's error.
func (r *relayed) ask(t testing.TB, op uint32, unique uint64) errno.Errno {
	t.Helper()
	r.send(t, op, unique)
	return r.answered(t, unique)
}

func (r *relayed) send(t testing.TB, op uint32, unique uint64) {
	t.Helper()
	if _, err := r.guest.Write(fusetest.Frame(op, unique, rootID, nil)); err != nil {
		t.Fatal(err)
	}
}

func (r *relayed) answered(t testing.TB, unique uint64) errno.Errno {
	t.Helper()
	r.guest.SetReadDeadline(time.Now().Add(20 * time.Second))
	got, number, _, err := fusetest.ReadReply(r.guest)
	if err != nil || got != unique {
		t.Fatalf("the reply to request %d has number %d, %v", unique, got, err)
	}
	return number
}

func (r *relayed) wantMounted(t *testing.T, want bool) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		mounted, changed := r.Mounted()
		if mounted == want {
			return
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("Mounted is still %v", mounted)
		}
	}
}

// TestRelayWithoutServer: a device without a server lets no program wait.
func TestRelayWithoutServer(t *testing.T) {
	r := relay(t, nil)
	for _, op := range []uint32{opInit, opGetattr, opHostEvents, 1 << 30} {
		if number := r.ask(t, op, uint64(op)); number != errno.EIO {
			t.Errorf("request %d: %v, want EIO", op, number)
		}
	}
	for _, op := range []uint32{opForget, opBatchForget, opInterrupt} { // the next reply shows that these have none
		r.send(t, op, 7)
	}
	if number := r.ask(t, opDestroy, 8); number != 0 {
		t.Errorf("FUSE_DESTROY: %v, want success", number)
	}
	r.wantMounted(t, false)
}

// TestRelayServerEnds: its requests get EIO, the device stays, and another server takes its place.
func TestRelayServerEnds(t *testing.T) {
	memory := budget.New(1<<30, nil)
	r := relay(t, memory)
	a, server := r.begin(t)
	unwanted, end := net.Pipe()
	if _, err := r.Attach(unwanted); !errors.Is(err, ErrAttached) {
		t.Errorf("a second server: %v, want %v", err, ErrAttached)
	}
	if _, err := end.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("its connection: %v, want it closed", err)
	}
	r.send(t, opInit, 2)
	if _, err := io.ReadFull(server, make([]byte, requestHeader)); err != nil {
		t.Fatal(err)
	}
	r.wantMounted(t, true)
	if used := memory.Use().Used; used != relayMemory {
		t.Errorf("a server costs %d bytes, want %d", used, relayMemory)
	}
	server.Close()
	if number := r.answered(t, 2); number != errno.EIO {
		t.Errorf("the request under way: %v, want EIO", number)
	}
	<-a.Ended()
	if !errors.Is(a.Err(), errServerGone) {
		t.Errorf("the reason: %v", a.Err())
	}
	r.wantMounted(t, false) // its FUSE_INIT has failed
	if number := r.ask(t, opGetattr, 4); number != errno.EIO {
		t.Errorf("a request without a server: %v, want EIO", number)
	}
	if used := memory.Use().Used; used != 0 {
		t.Errorf("%d bytes are not given back", used)
	}
	dir := t.TempDir()
	content := strings.Repeat("content", maxData/7)
	writeFile(t, filepath.Join(dir, "file"), content)
	r.serve(t, dir)
	root, err := fusetest.Mount(r.guest)
	if err != nil {
		t.Fatal(err)
	}
	f := open(t, root, 0, "file")
	p := make([]byte, maxData)
	if n, err := f.ReadAt(p, 0); err != nil || string(p[:n]) != content {
		t.Errorf("%d bytes of the second server's file, %v", n, err)
	}
	r.wantMounted(t, true)
}

// TestRelayHostileServer: a server that breaks the protocol ends, and nothing of what it sent arrives.
func TestRelayHostileServer(t *testing.T) {
	reply := func(size uint32, unique uint64) []byte {
		b := binary.LittleEndian.AppendUint32(nil, size)
		b = binary.LittleEndian.AppendUint32(b, 0)
		return binary.LittleEndian.AppendUint64(b, unique)
	}
	for _, test := range []struct {
		name string
		sent []byte
		want error
	}{
		{"a reply without a header", reply(replyHeader-1, 2), errReply},
		{"a reply of no length", reply(0, 2), errReply},
		{"a reply that is too long", reply(maxMessage+1, 2), errReply},
		{"a reply of four gigabytes", reply(1<<32-1, 2), errReply},
		{"a reply to no request", reply(replyHeader, 3), errReply},
		{"a reply that is cut", reply(4096, 2), errServerGone},
		{"a header that is cut", []byte{16}, errServerGone},
		{"text", []byte("HTTP/1.1 200 OK\r\n\r\n"), errReply},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := relay(t, nil)
			a, server := r.begin(t)
			r.send(t, opGetattr, 2)
			if _, err := io.ReadFull(server, make([]byte, requestHeader)); err != nil {
				t.Fatal(err)
			}
			go func() {
				_, _ = server.Write(test.sent)
				if test.want == errServerGone {
					_ = server.Close()
				}
			}()
			if number := r.answered(t, 2); number != errno.EIO {
				t.Errorf("the request: %v, want EIO", number)
			}
			if <-a.Ended(); !errors.Is(a.Err(), test.want) {
				t.Errorf("the server ended for %q, want %q", a.Err(), test.want)
			}
			if number := r.ask(t, opGetattr, 4); number != errno.EIO {
				t.Errorf("the next request: %v, want EIO", number)
			}
		})
	}
}

// TestRelayTwice: a reply that comes twice, and a request whose number is in use.
func TestRelayTwice(t *testing.T) {
	r := relay(t, nil)
	a, server := r.begin(t)
	r.send(t, opGetattr, 2)
	if _, err := io.ReadFull(server, make([]byte, requestHeader)); err != nil {
		t.Fatal(err)
	}
	if number := r.ask(t, opGetattr, 2); number != errno.EIO {
		t.Errorf("a number that is in use: %v, want EIO", number)
	}
	message := encoder{buf: make([]byte, replyHeader)}
	message.header(0, 2)
	go func() { _, _ = server.Write(append(message.buf, message.buf...)) }()
	if number := r.answered(t, 2); number != 0 {
		t.Errorf("the reply: %v", number)
	}
	if <-a.Ended(); !errors.Is(a.Err(), errReply) {
		t.Errorf("the server ended for %q", a.Err())
	}
}

// TestRelayStuckServer: a server that does not read keeps its own device waiting, until it is detached, and not the end.
func TestRelayStuckServer(t *testing.T) {
	t.Run("detached while the guest takes no reply", func(t *testing.T) {
		r := relay(t, nil)
		a, server := r.begin(t)
		r.send(t, opGetattr, 2)
		if _, err := io.ReadFull(server, make([]byte, requestHeader)); err != nil { // it is noted then
			t.Fatal(err)
		}
		a.Detach()
		<-a.Ended()
		if number := r.answered(t, 2); number != errno.EIO {
			t.Errorf("the request: %v, want EIO", number)
		}
	})
	t.Run("detached", func(t *testing.T) {
		r := relay(t, nil)
		a, _ := r.begin(t)
		r.send(t, opGetattr, 2)
		a.Detach()
		if number := r.answered(t, 2); number != errno.EIO {
			t.Errorf("the request: %v, want EIO", number)
		}
	})
	t.Run("the machine ends", func(t *testing.T) {
		r := relay(t, nil)
		a, _ := r.begin(t)
		r.send(t, opGetattr, 2)
		r.Close()
		<-a.Ended()
		if _, err := r.Attach(r.guest); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("a server after the end: %v", err)
		}
	})
}

// TestRelayHostileGuest: a machine that breaks the framing ends its own device, and with it the server.
func TestRelayHostileGuest(t *testing.T) {
	for _, size := range []uint32{0, requestHeader - 1, maxMessage + 1, 1<<32 - 1} {
		r := relay(t, nil)
		a, _ := r.begin(t)
		frame := fusetest.Frame(opGetattr, 2, rootID, nil)
		binary.LittleEndian.PutUint32(frame, size)
		go func() { _, _ = r.guest.Write(frame) }()
		<-a.Ended()
		if err := <-r.served; !errors.Is(err, errFrame) {
			t.Errorf("a frame of %d bytes: %v, want %v", size, err, errFrame)
		}
		r.served <- nil
	}
}

// FuzzRelay has a guest and a server send anything.
func FuzzRelay(f *testing.F) {
	message := encoder{buf: make([]byte, replyHeader)}
	message.header(0, 2)
	f.Add(fusetest.Frame(opInit, 2, 0, fusetest.InitBody()), message.buf)
	f.Add(append(fusetest.Frame(opGetattr, 2, rootID, nil), fusetest.Frame(opDestroy, 4, 0, nil)...), append(message.buf, 0xff))
	f.Fuzz(func(t *testing.T, requests, replies []byte) {
		device, guest := net.Pipe()
		r := NewRelay(device, nil)
		served := make(chan error, 1)
		go func() { served <- r.Serve() }()
		conn, server := net.Pipe()
		a, err := r.Attach(conn)
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, server) }()
		read := make(chan struct{})
		go func() {
			defer close(read)
			_, _ = io.Copy(io.Discard, guest)
		}()
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			_, _ = server.Write(replies)
			_ = server.Close()
		}()
		_, _ = guest.Write(requests)
		<-sent
		_ = guest.Close()
		<-served
		<-a.Ended()
		<-read
		if len(r.pending) > 0 {
			t.Errorf("%d requests are not answered", len(r.pending))
		}
	})
}

//go:build unix

package nat

import (
	"io"
	"net"
	"syscall"
	"testing"
)

// sendUrgent writes abc, an urgent byte, and def, and ends its direction.
func sendUrgent(t *testing.T, conn *net.TCPConn) {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []struct {
		text  string
		flags int
	}{{"abc", 0}, {"!", syscall.MSG_OOB}, {"def", 0}} {
		err := raw.Write(func(fd uintptr) bool {
			err = syscall.Sendto(int(fd), []byte(part.text), part.flags, nil)
			return err != syscall.EAGAIN
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
}

// TestUrgentByte sends urgent data to the guest, through a connection of its own and through a port forward: it arrives where it was written.
func TestUrgentByte(t *testing.T) {
	const want = "abc!def"
	w := newPacketWorld(t, nil)
	t.Run("connection of the guest", func(t *testing.T) {
		guest := w.dial(w.serve(func(host *net.TCPConn) {
			sendUrgent(t, host)
			_, _ = io.Copy(io.Discard, host)
		}))
		defer guest.Close()
		if got, err := io.ReadAll(guest); err != nil || string(got) != want {
			t.Errorf("the guest received %q, %v", got, err)
		}
	})
	t.Run("port forward", func(t *testing.T) {
		received := make(chan string, 1)
		w.serveGuest(80, func(c net.Conn) {
			got, _ := io.ReadAll(c)
			received <- string(got)
		})
		sendUrgent(t, w.connect(w.forward("127.0.0.1:0:80")))
		if got := <-received; got != want {
			t.Errorf("the guest received %q", got)
		}
	})
}

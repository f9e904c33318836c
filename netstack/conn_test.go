package netstack_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"agentvm/netstack"
	"agentvm/netstack/netstacktest"
)

// TestConnIsNetConn runs x/net's conformance test on a connection that the guest began.
func TestConnIsNetConn(t *testing.T) {
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		here, guest, _ := connected(t, netstack.Config{}, netstacktest.Config{DisableIPv6: true}, server)
		return here, guest, func() {
			here.Close()
			guest.Close()
		}, nil
	})
}

func TestHalfClose(t *testing.T) {
	t.Run("guest first", func(t *testing.T) {
		here, guest, _ := connected(t, netstack.Config{}, netstacktest.Config{}, server)
		mustDo(t, guest.CloseWrite())
		wantBytes(t, here, "")
		if got := here.State(); got != "CLOSE_WAIT" {
			t.Errorf("state %s after the guest's FIN", got)
		}
		mustWrite(t, here, "still open")
		mustDo(t, here.CloseWrite())
		wantBytes(t, guest, "still open")
		wantDone(t, here)
	})
	t.Run("host first", func(t *testing.T) {
		here, guest, _ := connected(t, netstack.Config{}, netstacktest.Config{}, server)
		mustDo(t, here.CloseWrite())
		wantBytes(t, guest, "")
		eventually(t, "FIN_WAIT_2", func() bool { return here.State() == "FIN_WAIT_2" })
		if _, err := here.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("Write after CloseWrite: %v, want EPIPE", err)
		}
		mustWrite(t, guest, "still open")
		mustDo(t, guest.CloseWrite())
		wantBytes(t, here, "still open")
		wantDone(t, here)
	})
}

func mustDo(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustWrite(t *testing.T, w io.Writer, s string) {
	t.Helper()
	if _, err := io.WriteString(w, s); err != nil {
		t.Fatal(err)
	}
}

// wantBytes reads to the end.
func wantBytes(t *testing.T, r io.Reader, want string) {
	t.Helper()
	got, err := io.ReadAll(r)
	if err != nil || string(got) != want {
		t.Fatalf("read %q, %v; want %q", got, err, want)
	}
}

func wantDone(t *testing.T, c *netstack.Conn) {
	t.Helper()
	select {
	case <-c.Done():
	case <-within(t).Done():
		t.Fatalf("not done, in state %s", c.State())
	}
}

func TestSimultaneousClose(t *testing.T) {
	here, guest, _ := connected(t, netstack.Config{}, netstacktest.Config{Impair: netstacktest.Impairment{Delay: 30 * time.Millisecond}}, server)
	mustDo(t, here.CloseWrite()) // the FINs cross: each takes 30 ms
	mustDo(t, guest.CloseWrite())
	wantBytes(t, here, "")
	wantBytes(t, guest, "")
	wantDone(t, here)
}

func TestGuestResets(t *testing.T) {
	here, guest, _ := connected(t, netstack.Config{}, netstacktest.Config{}, server)
	guest.Abort()
	if _, err := here.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("Read: %v, want ECONNRESET", err)
	}
	for range 2 { // each caller gets to know, not only the first
		if _, err := here.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("Write: %v, want ECONNRESET", err)
		}
		if _, err := here.ReadTo(io.Discard, 1); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("ReadTo: %v, want ECONNRESET", err)
		}
	}
	wantDone(t, here)
	if got := here.State(); got != "CLOSED" {
		t.Errorf("state %s", got)
	}
}

// TestReadBeforeReset: what came before the RST is not lost.
func TestReadBeforeReset(t *testing.T) {
	here, guest, _ := connected(t, netstack.Config{}, netstacktest.Config{}, server)
	mustWrite(t, guest, "last words")
	mustDo(t, readFull(here, 1)) // the others have come with it
	guest.Abort()
	wantDone(t, here)
	b := make([]byte, 100)
	if n, err := here.Read(b); string(b[:n]) != "ast words" || err != nil {
		t.Errorf("Read: %q, %v", b[:n], err)
	}
	if _, err := here.Read(b); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("Read: %v, want ECONNRESET", err)
	}
}

func TestAbort(t *testing.T) {
	for _, test := range []struct {
		name string
		end  func(*netstack.Conn)
	}{
		{"abort", (*netstack.Conn).Abort},
		{"close with unread bytes", func(c *netstack.Conn) { c.Close() }},
		{"close, then abort", func(c *netstack.Conn) { c.Close(); c.Abort() }},
	} {
		t.Run(test.name, func(t *testing.T) {
			here, guest, _ := connected(t, netstack.Config{}, netstacktest.Config{}, server)
			mustWrite(t, guest, "never read")
			mustWrite(t, here, "x")
			mustDo(t, readFull(guest, 1))
			mustDo(t, readFull(here, 1)) // the others have come with it
			test.end(here)
			if _, err := guest.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the guest reads %v, want ECONNRESET", err)
			}
			wantDone(t, here)
			for name, err := range afterwards(here) {
				if !errors.Is(err, net.ErrClosed) {
					t.Errorf("%s: %v, want net.ErrClosed", name, err)
				}
			}
		})
	}
}

func readFull(r io.Reader, n int) error {
	_, err := io.ReadFull(r, make([]byte, n))
	return err
}

func afterwards(c *netstack.Conn) map[string]error {
	_, read := c.Read(make([]byte, 1))
	_, readTo := c.ReadTo(io.Discard, 1)
	_, write := c.Write([]byte("x"))
	return map[string]error{
		"Read": read, "ReadTo": readTo, "Write": write, "CloseWrite": c.CloseWrite(), "CloseRead": c.CloseRead(),
		"Close": c.Close(), "SetDeadline": c.SetDeadline(time.Time{}),
	}
}

// TestEndUnblocks: Close, Abort and the network's Close end calls that wait.
func TestEndUnblocks(t *testing.T) {
	waits := []struct {
		name string
		call func(*netstack.Conn) error
	}{
		{"Read", func(c *netstack.Conn) error { _, err := c.Read(make([]byte, 1)); return err }},
		{"ReadTo", func(c *netstack.Conn) error { _, err := c.ReadTo(io.Discard, 1); return err }},
		{"Write", func(c *netstack.Conn) error { _, err := c.Write(make([]byte, 32<<20)); return err }},
	}
	ends := []struct {
		name string
		end  func(*netstack.Conn, *netstack.Network)
		want error
	}{
		{"Close", func(c *netstack.Conn, _ *netstack.Network) { c.Close() }, net.ErrClosed},
		{"Abort", func(c *netstack.Conn, _ *netstack.Network) { c.Abort() }, net.ErrClosed},
		{"Network.Close", func(_ *netstack.Conn, n *netstack.Network) { n.Close() }, net.ErrClosed},
		{"deadline", func(c *netstack.Conn, _ *netstack.Network) { c.SetDeadline(time.Now()) }, os.ErrDeadlineExceeded},
	}
	for _, wait := range waits {
		for _, end := range ends {
			t.Run(wait.name+", "+end.name, func(t *testing.T) {
				here, _, n := connected(t, netstack.Config{}, netstacktest.Config{}, server)
				ended := make(chan error, 1)
				go func() { ended <- wait.call(here) }()
				time.Sleep(20 * time.Millisecond) // most often it waits by now; both orders must work
				end.end(here, n)
				select {
				case err := <-ended:
					if !errors.Is(err, end.want) {
						t.Errorf("%v, want %v", err, end.want)
					}
				case <-within(t).Done():
					t.Fatal("still waiting")
				}
			})
		}
	}
}

// slowWriter waits in Write until it is released.
type slowWriter struct {
	entered chan struct{}
	release chan struct{}
	once    sync.Once
	bytes   []byte
}

func (w *slowWriter) Write(p []byte) (int, error) {
	w.once.Do(func() { close(w.entered) })
	<-w.release
	w.bytes = append(w.bytes, p...)
	return len(p), nil
}

// TestAbortWhileWriting: Abort does not wait for a writer that ReadTo feeds, the guest gets its RST at once, and the
// bytes under the writer stay what they are.
func TestAbortWhileWriting(t *testing.T) {
	for _, end := range []string{"Abort", "Close", "Network.Close"} {
		t.Run(end, func(t *testing.T) {
			here, guest, n := connected(t, netstack.Config{}, netstacktest.Config{}, server)
			want := pattern(1000, 3)
			w := &slowWriter{entered: make(chan struct{}), release: make(chan struct{})}
			ended := make(chan error, 1)
			go func() {
				_, err := here.ReadTo(w, 1<<20)
				ended <- err
			}()
			if _, err := guest.Write(want); err != nil {
				t.Fatal(err)
			}
			<-w.entered
			switch end {
			case "Abort":
				here.Abort()
			case "Close":
				here.Close()
			case "Network.Close":
				n.Close()
			}
			if end != "Network.Close" { // which takes the link away
				if _, err := guest.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("the guest reads %v, want ECONNRESET", err)
				}
				churn(t, here) // make the stack use its buffers for something else
			}
			close(w.release)
			if err := <-ended; err != nil {
				t.Errorf("ReadTo: %v; the writer took the bytes", err)
			}
			if !bytes.Equal(w.bytes, want[:len(w.bytes)]) || len(w.bytes) == 0 {
				t.Errorf("the writer's bytes changed under it: %d bytes", len(w.bytes))
			}
			wantDone(t, here)
		})
	}
}

// churn allocates and frees what gVisor pools.
func churn(t *testing.T, _ *netstack.Conn) {
	t.Helper()
	here, guest, _ := connected(t, netstack.Config{}, netstacktest.Config{DisableIPv6: true}, server)
	go func() {
		guest.Write(make([]byte, 1<<20))
		guest.CloseWrite()
	}()
	if _, err := io.Copy(io.Discard, here); err != nil {
		t.Error(err)
	}
}

// shortWriter takes n bytes and then fails.
type shortWriter struct {
	n   int
	err error
	got []byte
}

func (w *shortWriter) Write(p []byte) (int, error) {
	n := min(len(p), w.n)
	w.n -= n
	w.got = append(w.got, p[:n]...)
	if n < len(p) {
		return n, w.err
	}
	return n, nil
}

// TestReadTo compares the ways in which bytes leave a connection, and checks that what a failing writer has not taken
// is still there.
func TestReadTo(t *testing.T) {
	here, guest, _ := connected(t, netstack.Config{}, netstacktest.Config{}, server)
	want := pattern(200_000, 4)
	go func() {
		guest.Write(want)
		guest.CloseWrite()
	}()
	full := errors.New("full")
	var got []byte
	for sizes, i := []int{1, 1459, 1460, 1461, 20_000, 70_000, 1 << 20}, 0; ; i++ {
		w := &shortWriter{n: sizes[i%len(sizes)], err: full}
		n, err := here.ReadTo(w, sizes[(i/2)%len(sizes)])
		if n != len(w.got) || n > sizes[(i/2)%len(sizes)] {
			t.Fatalf("ReadTo says %d of at most %d bytes, the writer got %d", n, sizes[(i/2)%len(sizes)], len(w.got))
		}
		got = append(got, w.got...)
		if err == io.EOF {
			break
		}
		if err != nil && err != full {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes, want %d and the same", len(got), len(want))
	}
}

// TestReadToSocket is the way that nat uses, with writev.
func TestReadToSocket(t *testing.T) {
	here, guest, _ := connected(t, netstack.Config{}, netstacktest.Config{}, server)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	mustDo(t, err)
	defer l.Close()
	out, err := net.Dial("tcp", l.Addr().String())
	mustDo(t, err)
	in, err := l.Accept()
	mustDo(t, err)
	defer in.Close()
	want := pattern(1<<20, 5)
	go func() {
		guest.Write(want)
		guest.CloseWrite()
	}()
	go func() {
		defer out.Close()
		for {
			if _, err := here.ReadTo(out, 1<<20); err != nil {
				return
			}
		}
	}()
	got, err := io.ReadAll(in)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v; want %d and the same", len(got), err, len(want))
	}
}

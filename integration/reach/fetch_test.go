package reach

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"agentvm/egress"
	"agentvm/vm"
)

// previewDialer is what package preview wants of a VM.
var _ interface {
	DialPreview(ctx context.Context, vm string, port uint16) (net.Conn, error)
} = (*vm.VM)(nil)

// A service of the host's at the same port is not reached, whether the guest has a listener there or not, whatever its policy
// and the environment say.
func TestFetchReachesOnlyTheVM(t *testing.T) {
	at := hostService(t, 0)
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"} {
		t.Setenv(name, fmt.Sprintf("http://127.0.0.1:%d", at))
	}
	g := boot(t, vm.Config{Network: vm.Network{Policy: egress.Policy{Mode: egress.None}}})
	hosts := []string{"localhost", "127.0.0.1", "127.0.0.7", "[::1]", "app.localhost"}
	for _, host := range hosts {
		if text, err := g.fetch(host, at); !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), fmt.Sprintf("nothing in the VM listens at port %d", at)) {
			t.Errorf("%s without a listener: %q, %v", host, text, err)
		}
	}
	stop := g.program(at, "the guest")
	for _, host := range []string{"localhost", "127.0.0.1", "127.0.0.7", "app.localhost"} {
		if text, err := g.fetch(host, at); err != nil || text != "the guest" {
			t.Errorf("%s: %q, %v", host, text, err)
		}
	}
	for _, host := range []string{
		"127.1", "0x7f000001", "2130706433", "0.0.0.0", "[::]", "[::ffff:127.0.0.1]", "[::1%25lo]", "localhost.", "127.0.0.1.", "ⓛocalhost", "localhost.example.com",
		"192.168.127.3", "192.168.127.1", "host.agentvm.internal", "example.com", "localhost@127.0.0.1", "10.0.0.1",
	} {
		if text, err := g.fetch(host, at); !errors.Is(err, syscall.EADDRNOTAVAIL) && !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %q, %v", host, text, err)
		}
	}
	stop()
	g.eventually("nothing listens any more", func() bool { return !g.listens(at) })
	if text, err := g.fetch("localhost", at); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("after the listener's end: %q, %v", text, err)
	}
	if s := must(g.NetworkStats(t.Context())); s.Egress.Dials != 0 {
		t.Errorf("stats %+v", s.Egress)
	}
	g.Close()
	if text, err := g.fetch("localhost", at); err == nil {
		t.Errorf("after the VM's end: %q", text)
	}
}

// Each guard answers with its own error before the next is asked, of a real VM.
func TestGuardsInOrder(t *testing.T) {
	at := hostService(t, 0)
	g := boot(t, vm.Config{Access: vm.Access{Connect: vm.PortPolicy{Deny: ports(81, uint16(at))}, Listen: vm.PortPolicy{Deny: ports(82)}}})
	listening, err := g.DialFetch(limited(t), "tcp", "localhost:80")
	if err == nil {
		listening.Close()
	}
	for address, want := range map[string]error{
		"192.168.127.3:81":                syscall.EADDRNOTAVAIL, // not loopback, and denied
		fmt.Sprintf("example.com:%d", at): syscall.EADDRNOTAVAIL,
		fmt.Sprintf("localhost:%d", at):   syscall.EACCES, // denied, and nothing listens; the host would
		"127.0.0.1:81":                    syscall.EACCES,
		"[::1]:82":                        syscall.EACCES,
		"localhost:80":                    syscall.ECONNREFUSED,
	} {
		c, err := g.DialFetch(limited(t), "tcp", address)
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", address, err, want)
		}
		if err == nil {
			c.Close()
		}
	}
	for p, want := range map[uint16]error{80: syscall.ECONNREFUSED, 81: syscall.EACCES, 82: syscall.EACCES, 0: syscall.EINVAL} {
		if err := g.CheckFetch(limited(t), p); !errors.Is(err, want) {
			t.Errorf("check of %d: %v, want %v", p, err, want)
		}
		if c, err := g.DialPreview(limited(t), "any", p); !errors.Is(err, want) {
			t.Errorf("preview of %d: %v, %v, want %v", p, c, err, want)
		}
	}
	g.program(80, "the guest")
	if err := g.CheckFetch(limited(t), 80); err != nil {
		t.Error(err)
	}
}

// Connections are kept, many at once are served, and what they carry arrives, both ways and at once.
func TestFetchCarries(t *testing.T) {
	g := common(t)
	var conns sync.Map
	var opened atomic.Int64
	p := g.serve(func(w http.ResponseWriter, r *http.Request) {
		if _, known := conns.LoadOrStore(r.RemoteAddr, true); !known {
			opened.Add(1)
		}
		switch r.URL.Path {
		case "/sum":
			sum := sha256.New()
			_, _ = io.Copy(sum, r.Body)
			fmt.Fprint(w, hex.EncodeToString(sum.Sum(nil)))
		case "/echo":
			control := http.NewResponseController(w)
			_ = control.EnableFullDuplex()
			w.Header().Set("Trailer", "X-End")
			_ = control.Flush()
			buffer := make([]byte, 64<<10)
			for {
				n, err := r.Body.Read(buffer)
				_, _ = w.Write(buffer[:n])
				_ = control.Flush()
				if err != nil {
					break
				}
			}
			w.Header().Set("X-End", "yes")
		default:
			fmt.Fprint(w, "small")
		}
	})
	at := fmt.Sprintf("http://localhost:%d", p)
	for range 20 {
		if text, err := get(t, g.HTTPClient(), at+"/"); err != nil || text != "small" {
			t.Fatalf("%q, %v", text, err)
		}
	}
	if n := opened.Load(); n != 1 {
		t.Errorf("20 requests took %d connections", n)
	}
	var together sync.WaitGroup
	for i := range 12 {
		together.Go(func() {
			data := make([]byte, 1+i*20_000)
			_, _ = rand.Read(data)
			want := sha256.Sum256(data)
			r, _ := http.NewRequestWithContext(limited(t), "POST", at+"/sum", strings.NewReader(string(data)))
			res, err := g.Fetch(r)
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			if b, err := io.ReadAll(res.Body); err != nil || string(b) != hex.EncodeToString(want[:]) {
				t.Errorf("request %d: %q, %v", i, b, err)
			}
		})
	}
	together.Wait()
	body, send := io.Pipe()
	r, _ := http.NewRequestWithContext(limited(t), "POST", at+"/echo", body)
	res, err := g.Fetch(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	piece, back := make([]byte, 10_000), make([]byte, 10_000)
	for i := range 30 {
		_, _ = rand.Read(piece)
		if _, err := send.Write(piece); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(res.Body, back); err != nil || string(back) != string(piece) {
			t.Fatalf("piece %d: %v", i, err)
		}
	}
	send.Close()
	if rest, err := io.ReadAll(res.Body); err != nil || len(rest) > 0 || res.Trailer.Get("X-End") != "yes" {
		t.Errorf("%d bytes, %v, trailer %v", len(rest), err, res.Trailer)
	}
}

// Server-sent events come one by one, and the guest's server notices when the client stops reading.
func TestFetchEvents(t *testing.T) {
	g := common(t)
	next, gone := make(chan int), make(chan struct{})
	p := g.serve(func(w http.ResponseWriter, r *http.Request) {
		defer close(gone)
		w.Header().Set("Content-Type", "text/event-stream")
		for {
			select {
			case i := <-next:
				fmt.Fprintf(w, "data: %d\n\n", i)
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	})
	ctx, cancel := context.WithCancel(limited(t))
	r, _ := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("http://localhost:%d/", p), nil)
	first := make(chan struct{})
	go func() { next <- 0; close(first) }()
	res, err := g.Fetch(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	<-first
	lines := bufio.NewScanner(res.Body)
	for i := range 20 {
		if i > 0 {
			next <- i
		}
		if !lines.Scan() || lines.Text() != fmt.Sprintf("data: %d", i) || !lines.Scan() {
			t.Fatalf("event %d: %q, %v", i, lines.Text(), lines.Err())
		}
	}
	cancel()
	<-gone
}

// After a 101 both sides send when they like, which is all that WebSocket needs.
func TestFetchWebSocket(t *testing.T) {
	g := common(t)
	p := g.serve(func(w http.ResponseWriter, r *http.Request) {
		conn, both, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(both, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\nhello", r.Header.Get("Sec-WebSocket-Key"))
		_ = both.Flush()
		_, _ = io.Copy(conn, both)
	})
	r, _ := http.NewRequestWithContext(limited(t), "GET", fmt.Sprintf("http://app.localhost:%d/socket", p), nil)
	r.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Key": {"key"}, "Sec-Websocket-Version": {"13"}}
	res, err := g.Fetch(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	both, ok := res.Body.(io.ReadWriteCloser)
	if res.StatusCode != http.StatusSwitchingProtocols || !ok || res.Header.Get("Sec-Websocket-Accept") != "key" {
		t.Fatalf("%s, %v", res.Status, res.Header)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(both, got); err != nil || string(got) != "hello" {
		t.Fatalf("%q, %v", got, err)
	}
	for i := range 50 {
		frame := []byte(fmt.Sprintf("\x81\x03%03d", i))
		if _, err := both.Write(frame); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(both, got); err != nil || string(got) != string(frame) {
			t.Fatalf("frame %d: %q, %v", i, got, err)
		}
	}
}

// A redirect leads nowhere but into the same VM, and a program that ends and comes back is found again.
func TestFetchRedirectsAndRestarts(t *testing.T) {
	at := hostService(t, 0)
	g := common(t)
	to := ""
	p := g.serve(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusFound) })
	for _, to = range []string{fmt.Sprintf("http://127.0.0.1:%d/", at), fmt.Sprintf("http://localhost.:%d/", at), "https://localhost/", "http://192.168.127.1/", "//example.com/"} {
		if text, err := g.fetch("localhost", p); err == nil {
			t.Errorf("redirect to %s: %q", to, text)
		}
	}
	stop := g.program(8090, "first")
	to = "http://localhost:8090/"
	if text, err := g.fetch("localhost", p); err != nil || text != "first" {
		t.Errorf("%q, %v", text, err)
	}
	stop()
	g.eventually("nothing listens any more", func() bool { return !g.listens(8090) })
	if text, err := g.fetch("localhost", p); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%q, %v", text, err)
	}
	g.program(8090, "second")
	if text, err := g.fetch("localhost", p); err != nil || text != "second" {
		t.Errorf("%q, %v", text, err)
	}
}

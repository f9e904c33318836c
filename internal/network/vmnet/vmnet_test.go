package vmnet

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentvm/internal/host/errno"
	"agentvm/internal/test/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// lab has a store with two networks.
func lab(t testing.TB) Store {
	t.Helper()
	s := In(t.TempDir())
	for _, name := range []string{"lab", "other"} {
		_, err := s.Create(t.Context(), name)
		must(t, err)
	}
	return s
}

// join joins networks; what comes is echoed by a TCP port 7 and UDP, and refused at other ports.
func join(t testing.TB, s Store, name string, networks ...string) *Member {
	t.Helper()
	m, err := s.Join(t.Context(), networks, name, slog.New(slog.DiscardHandler))
	must(t, err)
	t.Cleanup(func() { m.Close() })
	m.Serve(func(_ context.Context, d Delivery) {
		if d.Port != 7 {
			_, _ = d.Answer(errno.ECONNREFUSED)
			return
		}
		conn, err := d.Answer(nil)
		if err != nil {
			return
		}
		defer conn.Close()
		buffer := make([]byte, maxFrame)
		for {
			n, err := conn.Read(buffer)
			if errors.Is(err, io.EOF) {
				_ = conn.(*stream).CloseWrite()
			}
			if err != nil {
				return
			}
			if _, err := conn.Write(buffer[:n]); err != nil {
				return
			}
		}
	})
	return m
}

var from = netip.MustParseAddrPort("192.168.127.3:40000")

func at(m *Member, name string, port uint16) netip.AddrPort {
	if list := m.Lookup(name); len(list) > 0 {
		return netip.AddrPortFrom(list[0], port)
	}
	return netip.AddrPort{}
}

func TestStream(t *testing.T) {
	s := lab(t)
	join(t, s, "web", "lab")
	cli := join(t, s, "cli", "lab")
	conn, err := cli.Dial(t.Context(), "tcp", from, at(cli, "web", 7))
	must(t, err)
	defer conn.Close()
	if got := conn.RemoteAddr().String(); got != "198.18.0.2:7" || conn.LocalAddr().String() != "198.18.0.3:40000" {
		t.Error(got, conn.LocalAddr())
	}
	sent := make([]byte, 3<<20+17)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(sent)
	go func() {
		rest := sent
		for i := 1; len(rest) > 0; i = i*3 + 1 { // pieces of all sizes, also more than a frame
			b := net.Buffers{rest[:min(i, len(rest))], nil}
			rest = rest[len(b[0]):]
			b[1] = rest[:min(7, len(rest))]
			rest = rest[len(b[1]):]
			if _, err := conn.(*stream).WriteBuffers(&b); err != nil {
				t.Error(err)
			}
			i %= 1 << 20
		}
		_ = conn.(*stream).CloseWrite()
	}()
	got, err := io.ReadAll(conn)
	if err != nil || sha256.Sum256(got) != sha256.Sum256(sent) {
		t.Errorf("%d of %d bytes, %v", len(got), len(sent), err)
	}
}

// TestReset: a stream that is cut does not look as if it had ended.
func TestReset(t *testing.T) {
	s := lab(t)
	web := join(t, s, "web", "lab")
	cli := join(t, s, "cli", "lab")
	conn, err := cli.Dial(t.Context(), "tcp", from, at(cli, "web", 7))
	must(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("x"))
	must(t, err)
	_, err = io.ReadFull(conn, make([]byte, 1))
	must(t, err)
	must(t, web.Close())
	if _, err := conn.Read(make([]byte, 1)); errno.In(err) != errno.ECONNRESET {
		t.Error(err)
	}
	if _, err := cli.Dial(t.Context(), "tcp", from, netip.MustParseAddrPort("198.18.0.2:7")); errno.In(err) != errno.EHOSTUNREACH {
		t.Error(err)
	}
}

func TestDatagrams(t *testing.T) {
	s := lab(t)
	join(t, s, "web", "lab")
	cli := join(t, s, "cli", "lab")
	conn, err := cli.Dial(t.Context(), "udp", from, at(cli, "web", 7))
	must(t, err)
	defer conn.Close()
	for _, size := range []int{1, 0, 1472, 60000, 3} {
		sent := bytes.Repeat([]byte{byte(size)}, size)
		_, err := conn.Write(sent)
		must(t, err)
		got := make([]byte, maxFrame)
		n, err := conn.Read(got)
		if err != nil || !bytes.Equal(got[:n], sent) {
			t.Errorf("a datagram of %d: %d, %v", size, n, err)
		}
	}
	closed, err := cli.Dial(t.Context(), "udp", from, at(cli, "web", 8))
	must(t, err)
	defer closed.Close()
	if _, err := closed.Read(make([]byte, 10)); errno.In(err) != errno.ECONNREFUSED {
		t.Error(err)
	}
}

func TestRefused(t *testing.T) {
	s := lab(t)
	join(t, s, "web", "lab")
	cli := join(t, s, "cli", "lab", "other")
	anonymous := join(t, s, "", "lab")
	stranger := join(t, s, "stranger", "other")
	if _, err := cli.Dial(t.Context(), "tcp", from, at(cli, "web", 8)); errno.In(err) != errno.ECONNREFUSED {
		t.Error(err)
	}
	must(t, anonymous.Ping(t.Context(), at(anonymous, "web", 0).Addr()))
	if err := cli.Ping(t.Context(), netip.MustParseAddr("198.18.0.77")); errno.In(err) != errno.EHOSTUNREACH {
		t.Error(err)
	}
	web := netip.MustParseAddrPort("198.18.0.2:7")
	if stranger.Contains(web.Addr()) || len(stranger.Lookup("web"))+len(stranger.Lookup("web.lab"))+len(stranger.Names(web.Addr())) > 0 {
		t.Error("a VM of another network knows it")
	}
	if _, err := stranger.Dial(t.Context(), "tcp", from, web); errno.In(err) != errno.EHOSTUNREACH {
		t.Error(err)
	}
	// A process that finds the socket, but may not read the key.
	n, err := s.Open("lab")
	must(t, err)
	for _, h := range []header{
		{"wrong", "tcp", netip.MustParseAddrPort("198.18.0.9:1"), 7},
		{n.Key, "tcp", netip.MustParseAddrPort("198.18.1.9:1"), 7},
		{n.Key, "tcp", web, 7},
		{n.Key, "sctp", netip.MustParseAddrPort("198.18.0.9:1"), 7},
	} {
		conn, err := s.connect(t.Context(), n, 2)
		must(t, err)
		if err := newStream(conn, "tcp", netip.AddrPort{}, netip.AddrPort{}).request(t.Context(), h, true); err == nil {
			t.Errorf("%+v was taken", h)
		}
		conn.Close()
	}
	if _, err := s.Join(t.Context(), []string{"lab"}, "web", nil); err == nil || !strings.Contains(err.Error(), "another VM with the name web") {
		t.Error(err)
	}
	if _, err := s.Join(t.Context(), []string{"lab", "none"}, "new", nil); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if err := s.Remove(t.Context(), "lab"); err == nil || !strings.Contains(err.Error(), "stop them first") {
		t.Error(err)
	}
}

// TestKilled: a socket without a process belongs to no member, the VM keeps its address, and another one can have it when there is no other left.
func TestKilled(t *testing.T) {
	s := lab(t)
	web := join(t, s, "web", "lab")
	cli := join(t, s, "cli", "lab")
	if got := cli.Names(at(cli, "web.lab", 1).Addr()); len(got) != 2 || got[0] != "web" || got[1] != "web.lab" {
		t.Error(got)
	}
	must(t, web.Close()) // as the system does of a killed process: its socket's file stays
	if _, err := os.Lstat(filepath.Join(s.Dir, "lab", "2.sock")); err != nil {
		t.Fatal(err)
	}
	if got := cli.Lookup("web"); len(got) > 0 {
		t.Error(got)
	}
	if list, err := s.List(t.Context()); err != nil || len(list) != 2 || len(list[0].Members) != 1 || list[0].Members[0].Name != "cli" {
		t.Errorf("%+v, %v", list, err)
	}
	again := join(t, s, "web", "lab")
	if got := at(cli, "web", 1).Addr().String(); got != "198.18.0.2" {
		t.Error(got)
	}
	must(t, again.Close())
	for host := firstHost; host <= lastHost; host++ {
		if host != 3 {
			must(t, os.WriteFile(filepath.Join(s.Dir, "lab", "members", "vm"+strconv.Itoa(host)), []byte(strconv.Itoa(host)), 0o600))
		}
	}
	must(t, os.Remove(filepath.Join(s.Dir, "lab", "members", "web")))
	join(t, s, "late", "lab")
	if got := at(cli, "late", 1).Addr().String(); got != "198.18.0.2" {
		t.Error(got)
	}
}

func TestNetworks(t *testing.T) {
	s := lab(t)
	for _, name := range []string{"lab", "", "../x", "a.b", "A", "none", "host", "bridge", "default"} {
		if _, err := s.Create(t.Context(), name); err == nil {
			t.Errorf("%q was made", name)
		}
	}
	must(t, s.Remove(t.Context(), "lab"))
	if _, err := s.Open("lab"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	n, err := s.Create(t.Context(), "third")
	if err != nil || n.Subnet.String() != "198.18.0.0/24" {
		t.Error(n.Subnet, err)
	}
	if m, err := s.Join(t.Context(), nil, "x", nil); m != nil || err != nil {
		t.Error(m, err)
	}
	var none *Member
	if none.Contains(from.Addr()) || none.Lookup("x") != nil || none.Close() != nil {
		t.Error("a VM in no network")
	}
}

// TestSilent: a client that sends no header costs no other member anything, and does not outlive the member.
func TestSilent(t *testing.T) {
	s := lab(t)
	web := join(t, s, "web", "lab")
	cli := join(t, s, "cli", "lab")
	n, err := s.Open("lab")
	must(t, err)
	for range 3 {
		conn, err := s.connect(t.Context(), n, 2)
		must(t, err)
		defer conn.Close()
	}
	must(t, cli.Ping(t.Context(), netip.MustParseAddr("198.18.0.2")))
	began := time.Now()
	must(t, web.Close())
	if took := time.Since(began); took > 3*time.Second {
		t.Error(took)
	}
}

func FuzzStream(f *testing.F) {
	f.Add([]byte{0, 0, 0, 2, 'a', 'b', 1, 0, 0, 0}, true)
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 5, 'a'}, false)
	f.Fuzz(func(t *testing.T, text []byte, datagrams bool) {
		near, far := net.Pipe()
		go func() { _, _ = far.Write(text); far.Close() }()
		s := newStream(nil, "tcp", from, from)
		s.Conn, s.datagrams = near, datagrams
		s.in.Reset(near)
		total := 0
		for buffer := make([]byte, 100); ; {
			n, err := s.Read(buffer)
			if total += n; total > len(text) {
				t.Fatalf("%d bytes of %d", total, len(text))
			}
			if err != nil {
				break
			}
		}
		near.Close()
	})
}

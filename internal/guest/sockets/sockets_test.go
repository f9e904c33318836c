//go:build linux

package sockets

import (
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"agentvm/internal/guest/guestrpc"
)

var compareAddresses = cmpopts.EquateComparable(netip.AddrPort{})

// scene has sockets of this process: a listener, a connection to it, a UDP socket and a connected one, for IPv4 or IPv6.
type scene struct {
	listener net.Listener
	out, in  net.Conn
	free     net.PacketConn
	bound    net.Conn
}

func newScene(t *testing.T, address string) *scene {
	t.Helper()
	s := &scene{}
	var err error
	must := func() {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s.listener, err = net.Listen("tcp", address)
	must()
	t.Cleanup(func() { _ = s.listener.Close() })
	s.out, err = net.Dial("tcp", s.listener.Addr().String())
	must()
	t.Cleanup(func() { _ = s.out.Close() })
	s.in, err = s.listener.Accept()
	must()
	t.Cleanup(func() { _ = s.in.Close() })
	s.free, err = net.ListenPacket("udp", address)
	must()
	t.Cleanup(func() { _ = s.free.Close() })
	s.bound, err = net.Dial("udp", s.free.LocalAddr().String())
	must()
	t.Cleanup(func() { _ = s.bound.Close() })
	return s
}

func addrPort(a net.Addr) netip.AddrPort { return netip.MustParseAddrPort(a.String()) }

// unspecified is the other end of a socket that is not connected.
func unspecified(a netip.AddrPort) netip.AddrPort {
	if a.Addr().Is4() {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
}

func (s *scene) want(t *testing.T) []guestrpc.Socket {
	t.Helper()
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	own := func(network string, local, remote netip.AddrPort, state guestrpc.SocketState) guestrpc.Socket {
		family := 4
		if local.Addr().Is6() {
			family = 6
		}
		return guestrpc.Socket{
			Family: family, Network: network, Local: local, Remote: remote, State: state, UID: uint32(os.Getuid()),
			PID: os.Getpid(), Process: strings.TrimSpace(string(comm)),
		}
	}
	listens, sends, receives := addrPort(s.listener.Addr()), addrPort(s.out.LocalAddr()), addrPort(s.free.LocalAddr())
	return []guestrpc.Socket{
		own("tcp", listens, unspecified(listens), guestrpc.SocketListen),
		own("tcp", sends, listens, guestrpc.SocketEstablished),
		own("tcp", listens, sends, guestrpc.SocketEstablished),
		own("udp", receives, unspecified(receives), guestrpc.SocketClosed),
		own("udp", addrPort(s.bound.LocalAddr()), receives, guestrpc.SocketEstablished),
	}
}

var families = map[string]string{"IPv4": "127.0.0.1:0", "IPv6": "[::1]:0"}

// eachFamily runs a test for IPv4 and IPv6, where this machine has them.
func eachFamily(t *testing.T, test func(*testing.T, *scene)) {
	for name, address := range families {
		t.Run(name, func(t *testing.T) {
			if l, err := net.Listen("tcp", address); err != nil {
				t.Skip(err)
			} else if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			test(t, newScene(t, address))
		})
	}
}

func TestList(t *testing.T) {
	eachFamily(t, func(t *testing.T, s *scene) {
		for name, list := range map[string]func() ([]guestrpc.Socket, error){"asked": List, "tables": listTables} {
			t.Run(name, func(t *testing.T) {
				got, err := list()
				if err != nil {
					t.Fatal(err)
				}
				for _, want := range s.want(t) {
					i := slices.IndexFunc(got, func(g guestrpc.Socket) bool {
						return g.Network == want.Network && g.Local == want.Local && g.Remote == want.Remote
					})
					if i < 0 {
						t.Errorf("missing: %+v", want)
					} else if diff := cmp.Diff(want, got[i], compareAddresses); diff != "" {
						t.Errorf("-want +got:\n%s", diff)
					}
				}
			})
		}
	})
}

func listTables() ([]guestrpc.Socket, error) {
	list, err := readTables("/proc/net", alive)
	return withOwners("/proc", list, maxDescriptors), err
}

func TestFind(t *testing.T) {
	eachFamily(t, func(t *testing.T, s *scene) {
		for _, want := range s.want(t) {
			q := guestrpc.SocketQuery{Network: want.Network, Local: want.Local}
			if want.Remote.Port() != 0 {
				q.Remote = want.Remote
			}
			got, err := Find(q)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]guestrpc.Socket{want}, got, compareAddresses); diff != "" {
				t.Errorf("%+v: -want +got:\n%s", q, diff)
			}
			table, err := readTables("/proc/net", func(e entry) bool { return matches(q, e) })
			if err != nil {
				t.Fatal(err)
			}
			if other := withOwners("/proc", best(q, table), maxDescriptors); cmp.Diff(got, other, compareAddresses) != "" {
				t.Errorf("%+v: the tables give %+v, want %+v", q, other, got)
			}
		}
		t.Run("datagram from a socket that is not connected", func(t *testing.T) {
			local := addrPort(s.free.LocalAddr())
			q := guestrpc.SocketQuery{Network: "udp", Local: local, Remote: netip.AddrPortFrom(local.Addr(), 9)}
			if got, err := Find(q); err != nil || len(got) != 1 || got[0].PID != os.Getpid() {
				t.Errorf("got %+v, %v", got, err)
			}
		})
		t.Run("listener is not a connection", func(t *testing.T) {
			local := addrPort(s.listener.Addr())
			q := guestrpc.SocketQuery{Network: "tcp", Local: local, Remote: netip.AddrPortFrom(local.Addr(), 9)}
			if got, err := Find(q); err != nil || len(got) != 0 {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	})
}

// TestDualStack: programs that use IPv6 sockets for IPv4 are found by the IPv4 addresses that their packets have.
func TestDualStack(t *testing.T) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	port := addrPort(l.Addr()).Port()
	out, err := net.Dial("tcp4", netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port).String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	got, err := Find(guestrpc.SocketQuery{Network: "tcp", Local: addrPort(out.RemoteAddr()), Remote: addrPort(out.LocalAddr())})
	if err != nil || len(got) != 1 || got[0].Local != addrPort(out.RemoteAddr()) || got[0].PID != os.Getpid() {
		t.Errorf("got %+v, %v", got, err)
	}
}

// TestEndedConnections: connections that are over hide no others, however many there are.
func TestEndedConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	out, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	local, remote := addrPort(out.LocalAddr()), addrPort(out.RemoteAddr())
	if err := out.Close(); err != nil { // who closes first has to wait
		t.Fatal(err)
	}
	if _, err := in.Read(make([]byte, 1)); err == nil {
		t.Fatal("the connection has not ended")
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	found, err := Find(guestrpc.SocketQuery{Network: "tcp", Local: local, Remote: remote})
	if err != nil || len(found) != 1 || found[0].State != timeWait {
		t.Skipf("it is in no TIME_WAIT: %+v, %v", found, err)
	}
	for name, list := range map[string]func() ([]guestrpc.Socket, error){"asked": List, "tables": listTables} {
		all, err := list()
		if err != nil || slices.ContainsFunc(all, func(s guestrpc.Socket) bool { return s.State == timeWait }) {
			t.Errorf("%s: a connection that is over is listed, or %v", name, err)
		}
	}
}

// TestOtherProcess finds the process that uses a socket, not the one that left it open.
func TestOtherProcess(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	child := exec.Command("sleep", "100")
	child.ExtraFiles = []*os.File{f}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	got, err := Find(guestrpc.SocketQuery{Network: "tcp", Local: addrPort(l.Addr())})
	if err != nil || len(got) != 1 || got[0].PID != child.Process.Pid || got[0].Process != "sleep" {
		t.Errorf("got %+v, %v; want process %d", got, err, child.Process.Pid)
	}
}

// recordedDiag is Linux 6.18's answer on amd64 for a listener at 127.0.0.1:8080, and recordedTable has the same.
const (
	recordedDiag = "020a0000" + "1f900000" + "7f000001000000000000000000000000" + "00000000000000000000000000000000" +
		"00000000" + "0a00000000000000" + "00000000" + "00000000" + "00100000" + "00000000" + "d6fb0000" + "0500080000000000" +
		"08000f0000000000" + "0c00150001000000" + "00000000"
	recordedTable = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 64470 1 0000000022296ab1 100 0 0 10 0
`
)

func TestRecorded(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("recorded on a little-endian processor")
	}
	want := entry{Socket: guestrpc.Socket{
		Family: 4, Network: "tcp", Local: netip.MustParseAddrPort("127.0.0.1:8080"), Remote: netip.MustParseAddrPort("0.0.0.0:0"),
		State: guestrpc.SocketListen,
	}, inode: 64470}
	message, err := hex.DecodeString(recordedDiag)
	if err != nil {
		t.Fatal(err)
	}
	inGroup := want
	inGroup.group = 1
	if got, err := parseDiag(message, "tcp"); err != nil || got != inGroup {
		t.Errorf("message: got %+v, %v", got, err)
	}
	if _, err := parseDiag(message[:messageSize-1], "tcp"); err == nil {
		t.Error("a message that is cut off is taken")
	}
	if got := appendTable(nil, recordedTable, "tcp", alive); len(got) != 1 || got[0] != want {
		t.Errorf("table: got %+v", got)
	}
}

// TestOwnersAreBounded: a process with very many descriptors does not exceed the bound.
func TestOwnersAreBounded(t *testing.T) {
	proc := t.TempDir()
	for _, pid := range []string{"5", "70"} {
		if err := os.MkdirAll(filepath.Join(proc, pid, "fd"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for i, target := range []string{"socket:[1]", "socket:[2]", "/dev/null", "socket:[x]", "pipe:[3]"} {
		if err := os.Symlink(target, filepath.Join(proc, "70", "fd", string(rune('0'+i)))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("socket:[3]", filepath.Join(proc, "5", "fd", "0")); err != nil {
		t.Fatal(err)
	}
	give := []entry{{inode: 1}, {inode: 2}, {inode: 3}, {inode: 0}, {inode: 2}}
	for _, tt := range []struct {
		name string
		left int
		want []int
	}{
		{"all", 100, []int{70, 70, 5, 0, 70}},
		{"as far as it goes", 5, []int{70, 70, 0, 0, 70}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []int
			for _, s := range withOwners(proc, give, tt.left) {
				got = append(got, s.PID)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// FuzzDiag reads arbitrary bytes as the kernel's message, and as a table.
func FuzzDiag(f *testing.F) {
	if b, err := hex.DecodeString(recordedDiag); err == nil {
		f.Add(b)
	}
	f.Add([]byte(recordedTable))
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, err := parseDiag(b, "tcp"); err == nil && !e.Local.IsValid() {
			t.Errorf("got %+v", e)
		}
		for _, e := range appendTable(nil, string(b), "udp", alive) {
			if !e.Local.IsValid() || !e.Remote.IsValid() {
				t.Errorf("got %+v", e)
			}
		}
	})
}

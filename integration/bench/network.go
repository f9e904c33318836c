//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"agentvm/vm"
)

// Where the guests see the host's loopback: ours at host.agentvm.internal, libslirp's at the address of its gateway.
const (
	ownHost  = "192.168.127.254"
	qemuHost = "10.0.2.2"
)

// networkSide is a guest with the servers it measures against.
type networkSide struct {
	name  string
	guest guest
	host  string // address of the host's servers, in the guest
}

// measureNetwork moves bytes between a guest and servers on the host's loopback, in turn with QEMU's user-mode network, the
// peer that needs no privileges either. netprobe measures inside the guest, by the guest's clock.
func measureNetwork(ctx context.Context, b *bench) error {
	probe, err := buildProbe(ctx, b.kit)
	if err != nil {
		return err
	}
	servers, err := startServers(b.transferSize())
	if err != nil {
		return err
	}
	defer servers.close()
	ours, err := startOwn(ctx, servers.config(b.kit.config()))
	if err != nil {
		return err
	}
	defer ours.close()
	theirs, err := b.kit.startQEMU(ctx, qemuNetwork())
	if err != nil {
		return err
	}
	defer theirs.close()
	sides := []networkSide{{"agentvm", ours, ownHost}, {"qemu", theirs, qemuHost}}
	for _, s := range sides {
		if err := s.guest.put(ctx, "/tmp/netprobe", probe); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	if err := measureTransfers(ctx, b, sides, servers); err != nil {
		return err
	}
	if err := measureLatency(ctx, b, sides, servers); err != nil {
		return err
	}
	return measureManyFlows(ctx, b, ours, sides[0].host, servers)
}

func (b *bench) transferSize() int {
	if b.quick {
		return 8 << 20
	}
	return 64 << 20
}

// buildProbe compiles netprobe for the guest.
func buildProbe(ctx context.Context, k *kit) ([]byte, error) {
	const compiler = "riscv64-linux-gnu-gcc"
	if err := needTool(compiler, "gcc-riscv64-linux-gnu"); err != nil {
		return nil, err
	}
	_, err := output(exec.CommandContext(ctx, compiler, "-O2", "-static", "-s", "-Wall", "-Wextra", "-Werror",
		"-o", k.path("netprobe"), k.root+"/integration/bench/netprobe/netprobe.c"))
	if err != nil {
		return nil, err
	}
	return os.ReadFile(k.path("netprobe"))
}

// transfers are what moves transferSize bytes. Commands print nanoseconds of the guest's clock, or nothing, and then the
// time of the whole command counts.
var transfers = []struct {
	name, figure, line string
	port               func(*servers) int
	bar                bar
}{
	{"download", "download, 256 KiB reads", "/tmp/netprobe get %s %d", (*servers).source, bar{}},
	{"wget", "download, busybox `wget -O /dev/null`", "wget -qO /dev/null http://%s:%d/", (*servers).web, atLeast(20)},
	{"upload", "upload, 256 KiB writes", "/tmp/netprobe put %s %d " + sizePlace, (*servers).sink, atLeast(15)},
}

// sizePlace is where a line has the number of bytes.
const sizePlace = "SIZE"

func measureTransfers(ctx context.Context, b *bench, sides []networkSide, to *servers) error {
	for _, transfer := range transfers {
		speeds := make([]samples, len(sides))
		for range b.rounds(5) {
			for i, s := range sides {
				line := strings.ReplaceAll(fmt.Sprintf(transfer.line, s.host, transfer.port(to)), sizePlace, strconv.Itoa(to.size))
				took, err := timed(s.guest.pid(), func() error { _, err := s.guest.sh(ctx, line); return err })
				if err != nil {
					return fmt.Errorf("%s on %s: %w", transfer.name, s.name, err)
				}
				speed := float64(to.size) / 1e6 / took.wall.Seconds()
				speeds[i] = append(speeds[i], speed)
				b.report.value("Network/"+transfer.name+"/"+s.name, speed, "MB/s")
			}
		}
		ratio := speeds[0].over(speeds[1])
		b.report.add(figure{name: transfer.figure, unit: "MB/s", value: speeds[0].median(), spread: speeds[0], bar: transfer.bar})
		b.report.add(figure{name: transfer.figure, unit: "times QEMU's speed", value: ratio.median(), spread: ratio})
	}
	return nil
}

// measureLatency measures single connections, and names that the resolver knows by heart. libslirp has no resolver of its own.
func measureLatency(ctx context.Context, b *bench, sides []networkSide, to *servers) error {
	count := 200
	if b.quick {
		count = 50
	}
	var medians samples
	for _, s := range sides {
		took, err := s.probe(ctx, fmt.Sprintf("connect %s %d %d", s.host, to.sink(), count))
		if err != nil {
			return err
		}
		medians = append(medians, took.median())
		b.report.value("Network/connect/"+s.name, took.median(), "ms")
		if len(medians) == 1 {
			b.report.add(figure{name: "connect through NAT, median", unit: "ms", value: took.median(), spread: took, bar: atMost(3)})
		}
	}
	b.report.add(figure{name: "connect through NAT, median", unit: "times QEMU's", value: medians[0] / medians[1]})
	took, err := sides[0].probe(ctx, fmt.Sprintf("dns 192.168.127.1 bench.example %d", count))
	if err != nil {
		return err
	}
	b.report.value("Network/dns/agentvm", took.median(), "ms")
	b.report.add(figure{name: "look-up of a cached name, median", unit: "ms", value: took.median(), spread: took, bar: atMost(2)})
	return nil
}

// probe runs netprobe and returns its readings in milliseconds.
func (s networkSide) probe(ctx context.Context, arguments string) (samples, error) {
	out, err := s.guest.sh(ctx, "/tmp/netprobe "+arguments)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	var readings samples
	for word := range strings.FieldsSeq(out) {
		ns, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: netprobe printed %.40q", s.name, word)
		}
		readings = append(readings, float64(ns)/1e6)
	}
	return readings, nil
}

// manyFlows is how many connections a guest holds open in the measurement of their memory.
const manyFlows = 500

// measureManyFlows opens many connections at once and measures what they cost this process while they are idle: the Go heap
// in use and the stacks of its goroutines, which is where flows live.
func measureManyFlows(ctx context.Context, b *bench, g *ownGuest, host string, to *servers) error {
	for deadline := time.Now().Add(10 * time.Second); openFlows(ctx, g) > 0; { // those of measureLatency
		if time.Now().After(deadline) {
			return errors.New("flows of connections that have ended stay open")
		}
		time.Sleep(settleTime)
	}
	before := memoryInUse()
	stdin, hold := io.Pipe()
	started := make(chan struct{})
	var once sync.Once
	p, err := g.vm.Start(ctx, vm.Command{
		Line: fmt.Sprintf("ulimit -n 4096; /tmp/netprobe hold %s %d %d", host, to.sink(), manyFlows), Stdin: stdin,
		Stdout: writerFunc(func(p []byte) (int, error) { once.Do(func() { close(started) }); return len(p), nil }),
	})
	if err != nil {
		return err
	}
	select {
	case <-started:
	case <-ctx.Done():
		return ctx.Err()
	}
	open := openFlows(ctx, g)
	each := (memoryInUse() - before) / manyFlows / 1024
	_ = hold.Close()
	r, err := p.Wait(ctx)
	if err != nil {
		return err
	}
	if r.ExitCode != 0 || open != manyFlows {
		return fmt.Errorf("%d connections at once: %d are open, exit %d: %s", manyFlows, open, r.ExitCode, r.Stderr)
	}
	b.report.value("Network/idleflow", each, "KiB/flow")
	b.report.add(figure{name: fmt.Sprintf("memory of one of %d idle flows", manyFlows), unit: "KiB", value: each, bar: atMost(64)})
	return nil
}

func openFlows(ctx context.Context, g *ownGuest) (count int) {
	flows, _ := g.vm.Flows(ctx) // never fails
	for _, f := range flows {
		if f.Protocol == "tcp" && f.State != "CLOSED" {
			count++
		}
	}
	return count
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// servers are what both guests talk to, on loopback: one that sends, the same as a web server, and one that receives.
type servers struct {
	size      int
	listeners [3]net.Listener
	resolver  net.PacketConn
	running   sync.WaitGroup
}

func startServers(size int) (*servers, error) {
	s := &servers{size: size}
	for i, handle := range []func(net.Conn){s.send, s.sendHTTP, receive} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			s.close()
			return nil, err
		}
		s.listeners[i] = l
		s.running.Go(func() { s.accept(l, handle) })
	}
	var err error
	if s.resolver, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
		s.close()
		return nil, err
	}
	s.running.Go(s.resolve)
	return s, nil
}

func (s *servers) port(i int) int { return s.listeners[i].Addr().(*net.TCPAddr).Port }
func (s *servers) source() int    { return s.port(0) }
func (s *servers) web() int       { return s.port(1) }
func (s *servers) sink() int      { return s.port(2) }

// config opens the servers to a VM.
func (s *servers) config(c vm.Config) vm.Config {
	c.Network.HostPorts = []uint16{uint16(s.source()), uint16(s.web()), uint16(s.sink())}
	c.Network.Resolvers = []netip.AddrPort{netip.MustParseAddrPort(s.resolver.LocalAddr().String())}
	return c
}

func (s *servers) accept(l net.Listener, handle func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		s.running.Go(func() {
			defer c.Close()
			handle(c)
		})
	}
}

// send writes size bytes. A guest that goes away early shows in its own result.
func (s *servers) send(c net.Conn) {
	zeros := make([]byte, 1<<20)
	for left := s.size; left > 0; left -= len(zeros) {
		if _, err := c.Write(zeros[:min(left, len(zeros))]); err != nil {
			return
		}
	}
}

// sendHTTP does so as the answer to a request, whatever it asks.
func (s *servers) sendHTTP(c net.Conn) {
	var request [4096]byte
	if _, err := c.Read(request[:]); err != nil {
		return
	}
	fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n", s.size)
	s.send(c)
}

func receive(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

// answerAddr is what every name has. It has to be public: the gate refuses answers with restricted addresses, those for
// documentation among them. Nothing connects to it.
var answerAddr = netip.MustParseAddr("198.51.101.7")

// resolve answers every query with answerAddr, for an hour.
func (s *servers) resolve() {
	answer := append([]byte{0xc0, 12, 0, 1, 0, 1, 0, 0, 14, 16, 0, 4}, answerAddr.AsSlice()...) // RFC 1035, section 4.1.3
	buffer := make([]byte, 1500)
	for {
		n, from, err := s.resolver.ReadFrom(buffer)
		if err != nil {
			return
		}
		query := buffer[:n]
		end := 12
		for end < n && query[end] != 0 {
			end += int(query[end]) + 1
		}
		if end += 5; end > n { // the root's label, type and class
			continue
		}
		reply := append(append([]byte(nil), query[:end]...), answer...)
		reply[2], reply[3] = 0x81, 0x80             // an answer, recursion available
		copy(reply[6:12], []byte{0, 1, 0, 0, 0, 0}) // one answer and nothing else
		_, _ = s.resolver.WriteTo(reply, from)
	}
}

func (s *servers) close() {
	for _, l := range s.listeners {
		if l != nil {
			_ = l.Close()
		}
	}
	if s.resolver != nil {
		_ = s.resolver.Close()
	}
	s.running.Wait()
}

package router

import (
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/egress"
	"agentvm/internal/host/budget"
	"agentvm/internal/network/reach"
	"agentvm/internal/test/leaktest"
	"agentvm/nat"
	"agentvm/wasi"
)

// TestMain looks for goroutines that a network leaves behind.
func TestMain(m *testing.M) { leaktest.Main(m) }

func testConfig(n Network) Config {
	return Config{
		Network: n, Link: wasi.NewStream(1 << 16).Host(), Ports: reach.NewPorts(reach.Access{}, n.Forwards), HostMemory: budget.New(1<<20, nil),
		Connections: reach.NewConnections(slog.New(slog.DiscardHandler)), Memory: 256 << 20, MaxMounts: 8, Logger: slog.New(slog.DiscardHandler),
	}
}

func openTestNetwork(t *testing.T, config Network) *Router {
	t.Helper()
	if config.Resolvers == nil {
		config.Resolvers = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")}
	}
	n, err := Open(testConfig(config))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

// A network that never had a machine leaves nothing behind; TestMain looks for its goroutines.
func TestNetworkWithoutAMachine(t *testing.T) {
	for range 20 {
		n := openTestNetwork(t, Network{Forwards: []nat.Forward{{GuestPort: 80}, {GuestPort: 53, Protocol: "udp"}}})
		if len(n.forwards) != 2 {
			t.Errorf("forwards %v", n.forwards)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		if err := n.Close(); err != nil {
			t.Errorf("closed twice: %v", err)
		}
	}
	if n, err := Open(Config{Network: Network{Disabled: true}}); n != nil || err != nil || n.Close() != nil {
		t.Errorf("a network: %v, %v", n, err)
	}
}

func denial(to string, names ...string) egress.Event {
	return egress.Event{
		Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Kind: egress.KindTCP, Verdict: egress.VerdictDeny, Names: names,
		Source: netip.MustParseAddrPort("192.168.127.3:40000"), Destination: netip.MustParseAddrPort(to), Reason: "because", Message: "it is so",
	}
}

func TestDenialLine(t *testing.T) {
	named := denial("203.0.112.1:443", "example.com", "other.example")
	named.Process, named.Flow, named.Rule, named.Message = "wget[7]", 12, "*:443/tcp", `it is "so"`
	query := egress.Event{Time: named.Time, Kind: egress.KindDNS, Verdict: egress.VerdictDeny, Source: named.Source, Names: []string{"example.com"}, Query: "AAAA", Message: "no"}
	hostile := denial("203.0.112.1:443", "a\nb\x1b[2J\xff")
	hostile.Process = "x reason=y \"[1]"
	const begin = "time=2026-01-02T03:04:05.000000Z verdict=deny "
	udp := denial("[2001:db9::1]:53")
	udp.Kind = egress.KindUDP
	echo := denial("203.0.112.1:0")
	echo.Kind = egress.KindICMP
	tests := []struct {
		name  string
		event egress.Event
		want  string
	}{
		{"address", denial("203.0.112.1:443"), begin + `kind=tcp source=192.168.127.3:40000 destination=203.0.112.1:443 reason=because message="it is so"`},
		{"all of it", named, begin + `kind=tcp source=192.168.127.3:40000 destination=203.0.112.1:443 names=example.com,other.example process=wget[7] flow=12 ` +
			`rule=*:443/tcp reason=because message="it is \"so\""`},
		{"query", query, begin + `kind=dns source=192.168.127.3:40000 names=example.com query=AAAA message="no"`},
		{"UDP over IPv6", udp, begin + `kind=udp source=192.168.127.3:40000 destination=[2001:db9::1]:53 reason=because message="it is so"`},
		{"echo", echo, begin + `kind=icmp source=192.168.127.3:40000 destination=203.0.112.1:0 reason=because message="it is so"`},
		{
			"hostile name and process", hostile, begin + `kind=tcp source=192.168.127.3:40000 destination=203.0.112.1:443 names=a?b?[2J? ` +
				`process="x reason=y \"[1]" reason=because message="it is so"`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, denialLine(test.event)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A guest that takes no reports, and asks for much, costs a bounded amount and delays nothing else.
func TestRecorderIsBounded(t *testing.T) {
	events := 0
	r := newRecorder(func(egress.Event) { events++ }, newOwners())
	const many = 3 * maxReports
	for i := range many {
		r.record(denial(fmt.Sprintf("203.0.112.1:%d", i+1)))
		r.observe(nat.FlowEvent{Kind: nat.FlowOpened, Flow: nat.Flow{Direction: nat.In, Protocol: "tcp"}})
	}
	list := r.list()
	if events != many || len(list) != maxDenials || list[maxDenials-1].Destination.Port() != many || len(r.lines) != maxReports {
		t.Errorf("%d events, %d remembered, the last %+v, %d queued", events, len(list), list[len(list)-1], len(r.lines))
	}
	ctx := t.Context()
	lines := r.batch(ctx)
	if len(lines) != reportBatch+1 || !strings.HasSuffix(lines[reportBatch], fmt.Sprintf(` verdict=deny lost=%d message="%[1]d more were denied"`, many-maxReports)) {
		t.Errorf("%d lines, the last %q", len(lines), lines[len(lines)-1])
	}
	if again := r.batch(ctx); len(again) != reportBatch {
		t.Errorf("%d lines", len(again))
	}
}

func TestRelay(t *testing.T) {
	var got []egress.Event
	r := newRecorder(func(e egress.Event) { got = append(got, e) }, newOwners())
	inward := nat.Flow{
		ID: 3, Direction: nat.In, Protocol: "tcp", Sent: 5, Received: 6,
		Source: netip.MustParseAddrPort("127.0.0.1:40000"), Destination: netip.MustParseAddrPort("192.168.127.3:80"),
	}
	outward := inward
	outward.Direction = nat.Out
	for _, e := range []nat.FlowEvent{
		{Kind: nat.FlowOpened, Flow: inward},
		{Kind: nat.FlowClosed, Flow: inward, Reason: nat.ReasonDone, Duration: time.Second},
		{Kind: nat.FlowOpened, Flow: outward}, // the gate tells of it
		{Kind: nat.FlowFailed, Flow: outward, Reason: nat.ReasonLimit, Err: &nat.LimitError{Limit: "tcp flows", Maximum: 9}},
		{Kind: nat.LimitWarning, Reason: nat.ReasonLimit},
	} {
		r.observe(e)
	}
	for range maxFlowEvents {
		r.observe(nat.FlowEvent{Kind: nat.FlowOpened, Flow: inward})
	}
	ended := make(chan struct{})
	close(ended)
	r.relay(ended)
	if len(got) != maxFlowEvents || got[0].Lost != 3 {
		t.Fatalf("%d events, the first %+v", len(got), got[0])
	}
	got[0].Lost = 0
	want := []egress.Event{
		{
			Kind: "tcp", Verdict: egress.VerdictAllow, Flow: egress.InwardFlows + 3, Reason: egress.ReasonForward, Sent: 5, Received: 6,
			Source: inward.Source, Destination: inward.Destination,
		},
		{
			Kind: "tcp", Verdict: egress.VerdictClose, Flow: egress.InwardFlows + 3, Reason: egress.ReasonForward, Sent: 5, Received: 6, Duration: 1,
			Source: inward.Source, Destination: inward.Destination, Message: "done",
		},
		{
			Kind: "tcp", Verdict: egress.VerdictError, Reason: egress.ReasonLimit, Sent: 5, Received: 6, Source: inward.Source,
			Destination: inward.Destination, Message: (&nat.LimitError{Limit: "tcp flows", Maximum: 9}).Error(),
		},
	}
	if diff := cmp.Diff(want, got[:3], cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// A connection through a forward that is refused is a denial in the audit.
func TestRefusedForwardIsADenial(t *testing.T) {
	refusal := reach.Decide(reach.Access{}, reach.CallerOutside, reach.OpLoopback, 80)
	e := inwardEvent(nat.FlowEvent{Kind: nat.FlowDenied, Flow: nat.Flow{ID: 7, Direction: nat.In, Protocol: "tcp"}, Reason: nat.ReasonPolicy, Err: refusal})
	if e.Verdict != egress.VerdictDeny || e.Reason != egress.ReasonForward || e.Message != refusal.Error() || e.Flow != egress.InwardFlows+7 {
		t.Errorf("%+v", e)
	}
}

// A guest that opens connections and sends nothing can hold only a few of them, and those end with the network.
func TestPageIsBounded(t *testing.T) {
	n := openTestNetwork(t, Network{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.running.Go(func() { n.status.serve(l) })
	ended := make(chan error, maxStatusConns+4)
	for range maxStatusConns + 4 {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			defer conn.Close()
			_, err := conn.Read(make([]byte, 1))
			ended <- err
		}()
	}
	for range 4 {
		<-ended // those above the limit
	}
	for deadline := time.Now().Add(20 * time.Second); n.status.conns.Open() != maxStatusConns; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are open, want %d", n.status.conns.Open(), maxStatusConns)
		}
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	for range maxStatusConns {
		<-ended
	}
}

// TestPageEndsWhileConnectionsCome closes networks at the moment when the page's server accepts a silent connection.
func TestPageEndsWhileConnectionsCome(t *testing.T) {
	for i := range 100 {
		n := openTestNetwork(t, Network{})
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		n.running.Go(func() { n.status.serve(l) })
		stop, dialled := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(dialled)
			for {
				conn, err := net.Dial("tcp", l.Addr().String())
				if err != nil {
					return
				}
				defer conn.Close()
				select {
				case <-stop:
					return
				default:
				}
			}
		}()
		time.Sleep(time.Duration(i) * 20 * time.Microsecond)
		began := time.Now()
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took >= statusTime {
			t.Errorf("close waited %v for a connection that says nothing", took)
		}
		close(stop)
		<-dialled
	}
}

func TestExplainWithoutAVM(t *testing.T) {
	private, err := egress.ParseRule("10.0.0.0/8")
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name    string
		network Network
		host    string
		port    uint16
		allowed bool
	}{
		{"public", Network{}, "example.com", 443, true},
		{"private", Network{}, "10.0.0.1", 443, false},
		{"open", Network{Policy: egress.Policy{Mode: egress.Open}}, "10.0.0.1", 443, true},
		{"opened port", Network{HostPorts: []uint16{5432}}, egress.HostName, 5432, true},
		{"another port", Network{HostPorts: []uint16{5432}}, egress.HostName, 22, false},
		{"the subnet itself", Network{Policy: egress.Policy{Mode: egress.Open}, Subnet: netip.MustParsePrefix("10.1.0.0/16")}, "10.1.0.1", 80, false},
		{"disabled", Network{Disabled: true}, "example.com", 443, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if err := test.network.Check(); err != nil {
				t.Error(err)
			}
			d, err := Explain(test.network, reach.Access{}, test.host, test.port, "tcp")
			if err != nil || d.Allowed != test.allowed || d.Message == "" {
				t.Errorf("%+v, %v", d, err)
			}
		})
	}
	if err := (Network{Policy: egress.Policy{Allow: []egress.Rule{private}}}).Check(); err == nil {
		t.Error("a rule for private addresses is allowed in mode allowlist")
	}
}

func TestOwnersWithoutAGuest(t *testing.T) {
	o := newOwners()
	from, to := netip.MustParseAddrPort("192.168.127.3:1"), netip.MustParseAddrPort("203.0.112.1:1")
	if name := o.find(time.Minute, "tcp", from, to); name != "" || len(o.known) > 0 {
		t.Errorf("%q, %d known", name, len(o.known))
	}
}

// TestAddresses: an address that says the default is no other one, and what cannot be is refused with what would be right.
func TestAddresses(t *testing.T) {
	prefix := netip.MustParsePrefix
	same, err := Complete(Network{Subnet: prefix("10.9.0.0/24"), Address: netip.MustParseAddr("10.9.0.3"), MAC: "02:00:00:00:00:42"})
	if err != nil || same.Address.IsValid() {
		t.Errorf("%v, %v", same.Address, err)
	}
	for want, n := range map[string]Network{
		"want private addresses":        {Subnet: prefix("8.8.8.0/24")},
		"of 10.0.0.0/8":                 {Subnet: prefix("10.0.0.0/7")},
		"hides no server":               {Subnet: prefix("127.0.0.0/24")},
		"between /8 and /29":            {Subnet: prefix("10.0.0.0/30")},
		"want one in 10.9.0.0/24":       {Subnet: prefix("10.9.0.0/24"), Address: netip.MustParseAddr("10.8.0.3")},
		"the gateway has 10.9.0.1":      {Subnet: prefix("10.9.0.0/24"), Address: netip.MustParseAddr("10.9.0.1")},
		"want the address of one":       {MAC: "01:00:00:00:00:01"},
		`MAC "x"`:                       {MAC: "x"},
		`MAC "00:00:00:00:00:00"`:       {MAC: "00:00:00:00:00:00"},
		`MAC "02:00:00:00:00:00:00:01"`: {MAC: "02:00:00:00:00:00:00:01"},
	} {
		_, err := Complete(n)
		if err == nil {
			err = n.Check()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", n, err, want)
		}
	}
}

// Each VM has a recorder, and most have nothing to record.
func TestRecorderTakesLittle(t *testing.T) {
	least := uint64(math.MaxUint64) // others may allocate at the same time
	for range 5 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r := newRecorder(nil, nil)
		runtime.ReadMemStats(&after)
		least = min(least, after.TotalAlloc-before.TotalAlloc)
		runtime.KeepAlive(r)
	}
	if least > 64<<10 {
		t.Errorf("a recorder takes %d KiB", least>>10)
	}
}

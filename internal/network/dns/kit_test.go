package dns

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"agentvm/internal/test/leaktest"
	"agentvm/internal/test/testclock"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// handler answers one query of an upstream server; nil: silence.
type handler func(network string, query *dns.Msg) *dns.Msg

// upstreamServer is a recursive server on loopback, with UDP and TCP on one port.
type upstreamServer struct {
	address netip.AddrPort

	mu      sync.Mutex
	handle  handler
	queries []string // network, name and type, in order
}

// newUpstream starts a server that ends with the test.
func newUpstream(t testing.TB, handle handler) *upstreamServer {
	t.Helper()
	u := &upstreamServer{handle: handle}
	listener, packets := listenBoth(t)
	u.address = listener.Addr().(*net.TCPAddr).AddrPort()
	for _, server := range []*dns.Server{{Listener: listener}, {PacketConn: packets}} {
		network := "udp"
		if server.Listener != nil {
			network = "tcp"
		}
		server.Handler = dns.HandlerFunc(func(w dns.ResponseWriter, query *dns.Msg) { u.serve(network, w, query) })
		ended := make(chan struct{})
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		go func() {
			defer close(ended)
			server.ActivateAndServe()
		}()
		<-started
		t.Cleanup(func() {
			server.Shutdown()
			<-ended
		})
	}
	return u
}

// listenBoth finds a port that is free for both.
func listenBoth(t testing.TB) (net.Listener, net.PacketConn) {
	t.Helper()
	for range 100 {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		packets, err := net.ListenPacket("udp", listener.Addr().String())
		if err == nil {
			return listener, packets
		}
		listener.Close()
	}
	t.Fatal("no port is free for UDP and TCP")
	return nil, nil
}

func (u *upstreamServer) serve(network string, w dns.ResponseWriter, query *dns.Msg) {
	u.mu.Lock()
	u.queries = append(u.queries, network+" "+query.Question[0].Name+" "+dns.TypeToString[query.Question[0].Qtype])
	handle := u.handle
	u.mu.Unlock()
	if reply := handle(network, query); reply != nil {
		w.WriteMsg(reply)
	}
}

// newPiped makes servers that pipes lead to (dialPipes), for tests whose time is synctest's.
func newPiped(handlers ...handler) (servers []*upstreamServer) {
	for i, handle := range handlers {
		address := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), 53)
		servers = append(servers, &upstreamServer{address: address, handle: handle})
	}
	return servers
}

// dialPipes connects to servers of newPiped; other addresses do not answer.
func dialPipes(servers []*upstreamServer) dialer {
	return func(_ context.Context, network, address string) (net.Conn, error) {
		for _, u := range servers {
			if u.address.String() == address {
				ours, theirs := net.Pipe()
				go u.servePipe(network, theirs)
				return ours, nil
			}
		}
		return nil, syscall.ECONNREFUSED
	}
}

// servePipe answers queries, each by itself, until the other end closes.
func (u *upstreamServer) servePipe(network string, conn net.Conn) {
	defer conn.Close()
	prefix := 0
	if network == "tcp" {
		prefix = 2
	}
	for {
		buffer := make([]byte, 2000)
		n, err := conn.Read(buffer)
		query := new(dns.Msg)
		if err != nil || n < prefix || query.Unpack(buffer[prefix:n]) != nil {
			return
		}
		go u.serve(network, &pipeWriter{conn: conn, prefix: prefix}, query)
	}
}

// pipeWriter is as much of a ResponseWriter as upstreamServer needs.
type pipeWriter struct {
	dns.ResponseWriter
	conn   net.Conn
	prefix int
}

func (w *pipeWriter) WriteMsg(m *dns.Msg) error {
	b, err := m.Pack()
	if err != nil {
		return err
	}
	if w.prefix > 0 {
		b = framed(b)
	}
	_, err = w.conn.Write(b)
	return err
}

func (u *upstreamServer) setHandler(handle handler) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.handle = handle
}

func (u *upstreamServer) asked() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return append([]string(nil), u.queries...)
}

// reply makes a recursive server's reply with records in master file form; a record "NXDOMAIN" or the like sets the RCODE,
// "ns:" and "extra:" before a record choose the section.
func reply(query *dns.Msg, records ...string) *dns.Msg {
	m := new(dns.Msg)
	m.SetReply(query)
	m.RecursionAvailable = true
	for _, text := range records {
		if rcode, ok := dns.StringToRcode[text]; ok {
			m.Rcode = rcode
			continue
		}
		section, text := &m.Answer, text
		if rest, ok := strings.CutPrefix(text, "ns:"); ok {
			section, text = &m.Ns, rest
		} else if rest, ok := strings.CutPrefix(text, "extra:"); ok {
			section, text = &m.Extra, rest
		}
		rr, err := dns.NewRR(text)
		if err != nil {
			panic(text + ": " + err.Error())
		}
		*section = append(*section, rr)
	}
	return m
}

// zone answers from a table by "name type"; what is not in it does not exist.
func zone(records map[string][]string) handler {
	return func(_ string, query *dns.Msg) *dns.Msg {
		q := query.Question[0]
		if list, ok := records[strings.ToLower(q.Name)+" "+dns.TypeToString[q.Qtype]]; ok {
			return reply(query, list...)
		}
		return reply(query, "NXDOMAIN", "ns:. 300 IN SOA a.root. b.root. 1 2 3 4 60")
	}
}

// policy is a Policy that records. Names and addresses in deny are denied with their text as reason.
type policy struct {
	mu    sync.Mutex
	deny  map[string]string
	told  []string // name [chain] address ttl
	asked []string // name type answer [| denied]

	clients []Client // of asked
}

type denied string

func (d denied) Error() string { return string(d) }
func (d denied) Denied() bool  { return true }

func (p *policy) set(deny map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deny = deny
}

func (p *policy) Question(name string, qtype uint16) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range []string{name, name + " " + dns.TypeToString[qtype]} {
		if reason, ok := p.deny[k]; ok {
			return denied(reason)
		}
	}
	return nil
}

func (p *policy) Answer(name string, chain []string, addr netip.Addr, ttl time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = append(p.told, strings.Join(append([]string{name}, chain...), ">")+" "+addr.String()+" "+ttl.String())
	for _, k := range append([]string{addr.String(), name}, chain...) {
		if reason, ok := p.deny[k]; ok {
			return denied(reason)
		}
	}
	if addr.Unmap().IsLoopback() || addr.Unmap().IsPrivate() {
		return denied(addr.String() + " is not a public address")
	}
	return nil
}

func (p *policy) Asked(who Client, name string, qtype uint16, answer string, deniedBy error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := name + " " + dns.TypeToString[qtype] + " " + answer
	if deniedBy != nil {
		line += " | " + deniedBy.Error()
	}
	p.asked, p.clients = append(p.asked, line), append(p.clients, who)
}

func (p *policy) reports() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.asked...)
}

// kit is a server with what it talks to.
type kit struct {
	*Server
	policy *policy
	clock  *testclock.Clock
}

func newKit(t testing.TB, change func(*Config), servers ...*upstreamServer) *kit {
	t.Helper()
	k := &kit{policy: &policy{}, clock: testclock.New()}
	config := Config{Dial: new(net.Dialer).DialContext, Policy: k.policy, Now: k.clock.Now, Hosts: map[string][]netip.Addr{
		Zone:           {netip.MustParseAddr("192.168.127.1"), netip.MustParseAddr("fd5a:94ef:e40c::1")},
		"host." + Zone: {netip.MustParseAddr("192.168.127.254")},
	}}
	for _, u := range servers {
		config.Upstreams = append(config.Upstreams, u.address)
	}
	if change != nil {
		change(&config)
	}
	var err error
	if k.Server, err = New(config); err != nil {
		t.Fatal(err)
	}
	return k
}

// patient is for tests that count questions: none is asked again soon, however slow the server is on a busy host.
func patient(c *Config) { c.Timeout = time.Minute }

// noDial fails the test when anything goes out.
func noDial(t testing.TB) func(context.Context, string, string) (net.Conn, error) {
	return func(_ context.Context, network, address string) (net.Conn, error) {
		t.Errorf("dialled %s %s", network, address)
		return nil, errors.New("no network in this test")
	}
}

// question packs a query as a guest's library does.
func question(name string, kind uint16, change ...func(*dns.Msg)) []byte {
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(name), kind)
	for _, f := range change {
		f(m)
	}
	b, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return b
}

func withEDNS(m *dns.Msg) { m.SetEdns0(datagramSize, false) }

// get asks and returns the parsed reply.
func (k *kit) get(t testing.TB, name string, kind uint16, change ...func(*dns.Msg)) *dns.Msg {
	t.Helper()
	return k.send(t, question(name, kind, change...), true)
}

func (k *kit) send(t testing.TB, query []byte, datagram bool) *dns.Msg {
	t.Helper()
	return parse(t, k.Reply(t.Context(), query, datagram))
}

func parse(t testing.TB, b []byte) *dns.Msg {
	t.Helper()
	m := new(dns.Msg)
	if err := m.Unpack(b); err != nil {
		t.Fatalf("the reply %x does not parse: %v", b, err)
	}
	return m
}

// summary is a reply in a few words: RCODE, records without owner and class, extended error.
func summary(m *dns.Msg) string {
	words := []string{dns.RcodeToString[m.Rcode]}
	for _, rr := range m.Answer {
		fields := strings.Fields(rr.String())
		words = append(words, fields[1]+" "+strings.Join(fields[3:], " "))
	}
	for _, rr := range m.Ns {
		words = append(words, "ns "+dns.TypeToString[rr.Header().Rrtype])
	}
	for _, rr := range m.Extra {
		opt, ok := rr.(*dns.OPT)
		if !ok {
			words = append(words, "extra "+rr.String())
			continue
		}
		for _, o := range opt.Option {
			words = append(words, o.String())
		}
	}
	return strings.Join(words, "; ")
}

package network

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"agentvm/egress"
	"agentvm/images"
	"agentvm/images/storetest"
	"agentvm/vm"
)

var store storetest.Store

func TestMain(m *testing.M) { os.Exit(store.Main(m.Run)) }

// guest is a VM with what it is tested against.
type guest struct {
	*vm.VM
	t      *testing.T
	image  string
	outer  *outerNet
	events *recorder
}

// boot starts a VM. Its resolver is a server of the test's, and public addresses are servers of the test's too.
func boot(t *testing.T, network vm.Network) *guest {
	t.Helper()
	g := &guest{t: t, image: store.Image(t), outer: newOuterNet(t), events: &recorder{}}
	network.Dial = g.outer.dial
	network.Resolvers = []netip.AddrPort{g.outer.resolver}
	network.Audit = g.events.add
	v, err := vm.Start(limited(t), vm.Config{StoreDir: store.Dir(), Image: g.image, Memory: 256 << 20, Network: network})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	g.VM = v
	return g
}

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// run runs shell source and returns how it ended.
func (g *guest) run(line string) *vm.Result {
	g.t.Helper()
	r, err := g.Run(limited(g.t), vm.Command{Line: line})
	if err != nil {
		g.t.Fatalf("%q: %v", line, err)
	}
	return r
}

// want runs shell source that has to succeed with this output, white space at the ends aside.
func (g *guest) want(line, want string) {
	g.t.Helper()
	r := g.run(line)
	if got := strings.TrimSpace(string(r.Stdout)); r.ExitCode != 0 || got != want {
		g.t.Errorf("%q: exit %d, output %.200q, errors %.300q; want %.200q", line, r.ExitCode, got, r.Stderr, want)
	}
}

// fails runs shell source that has to fail with a message that contains why.
func (g *guest) fails(line, why string) {
	g.t.Helper()
	if r := g.run(line); r.ExitCode == 0 || !strings.Contains(string(r.Stderr), why) {
		g.t.Errorf("%q: exit %d, output %.200q, errors %.300q; want an error with %q", line, r.ExitCode, r.Stdout, r.Stderr, why)
	}
}

// heard is shell source of a function that sends a word by UDP to HOST PORT and prints the answer, its capitals, when it comes.
const heard = `heard() {
	rm -f /tmp/heard
	echo hello | nc -u -w 60 "$@" >/tmp/heard 2>/dev/null & nc=$!
	while kill -0 $nc 2>/dev/null && ! grep -qs HELLO /tmp/heard; do sleep 0.1; done
	kill $nc 2>/dev/null
	grep HELLO /tmp/heard
}
`

// heardByTFTP is heard for the built-in root, whose nc has no UDP: the word is the name of a file, and what comes its contents.
const heardByTFTP = `heard() {
	timeout 60 tftp -g -r hello -l - "$@" 2>/dev/null | grep HELLO
}
`

// alpineOnly skips what the small built-in root has no program for.
func (g *guest) alpineOnly() {
	g.t.Helper()
	if g.image == images.BuiltinName {
		g.t.Skip("no Alpine release files here, and the built-in root has no program for this")
	}
}

// outerNet stands for everything outside: public addresses are servers on loopback, and whatever else is dialled does not
// answer. Host ports are dialled for real.
type outerNet struct {
	resolver netip.AddrPort
	names    *nameServer

	mu      sync.Mutex
	servers map[string]string // what is dialled, "tcp 198.51.101.7:80", to the server on loopback
	dialled []string
}

func newOuterNet(t *testing.T) *outerNet {
	names := newNameServer(t)
	return &outerNet{resolver: names.at, names: names, servers: make(map[string]string)}
}

// serve makes a server on loopback answer at a public address.
func (o *outerNet) serve(network, address, server string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.servers[network+" "+address] = server
}

func (o *outerNet) dial(ctx context.Context, network, address string) (net.Conn, error) {
	o.mu.Lock()
	o.dialled = append(o.dialled, network+" "+address)
	server, known := o.servers[network+" "+address]
	o.mu.Unlock()
	to, err := netip.ParseAddrPort(address)
	switch {
	case err != nil:
		return nil, err
	case to.Addr().IsLoopback():
		server = address // a host port, or the resolver
	case !known:
		return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("the test has no such server")}
	}
	return (&net.Dialer{}).DialContext(ctx, network, server)
}

// dials lists what was dialled so far, without queries to the resolver.
func (o *outerNet) dials() (list []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range o.dialled {
		if !strings.HasSuffix(d, " "+o.resolver.String()) {
			list = append(list, d)
		}
	}
	return list
}

// all counts everything that was dialled.
func (o *outerNet) all() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.dialled)
}

// recorder keeps audit events.
type recorder struct {
	mu   sync.Mutex
	list []egress.Event
}

func (r *recorder) add(e egress.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, e)
}

// find waits a moment for an event, which may arrive after the guest has noticed its effect.
func (r *recorder) find(t *testing.T, what string, match func(egress.Event) bool) egress.Event {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		r.mu.Lock()
		for _, e := range r.list {
			if match(e) {
				r.mu.Unlock()
				return e
			}
		}
		r.mu.Unlock()
	}
	t.Fatalf("no event: %s", what)
	return egress.Event{}
}

// must is for answers about the network that fail only when their VM is a daemon's.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

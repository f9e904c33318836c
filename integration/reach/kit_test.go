package reach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"agentvm/egress"
	"agentvm/images/storetest"
	"agentvm/vm"
)

var store storetest.Store

// shared is a VM that several tests use.
var shared struct {
	mu sync.Mutex
	vm *vm.VM
}

func TestMain(m *testing.M) {
	os.Exit(store.Main(func() int {
		code := m.Run()
		if shared.vm != nil {
			shared.vm.Close()
		}
		return code
	}))
}

// guest is a VM.
type guest struct {
	*vm.VM
	t *testing.T
}

// boot starts a VM for one test.
func boot(t *testing.T, c vm.Config) *guest {
	t.Helper()
	g, err := tryBoot(t, c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func tryBoot(t *testing.T, c vm.Config) (*guest, error) {
	t.Helper()
	c.Image, c.StoreDir, c.Memory = store.Image(t), store.Dir(), 256<<20
	v, err := vm.Start(limited(t), c)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { v.Close() })
	return &guest{v, t}, nil
}

// common is a VM that several tests share: they leave nothing behind in it.
func common(t *testing.T) *guest {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.vm == nil {
		v, err := vm.Start(limited(t), vm.Config{StoreDir: store.Dir(), Image: store.Image(t), Memory: 256 << 20})
		if err != nil {
			t.Fatal(err)
		}
		shared.vm = v
	}
	return &guest{shared.vm, t}
}

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
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

// program runs a server of the guest's at a port, which answers every HTTP request with a line, until stop.
func (g *guest) program(port int, text string) (stop func()) {
	g.t.Helper()
	name := "/tmp/answer" + strconv.Itoa(port)
	p, err := g.Start(limited(g.t), vm.Command{Line: fmt.Sprintf(`cat >%s <<'END'
while read line && [ ${#line} -gt 1 ]; do :; done
printf 'HTTP/1.0 200 OK\r\n\r\n%s\n'
END
nc -lk -p %d -e sh %s 2>/dev/null || nc -ll -p %d -e sh %s`, name, text, port, name, port, name)})
	if err != nil {
		g.t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		_ = p.Kill(limited(g.t))
		_, _ = p.Wait(limited(g.t))
	})
	g.t.Cleanup(stop)
	g.eventually("the guest's program listens", func() bool { return g.listens(port) })
	return stop
}

// listens says whether something in the guest listens at a port.
func (g *guest) listens(port int) bool {
	g.t.Helper()
	list, err := g.Sockets(limited(g.t))
	if err != nil {
		g.t.Fatal(err)
	}
	return slices.ContainsFunc(list, func(s vm.Socket) bool {
		return s.Network == "tcp" && int(s.Local.Port()) == port && s.State.String() == "LISTEN"
	})
}

func (g *guest) eventually(what string, holds func() bool) {
	g.t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			g.t.Fatalf("waited a minute until %s", what)
		}
	}
}

// serve lets a handler of the test answer at a port of the guest, through a listener inside it, and returns the port.
func (g *guest) serve(h http.HandlerFunc) int {
	g.t.Helper()
	l, err := g.Listen(limited(g.t), "tcp", "127.0.0.1:0")
	if err != nil {
		g.t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	g.t.Cleanup(func() {
		s.Close()
		<-done
	})
	return l.Addr().(*net.TCPAddr).Port
}

// fetch gets http://HOST:PORT/ of the guest.
func (g *guest) fetch(host string, port int) (string, error) {
	return get(g.t, g.HTTPClient(), fmt.Sprintf("http://%s:%d/", host, port))
}

func get(t *testing.T, c *http.Client, to string) (string, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(limited(t), "GET", to, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.Do(r)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return strings.TrimSpace(string(b)), err
}

// hostService listens at all addresses of the host's loopback that it can, at one port. A connection fails the test.
func hostService(t *testing.T, port int) int {
	t.Helper()
	var listeners []net.Listener
	for _, host := range []string{"127.0.0.1", "[::1]"} {
		l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", host, port))
		if err != nil && len(listeners) == 0 {
			t.Skipf("no such port is free: %v", err)
		}
		if err != nil {
			continue // a host without IPv6
		}
		port = l.Addr().(*net.TCPAddr).Port
		listeners = append(listeners, l)
	}
	var serving sync.WaitGroup
	for _, l := range listeners {
		serving.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				t.Errorf("the host's own service at %s was reached", l.Addr())
				c.Close()
			}
		})
	}
	t.Cleanup(func() {
		for _, l := range listeners {
			l.Close()
		}
		serving.Wait()
	})
	return port
}

// outside stands for the world: one public server, at any port, on the host's loopback.
type outside struct {
	mu     sync.Mutex
	events []egress.Event
	dialed []string
	server string
}

var public = netip.MustParseAddr("203.0.112.1")

func newOutside(t *testing.T) *outside {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "the world") })}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
	return &outside{server: l.Addr().String()}
}

// network is a VM's that leads there.
func (o *outside) network() vm.Network {
	return vm.Network{Dial: o.dial, Audit: o.audit, Resolvers: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:9")}}
}

func (o *outside) dial(ctx context.Context, network, address string) (net.Conn, error) {
	o.mu.Lock()
	o.dialed = append(o.dialed, network+" "+address)
	o.mu.Unlock()
	if to, err := netip.ParseAddrPort(address); network != "tcp" || err != nil || to.Addr() != public {
		return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("the test has no such server")}
	}
	return new(net.Dialer).DialContext(ctx, network, o.server)
}

func (o *outside) audit(e egress.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, e)
}

// event waits for one.
func (o *outside) event(g *guest, what string, match func(egress.Event) bool) (found egress.Event) {
	g.t.Helper()
	g.eventually("there is an event: "+what, func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		i := slices.IndexFunc(o.events, match)
		if i >= 0 {
			found = o.events[i]
		}
		return i >= 0
	})
	return found
}

// carry joins the first connection of a listener to what dial gives, until both directions have ended.
func carry(l net.Listener, dial func() (net.Conn, error)) error {
	near, err := l.Accept()
	if err != nil {
		return err
	}
	defer near.Close()
	far, err := dial()
	if err != nil {
		return err
	}
	defer far.Close()
	var there sync.WaitGroup
	there.Go(func() {
		_, _ = io.Copy(far, near)
		_ = far.(interface{ CloseWrite() error }).CloseWrite()
	})
	_, err = io.Copy(near, far)
	_ = near.(interface{ CloseWrite() error }).CloseWrite()
	there.Wait()
	return err
}

// must is for answers about the network that fail only when their VM is a daemon's.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

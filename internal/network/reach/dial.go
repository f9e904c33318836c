// Package reach leads the host, and programs other than the guest's, into a VM: who may use which ports (Access), connections to and
// from the guest's loopback interface, HTTP requests to servers there, and sockets of the host that the guest is given.
package reach

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"

	"agentvm/internal/guest/guestrpc"
	"agentvm/nat"
)

// Config is what a Dialer needs of its VM.
type Config struct {
	Ports       *Ports
	Connections *Connections
	// Loopback returns the client of the guest's loopback interface. It waits while the VM is paused.
	Loopback func(context.Context) (*guestrpc.Loopback, error)
	// Explain returns why the VM has ended when that is what caused an error of Loopback's client, else the error.
	Explain func(error) error
	// FindSocket asks the guest for a socket.
	FindSocket func(context.Context, guestrpc.SocketQuery) (s guestrpc.Socket, found bool, err error)
}

// Dialer reaches into one VM. It starts no goroutine and has nothing to close; its connections end with the VM.
type Dialer struct {
	config   Config
	fetching fetching
}

// NewDialer returns the Dialer of a VM.
func NewDialer(c Config) *Dialer { return &Dialer{config: c} }

// DialContext connects to the guest's loopback interface, as a program of the VM. vm.VM has the promises.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := parseLocal(network, address)
	if err == nil {
		err = d.config.Ports.Decide(CallerProgram, OpLoopback, port)
	}
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: localAddr(address), Err: err}
	}
	return d.dialLoopback(ctx, host, port)
}

// DialPublished connects to a port of the guest's localhost for a port forward, about which Ports.Inward was asked.
func (d *Dialer) DialPublished(ctx context.Context, port uint16) (net.Conn, error) {
	return d.dialLoopback(ctx, "localhost", port)
}

// dialLoopback connects; its callers have checked Access. host is a loopback address, or "localhost".
func (d *Dialer) dialLoopback(ctx context.Context, host string, port uint16) (net.Conn, error) {
	address := net.JoinHostPort(host, strconv.Itoa(int(port)))
	give, err := d.config.Connections.Take()
	if err != nil {
		return nil, localFault("dial", address, err)
	}
	loopback, err := d.config.Loopback(ctx)
	if err != nil {
		give()
		return nil, localFault("dial", address, err)
	}
	c, err := loopback.Dial(ctx, host, port, give)
	if err != nil {
		give()
		return nil, localFault("dial", address, d.config.Explain(err))
	}
	return c, nil
}

// Listen listens at the guest's loopback interface, as a program of the VM. vm.VM has the promises.
func (d *Dialer) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	host, port, err := parseLocal(network, address)
	if err == nil {
		err = d.config.Ports.Decide(CallerProgram, OpListen, port)
	}
	var loopback *guestrpc.Loopback
	if err == nil {
		loopback, err = d.config.Loopback(ctx)
	}
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: localAddr(address), Err: err}
	}
	l, err := loopback.Listen(ctx, host, port, guestrpc.ListenConfig{Admit: d.config.Connections.Take})
	if err != nil {
		return nil, localFault("listen", address, d.config.Explain(err))
	}
	if err := d.config.Ports.Decide(CallerProgram, OpListen, uint16(l.Addr().(*net.TCPAddr).Port)); err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: l.Addr(), Err: errors.Join(err, l.Close())}
	}
	return l, nil
}

// localFault makes err a *net.OpError unless it is one. The guest's answers are; the reason why a VM has ended is not.
func localFault(op, address string, err error) error {
	if has := (*net.OpError)(nil); errors.As(err, &has) {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Addr: localAddr(address), Err: err}
}

// errAddress is an address that is refused.
type errAddress struct {
	message string
	errno   syscall.Errno
}

func (e *errAddress) Error() string { return e.message }
func (e *errAddress) Unwrap() error { return e.errno }

// parseLocal splits an address of the VM's loopback interface. host is an address, or "localhost" for both of them.
func parseLocal(network, address string) (host string, port uint16, err error) {
	if network != "tcp" && network != "tcp4" && network != "tcp6" {
		return "", 0, &errAddress{"network " + strconv.Quote(network) + ": want tcp, tcp4 or tcp6", syscall.EINVAL}
	}
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, &errAddress{err.Error(), syscall.EINVAL}
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, &errAddress{"port " + strconv.Quote(text) + ": want a number up to 65535", syscall.EINVAL}
	}
	host, err = localHost(network, host)
	return host, uint16(n), err
}

// localHost returns the loopback address that a network and a host mean, or "localhost" for both of them.
func localHost(network, host string) (string, error) {
	if host == "localhost" {
		return map[string]string{"tcp": "localhost", "tcp4": "127.0.0.1", "tcp6": "::1"}[network], nil
	}
	a, err := netip.ParseAddr(host)
	foreign := err != nil || !a.IsLoopback() || a.Is4In6() || a.Zone() != ""
	if foreign || network == "tcp4" && !a.Is4() || network == "tcp6" && !a.Is6() {
		return "", &errAddress{strconv.Quote(host) + " is not the VM's own loopback address for " + network + ": want 127.0.0.1, ::1 or localhost", syscall.EADDRNOTAVAIL}
	}
	return a.String(), nil
}

// localAddr is an address as the caller spelled it.
type localAddr string

func (localAddr) Network() string  { return "tcp" }
func (a localAddr) String() string { return string(a) }

// MaxConnections is how many connections the host can have open with the loopback interface of one guest, also those that wait for Accept.
const MaxConnections = 256

// Connections counts the connections that the host has with a guest's loopback interface. It warns when four fifths of what there can be
// are open, and again only after less than half was.
type Connections struct {
	logger *slog.Logger

	mu     sync.Mutex
	use    nat.LimitUse
	warned bool
}

// NewConnections returns a counter that warns by logger.
func NewConnections(logger *slog.Logger) *Connections {
	return &Connections{use: nat.LimitUse{Limit: "local connections", Maximum: MaxConnections}, logger: logger}
}

// Take counts one more connection, until give is called. At the limit the error wraps EAGAIN and a *nat.LimitError.
func (c *Connections) Take() (give func(), err error) {
	c.mu.Lock()
	if c.use.Used >= c.use.Maximum {
		c.use.Refused++
		c.mu.Unlock()
		return nil, &fullError{nat.LimitError{Limit: c.use.Limit, Maximum: c.use.Maximum}}
	}
	c.use.Used++
	due := !c.warned && c.use.Used*5 >= c.use.Maximum*4
	c.warned = c.warned || due
	use := c.use
	c.mu.Unlock()
	if due {
		c.logger.Warn("a limit of the VM is nearly reached", "limit", use.Limit, "used", use.Used, "maximum", use.Maximum)
	}
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.use.Used--
		c.warned = c.warned && c.use.Used*2 >= c.use.Maximum
	}), nil
}

// Use returns the counter as it is now.
func (c *Connections) Use() nat.LimitUse {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.use
}

// fullError is the error of a limit that is reached.
type fullError struct{ limit nat.LimitError }

func (e *fullError) Error() string   { return e.limit.Error() }
func (e *fullError) Unwrap() []error { return []error{&e.limit, syscall.EAGAIN} }

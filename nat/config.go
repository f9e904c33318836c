package nat

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"agentvm/internal/host/budget"
	"agentvm/netstack"
)

// Egress opens the host's sockets on the guest's behalf, or refuses. egress.Gate is one. A refusal is an error with a
// method Denied() bool that returns true. Methods are called from many goroutines at once.
type Egress interface {
	// DialTCP connects. The connection should also have CloseWrite() error and Reset() error, which sends RST, and may
	// have SetKeepAliveConfig; net.TCPConn's SetLinger does for Reset. Its Read and Write fail with a denial when the
	// policy changes against it.
	DialTCP(ctx context.Context, from, to netip.AddrPort) (net.Conn, error)
	// DialUDP makes a connected socket; it does not block.
	DialUDP(ctx context.Context, from, to netip.AddrPort) (net.Conn, error)
	// Ping returns nil when the destination has answered, and waits for that until ctx is done.
	Ping(ctx context.Context, from, to netip.Addr, payload []byte) error
}

// Clock is the time that idle timers, dial time-outs and rates go by.
type Clock interface {
	Now() time.Time
	// AfterFunc calls f on a goroutine of its own (or on the one that moves a fake clock) after d.
	AfterFunc(d time.Duration, f func()) Timer
}

// Timer is a pending call of AfterFunc's. *time.Timer is one.
type Timer interface {
	Stop() bool
	Reset(d time.Duration) bool
}

type systemClock struct{}

func (systemClock) Now() time.Time                            { return time.Now() }
func (systemClock) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }

// Defaults of Config, and the largest mark.
const (
	DefaultHighMark    = 16 << 10
	DefaultLowMark     = 4 << 10
	MaxMark            = 4 << 20
	DefaultTCPIdle     = 300 * time.Second
	DefaultUDPIdle     = 120 * time.Second
	DefaultKeepAlive   = 30 * time.Second
	DefaultDialTimeout = 30 * time.Second
)

// Config says how a NAT works. Network and Egress are needed.
type Config struct {
	Network *netstack.Network
	Egress  Egress

	// Intercept may take a flow that the guest begins: a non-nil result is called on the flow's goroutine, with the
	// guest's end of the flow, and nothing is dialled. network is "tcp" or "udp". The function owns the connection, and
	// the flow lasts until it has returned and the connection is closed; the context ends with the flow. nil takes
	// nothing.
	Intercept func(network string, to netip.AddrPort) func(context.Context, net.Conn)

	// Inward is asked about the guest's port of a port forward, when it is opened and again for each connection and UDP
	// session that comes; an error refuses it. It must not block. nil: every port.
	Inward func(protocol string, port uint16) error

	// DialLocalhost connects to a port of the guest's loopback interface, for port forwards that lead there. The connection should
	// also have CloseWrite() error; Close sends what was written. nil: there can be no such forwards.
	DialLocalhost func(ctx context.Context, port uint16) (net.Conn, error)

	// Listen opens the TCP sockets of port forwards; network is "tcp4" or "tcp6". Accept must return a *net.TCPConn. nil: net.ListenConfig.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)

	// HighMark and LowMark are bytes towards the guest for each TCP flow that it has not acknowledged: above HighMark the
	// host's socket is not read, until there are fewer than LowMark. Defaults 16 KiB and 4 KiB; HighMark is at most
	// MaxMark and more than LowMark. Throughput is at most HighMark for each round trip to the guest.
	HighMark, LowMark int

	// TCPIdle and UDPIdle end a flow that has carried no payload for so long, either way. Defaults 300 s and 120 s;
	// negative: never.
	TCPIdle, UDPIdle time.Duration

	// KeepAlive is when a TCP connection without traffic, towards the guest or the host, is probed. Default 30 s;
	// negative: never.
	KeepAlive time.Duration

	// DialTimeout bounds Egress.DialTCP. Default 30 s; negative: as long as the host's system tries.
	DialTimeout time.Duration

	Limits Limits

	// Memory is what flows take, each netstack.FlowMemory or SocketMemory, and buffers for what comes from the host while there is
	// some to spare. A flow for which it has not enough is refused, with a *LimitError. It is the network's too. nil: no limit.
	Memory *budget.Budget

	// SendLimit and ReceiveLimit are bytes of payload a second from and to the guest, all flows together but those that
	// Intercept has taken. 0: no limit.
	SendLimit, ReceiveLimit int64

	// Observe receives the events of flows. It is called from many goroutines at once and must not block. nil: no observer.
	Observe func(FlowEvent)

	Clock  Clock        // nil: the system's
	Logger *slog.Logger // nil: discarded
}

// withDefaults fills what the zero value leaves out and refuses what cannot work.
func (c Config) withDefaults() (Config, error) {
	if c.Network == nil || c.Egress == nil {
		return c, errors.New("nat: Config needs Network and Egress")
	}
	c.HighMark, c.LowMark = orDefault(c.HighMark, DefaultHighMark), orDefault(c.LowMark, DefaultLowMark)
	if c.LowMark < 1 || c.LowMark >= c.HighMark || c.HighMark > MaxMark {
		return c, fmt.Errorf("nat: marks %d and %d: LowMark is at least 1 and less than HighMark, HighMark at most %d", c.LowMark, c.HighMark, MaxMark)
	}
	if c.SendLimit < 0 || c.ReceiveLimit < 0 {
		return c, errors.New("nat: SendLimit and ReceiveLimit are bytes a second; 0 means no limit")
	}
	c.TCPIdle, c.UDPIdle = orDefault(c.TCPIdle, DefaultTCPIdle), orDefault(c.UDPIdle, DefaultUDPIdle)
	c.KeepAlive, c.DialTimeout = orDefault(c.KeepAlive, DefaultKeepAlive), orDefault(c.DialTimeout, DefaultDialTimeout)
	if c.Observe == nil {
		c.Observe = func(FlowEvent) {}
	}
	if c.Intercept == nil {
		c.Intercept = func(string, netip.AddrPort) func(context.Context, net.Conn) { return nil }
	}
	if c.Inward == nil {
		c.Inward = func(string, uint16) error { return nil }
	}
	if c.Listen == nil {
		c.Listen = (&net.ListenConfig{}).Listen
	}
	if c.Clock == nil {
		c.Clock = systemClock{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	var err error
	c.Limits, err = c.Limits.withDefaults()
	return c, err
}

func orDefault[T ~int | ~int64](value, otherwise T) T {
	if value == 0 {
		return otherwise
	}
	return value
}

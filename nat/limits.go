package nat

import (
	"fmt"
	"sync"
	"time"

	"agentvm/internal/host/budget"
)

// Limits bound what one VM can make the host hold or do. A field of 0 has its default; a negative one is an error.
// Names are those of LimitUse and LimitError.
type Limits struct {
	TCPFlows        int `json:"tcpFlows,omitempty"`        // "tcp flows": connections that the guest began, until both sides are done. Default 1024
	UDPFlows        int `json:"udpFlows,omitempty"`        // "udp flows": sessions that the guest began. Default 512
	PendingDials    int `json:"pendingDials,omitempty"`    // "pending dials": connections of the guest that the host has not answered yet. Default 512
	ForwardFlows    int `json:"forwardFlows,omitempty"`    // "forward flows": TCP connections and UDP sessions through port forwards. Default 512
	Forwards        int `json:"forwards,omitempty"`        // "forwards": port forwards that listen. Default 64
	PendingEchoes   int `json:"pendingEchoes,omitempty"`   // "pending echoes": echo requests without an answer yet. Default 32
	EchoesPerSecond int `json:"echoesPerSecond,omitempty"` // "echoes per second": echo requests that are tried. Default 50
}

// fields pairs each limit with its name and default: the one list of limits.
func (l *Limits) fields() []struct {
	name      string
	value     *int
	otherwise int
} {
	return []struct {
		name      string
		value     *int
		otherwise int
	}{
		{"tcp flows", &l.TCPFlows, 1024},
		{"udp flows", &l.UDPFlows, 512},
		{"pending dials", &l.PendingDials, 512},
		{"forward flows", &l.ForwardFlows, 512},
		{"forwards", &l.Forwards, 64},
		{"pending echoes", &l.PendingEchoes, 32},
		{"echoes per second", &l.EchoesPerSecond, 50},
	}
}

// Check returns what is wrong with the limits, as New would.
func (l Limits) Check() error {
	_, err := l.withDefaults()
	return err
}

func (l Limits) withDefaults() (Limits, error) {
	for _, f := range l.fields() {
		if *f.value < 0 {
			return l, fmt.Errorf("nat: the limit of %s is %d; use 0 for the default (%d) or a positive number", f.name, *f.value, f.otherwise)
		}
		*f.value = orDefault(*f.value, f.otherwise)
	}
	return l, nil
}

// LimitError is why a flow was refused: there are too many. The guest's program should close some, or the one who
// starts the VM should raise the limit.
type LimitError struct {
	Limit   string // the limit's name, as in Limits
	Maximum int
}

// Error names the limit and what to do.
func (e *LimitError) Error() string {
	if e.Limit == MemoryLimit {
		return fmt.Sprintf("what the VM may make this host hold in memory, %d bytes, is used up: close connections, or raise the limit", e.Maximum)
	}
	return fmt.Sprintf("the VM's limit of %d %s is reached: close some, or raise the limit", e.Maximum, e.Limit)
}

// LimitUse is how much of a limit is taken.
type LimitUse struct {
	Limit         string // the limit's name, as in Limits
	Used, Maximum int
	Refused       uint64 // how often the limit refused something, or had something older give way
}

// gauges are a NAT's limits in use.
type gauges struct {
	tcpFlows, udpFlows, pendingDials, forwardFlows, forwards, pendingEchoes gauge
	echoRate                                                                rate
}

func newGauges(l Limits, clock Clock, warn func(LimitUse)) *gauges {
	g := &gauges{}
	g.tcpFlows.set("tcp flows", l.TCPFlows, warn)
	g.udpFlows.set("udp flows", l.UDPFlows, warn)
	g.pendingDials.set("pending dials", l.PendingDials, warn)
	g.forwardFlows.set("forward flows", l.ForwardFlows, warn)
	g.forwards.set("forwards", l.Forwards, warn)
	g.pendingEchoes.set("pending echoes", l.PendingEchoes, warn)
	g.echoRate.set("echoes per second", l.EchoesPerSecond, warn)
	g.echoRate.clock = clock
	return g
}

func (g *gauges) use() []LimitUse {
	return []LimitUse{
		g.tcpFlows.read(), g.udpFlows.read(), g.pendingDials.read(), g.forwardFlows.read(),
		g.forwards.read(), g.pendingEchoes.read(), g.echoRate.read(),
	}
}

// MemoryLimit is the name of Config.Memory's limit in LimitUse and LimitError; its unit is a byte.
const MemoryLimit = "host memory"

// MemoryUse is a budget as a limit.
func MemoryUse(u budget.Use) LimitUse {
	return LimitUse{Limit: MemoryLimit, Used: int(u.Used), Maximum: int(u.Limit), Refused: u.Refused}
}

// A gauge counts what is taken of a limit. It warns when four fifths are taken, and not again before fewer than half
// were.
type gauge struct {
	mu     sync.Mutex
	use    LimitUse
	warned bool
	warn   func(LimitUse) // without mu
}

func (g *gauge) set(name string, maximum int, warn func(LimitUse)) {
	g.use, g.warn = LimitUse{Limit: name, Maximum: maximum}, warn
}

// take takes one, to be given back, or returns a *LimitError.
func (g *gauge) take() error {
	g.mu.Lock()
	err, due := g.takeLocked()
	use := g.use
	g.mu.Unlock()
	if due {
		g.warn(use)
	}
	return err
}

func (g *gauge) takeLocked() (err error, warn bool) {
	if g.use.Used >= g.use.Maximum {
		g.use.Refused++
		return &LimitError{Limit: g.use.Limit, Maximum: g.use.Maximum}, false
	}
	g.use.Used++
	warn = !g.warned && g.use.Used*5 >= g.use.Maximum*4
	g.warned = g.warned || warn
	return nil, warn
}

// give gives back what take took.
func (g *gauge) give() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.use.Used--
	g.rearm()
}

func (g *gauge) rearm() {
	if g.use.Used*2 < g.use.Maximum {
		g.warned = false
	}
}

func (g *gauge) read() LimitUse {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.use
}

// A rate is a gauge of what was taken in the current second; nothing is given back.
type rate struct {
	gauge
	clock Clock
	began time.Time // of the current second
}

// take takes one of this second's, or returns a *LimitError.
func (r *rate) take() error {
	now := r.clock.Now()
	r.mu.Lock()
	r.turn(now)
	err, due := r.takeLocked()
	use := r.use
	r.mu.Unlock()
	if due {
		r.warn(use)
	}
	return err
}

// read is what the current second has taken.
func (r *rate) read() LimitUse {
	now := r.clock.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn(now)
	return r.use
}

// turn begins a new second if the last one is over. The warning is armed again by a second that took fewer than half.
func (r *rate) turn(now time.Time) {
	passed := now.Sub(r.began)
	if passed < time.Second {
		return
	}
	if passed >= 2*time.Second {
		r.use.Used = 0
	}
	r.rearm()
	r.began, r.use.Used = now, 0
}

package egress

import (
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"agentvm/egress/internal/servername"
)

// nameTime is how long a connection may be open without naming its server, where it has to (Policy.AllowSNI).
const nameTime = 20 * time.Second

// names looks at what the guest sends on a connection that AllowSNI lets through. The host is connected, but gets nothing before its name was
// seen and allowed.
//
//	dial ─► open, nothing passes to the host ─► named: its bytes pass; in HTTP each request is looked at
//	                   └─ nameTime ─┬─────────────┴─ another name, or none ─► denied: reset, as by a new policy
type names struct {
	late *time.Timer
	free atomic.Bool // a new policy lets the connection through as it is

	mu      sync.Mutex // orders bytes; one goroutine writes, and nameTime may pass meanwhile
	checker *servername.Checker
}

// watch makes the connection name its server from now on. It is called before the connection has an owner, with gate.mu held.
func (c *conn) watch() {
	c.names = &names{checker: servername.New(c.flow.named)}
	c.names.late = time.AfterFunc(nameTime, c.nameless)
}

// nameless ends a connection that has named no server in time.
func (c *conn) nameless() {
	c.names.mu.Lock()
	named := c.names.checker.Named() || c.names.free.Load()
	c.names.mu.Unlock()
	if named {
		return
	}
	if denied := c.flow.refuse(deny(ReasonServerName, "%s: the connection named no server within %v, which its allow-sni rule demands", c.flow.target(), nameTime)); denied != nil {
		c.cut(denied)
	}
}

func (n *names) stop() {
	if n != nil {
		n.late.Stop()
	}
}

// pass returns what of p, and of what was held back before, can be sent.
func (c *conn) pass(p []byte) ([]byte, error) {
	if denied := c.denied.Load(); denied != nil {
		return nil, denied
	}
	out, err := c.names.next(p)
	if err == nil {
		return out, nil
	}
	return c.objected(err)
}

func (n *names) next(p []byte) ([]byte, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.free.Load() {
		return append(n.checker.Release(), p...), nil
	}
	return n.checker.Next(p)
}

// objected ends the connection, unless a new policy has no objection.
func (c *conn) objected(err error) ([]byte, error) {
	denied, isDenied := err.(*DeniedError)
	if !isDenied {
		denied = c.flow.refuse(deny(ReasonServerName, "%s: %v, and its allow-sni rule lets only connections pass that name it", c.flow.target(), err))
	}
	if denied != nil {
		c.cut(denied)
		return nil, denied
	}
	c.names.mu.Lock()
	defer c.names.mu.Unlock()
	return c.names.checker.Release(), nil
}

func (c *conn) writeNamed(p []byte) (int, error) {
	out, err := c.pass(p)
	if err != nil {
		return 0, err
	}
	if len(out) > 0 {
		n, err := c.Conn.Write(out)
		c.sent.Add(int64(n))
		if err != nil {
			return 0, c.reason(err)
		}
	}
	return len(p), nil
}

// writeNamedBuffers takes all of b. The pieces that pass are still sent in one system call where the socket supports that.
func (c *conn) writeNamedBuffers(b *net.Buffers) (taken int64, err error) {
	var out net.Buffers
	for _, p := range *b {
		one, err := c.pass(p)
		if err != nil {
			return 0, err
		}
		if len(one) > 0 {
			out = append(out, one)
		}
		taken += int64(len(p))
	}
	*b = nil
	n, err := out.WriteTo(c.Conn)
	c.sent.Add(n)
	if err != nil {
		return 0, c.reason(err)
	}
	return taken, nil
}

// endNames is for the guest's FIN: what is held back by then never passes.
func (c *conn) endNames() error {
	if c.names == nil {
		return nil
	}
	c.names.mu.Lock()
	err := c.names.checker.End()
	c.names.mu.Unlock()
	if err == nil {
		return nil
	}
	out, err := c.objected(err)
	if err != nil {
		return err
	}
	n, err := c.Conn.Write(out)
	c.sent.Add(int64(n))
	return c.reason(err)
}

// named decides about a name that the connection itself has. The error is a *DeniedError, and the flow is then marked as denied.
func (f *flow) named(protocol, name string) error {
	f.gate.mu.Lock()
	defer f.gate.mu.Unlock()
	d := f.decide(f.gate.policy)
	if d.Allowed && d.ByName {
		d = f.byName(f.gate.policy, protocol, name)
	}
	if denied := f.mark(d); denied != nil {
		return denied
	}
	f.server = name
	return nil
}

// refuse marks a flow as denied because it does not name its server, and returns how, or nil when the policy now lets it through as it is.
func (f *flow) refuse(d Decision) *DeniedError {
	f.gate.mu.Lock()
	defer f.gate.mu.Unlock()
	if now := f.decide(f.gate.policy); f.freed(now) {
		return nil
	}
	return f.mark(d)
}

// mark marks a flow as denied, if d says so. A flow that is marked already stays as it is.
func (f *flow) mark(d Decision) *DeniedError {
	if f.denied == nil && !d.Allowed {
		f.denied = &DeniedError{d}
		delete(f.gate.flows, f)
		f.gate.counters.denied.Add(1)
	}
	return f.denied
}

// freed lets a connection pass as it is from now on, when a decision says so. It is called with gate.mu held.
func (f *flow) freed(d Decision) bool {
	free := d.Allowed && !d.ByName
	if free && f.conn != nil && f.conn.names != nil {
		f.conn.names.free.Store(true)
	}
	return free
}

// again decides about a flow for a new policy.
func (f *flow) again(p Policy) Decision {
	d := f.decide(p)
	switch {
	case f.freed(d) || !d.Allowed || f.conn == nil: // a dial's end decides
	case f.conn.names == nil || f.conn.names.free.Load():
		return deny(ReasonServerName, "%s was opened when no connection had to name its server", f.target())
	case f.server != "":
		return f.byName(p, "server", f.server)
	}
	return d
}

// byName decides about a name that a connection has: a rule has to be about it, and it must have led to the address, which may be that of
// others, too.
func (f *flow) byName(p Policy, protocol, name string) Decision {
	port := f.request.To.Port()
	i := slices.IndexFunc(p.AllowSNI, func(r Rule) bool { return r.covers(TCP, port) && r.matchesName(name) })
	switch {
	case i < 0:
		return deny(ReasonServerName, "%s: the connection names %s (%s), which no allow-sni rule names; run with --allow-sni %s:%d", f.target(), name, protocol, name, port)
	case !slices.Contains(f.request.Names, name):
		return deny(ReasonServerName, "%s: the connection names %s (%s), which did not lead to this address", f.target(), name, protocol)
	}
	d := allow(ReasonAllowRule, "%s is allowed by the allow-sni rule %s", name, p.AllowSNI[i])
	d.Rule = p.AllowSNI[i].String()
	return d
}

// target names the flow's destination for people.
func (f *flow) target() string {
	return newEvaluator(new(environment), Policy{}, f.request).target()
}

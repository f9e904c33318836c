package egress

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"
)

// A flow is something that a new policy may cut: a dial that has not ended, a connection, an echo request.
//
//	begin ─► dialling ──► finish ─► open ──► end (Close, Reset)
//	  │         │           │        │
//	  denied    └─ cut ─────┴────────┴─► denied: the dial is cancelled, the connection reset
type flow struct {
	gate    *Gate
	number  uint64
	kind    string
	source  netip.AddrPort
	request Request
	began   time.Time
	decide  func(Policy) Decision // again, for a new policy; called with gate.mu held
	cancel  context.CancelFunc    // of the dial
	silent  bool                  // no events: the VM's own resolver

	// Guarded by gate.mu.
	denied *DeniedError
	conn   *conn  // once it is open
	server string // the name that the connection itself had last
}

// begin decides about a flow that the guest opens, and registers it. The context ends when a policy cuts the dial.
func (g *Gate) begin(ctx context.Context, protocol string, from, to netip.AddrPort) (*flow, context.Context, error) {
	env := g.currentEnvironment()
	names, aliases := g.live(to.Addr())
	f := &flow{gate: g, kind: protocol, source: unmap(from), began: g.now(), request: Request{protocol, unmap(to), names, aliases}}
	f.decide = func(p Policy) Decision { return env.decide(p, g.renamed(f.request)) }
	return f.register(ctx)
}

// renamed adds the names that have come to lead to an address since the flow began: they can deny it but not allow it.
func (g *Gate) renamed(r Request) Request {
	if g.isPeer(r.To.Addr()) {
		return r // whose names stay
	}
	names, aliases := g.live(r.To.Addr())
	r.Aliases = slices.Concat(r.Aliases, names, aliases)
	return r
}

// register decides and registers an allowed flow under one lock, so that SetPolicy cannot run in between.
func (f *flow) register(ctx context.Context) (*flow, context.Context, error) {
	g := f.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	d := f.decide(g.policy)
	if g.closed {
		d = deny(ReasonClosed, "the VM's network has ended")
	}
	g.last++
	f.number = g.last
	if !f.silent {
		g.counters.decided(d)
	}
	if !d.Allowed {
		f.emit(VerdictDeny, d)
		return nil, ctx, &DeniedError{d}
	}
	ctx, f.cancel = context.WithCancel(ctx)
	g.flows[f] = struct{}{}
	return f, ctx, nil
}

// finish ends the dial. A policy that was set during the dial wins over the dial's success and over its error.
func (f *flow) finish(inner net.Conn, err error) (net.Conn, error) {
	c := &conn{Conn: inner, flow: f}
	denied := f.settle(c, err)
	f.cancel()
	switch {
	case denied != nil && inner != nil:
		_ = reset(inner)
		return nil, denied
	case denied != nil:
		return nil, denied
	case err != nil:
		f.emit(VerdictError, Decision{Message: err.Error()})
		return nil, err
	}
	return c, nil
}

// settle makes the last decision, with the names that the guest learned during the dial.
func (f *flow) settle(c *conn, err error) *DeniedError {
	f.gate.mu.Lock()
	defer f.gate.mu.Unlock()
	if f.denied != nil {
		return f.denied
	}
	d := f.decide(f.gate.policy)
	if err != nil || !d.Allowed {
		delete(f.gate.flows, f)
	}
	switch {
	case err != nil:
		return nil
	case !d.Allowed:
		f.emit(VerdictDeny, d)
		return &DeniedError{d}
	}
	if d.ByName {
		c.watch()
	}
	f.conn = c
	f.emit(VerdictAllow, d)
	return nil
}

// cut ends a flow that was marked as denied.
func (f *flow) cut() {
	f.cancel()
	f.gate.mu.Lock()
	c, denied := f.conn, f.denied
	f.gate.mu.Unlock()
	if c == nil {
		f.emit(VerdictDeny, denied.Decision)
		return
	}
	c.cut(denied)
}

// end forgets a flow.
func (f *flow) end() {
	f.gate.mu.Lock()
	defer f.gate.mu.Unlock()
	delete(f.gate.flows, f)
}

func (f *flow) event(verdict string, d Decision) Event {
	e := Event{
		Time: f.gate.now(), Kind: f.kind, Verdict: verdict, Flow: f.number,
		Source: f.source, Destination: f.request.To, Names: slices.Clone(f.request.Names),
	}
	e.decided(d)
	return e
}

func (f *flow) emit(verdict string, d Decision) {
	if !f.silent {
		f.gate.audit.emit(f.event(verdict, d))
	}
}

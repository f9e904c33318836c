package egress

import "sync/atomic"

// Stats counts what a gate did since it was made.
type Stats struct {
	Dials      uint64 `json:"dials"`      // calls of the dial function, for whatever purpose; mode none makes none
	DialErrors uint64 `json:"dialErrors"` // of these, failed
	Pings      uint64 `json:"pings"`      // echo requests that were let through
	Allowed    uint64 `json:"allowed"`    // decisions on connections and echo requests
	Denied     uint64 `json:"denied"`     // the same
	Cut        uint64 `json:"cut"`        // connections and dials that a new policy ended
	Queries    uint64 `json:"queries"`    // DNS queries
	Refused    uint64 `json:"refused"`    // of these, denied
	Open       int    `json:"open"`       // connections and dials now
	Pins       int    `json:"pins"`       // names and addresses remembered now
	EventsLost uint64 `json:"eventsLost"` // events that Audit never got, because it was too slow or there were too many denials
}

type counters struct {
	dials, dialErrors, pings, allowed, denied, cut, queries, refused atomic.Uint64
}

func (c *counters) decided(d Decision) {
	if d.Allowed {
		c.allowed.Add(1)
		return
	}
	c.denied.Add(1)
}

// Stats counts what the gate did since it was made.
func (g *Gate) Stats() Stats {
	g.mu.Lock()
	open := len(g.flows)
	g.mu.Unlock()
	c := &g.counters
	return Stats{
		Dials: c.dials.Load(), DialErrors: c.dialErrors.Load(), Pings: c.pings.Load(), Allowed: c.allowed.Load(), Denied: c.denied.Load(),
		Cut: c.cut.Load(), Queries: c.queries.Load(), Refused: c.refused.Load(),
		Open: open, Pins: g.pins.count(g.now()), EventsLost: g.audit.lostEvents(),
	}
}

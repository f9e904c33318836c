package router

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/time/rate"

	"agentvm/egress"
	"agentvm/internal/guest/guestrpc"
)

const (
	// holdTime is how long an answer to the guest is delayed to learn which process has the socket: after a refusal the socket is
	// gone. A guest that is not busy answers in a few milliseconds.
	holdTime = 50 * time.Millisecond
	// recordTime is how long an event waits for the same.
	recordTime = 200 * time.Millisecond
	// queryTime bounds one query to the guest. After one that took longer, the guest is not asked for queryPause.
	queryTime  = time.Second
	queryPause = 10 * time.Second
	// ownersPerSecond bounds how often the guest can make the host ask it.
	ownersPerSecond = 20
	// ownerLife is how long an answer is used: the guest uses ports again.
	ownerLife = 2 * time.Second
	maxOwners = 256
)

// owners asks the guest which of its processes has a socket. The guest may lie, so the answers are for people who look for mistakes, never
// for decisions.
type owners struct {
	limit   *rate.Limiter
	ctx     context.Context // of the queries
	cancel  context.CancelFunc
	queries sync.WaitGroup

	mu    sync.Mutex
	guest Guest // nil until it has answered
	known map[ownerKey]*owner
	until time.Time // the guest is not asked before
}

type ownerKey struct {
	protocol string
	from, to netip.AddrPort
}

// owner is the answer to a query, or one that is being waited for.
type owner struct {
	asked time.Time
	ready chan struct{} // closed when name is set
	name  string        // empty: unknown
}

func newOwners() *owners {
	o := &owners{limit: rate.NewLimiter(ownersPerSecond, ownersPerSecond), known: make(map[ownerKey]*owner)}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	return o
}

// close ends all queries and waits for them. There are none afterwards.
func (o *owners) close() {
	o.connect(nil)
	o.cancel()
	o.queries.Wait()
}

func (o *owners) connect(guest Guest) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.guest = guest
}

// find returns "name[pid]" of the process in the guest whose socket goes from one address to the other, or "" when that is
// not known: no guest, too many queries, no answer within limit.
func (o *owners) find(limit time.Duration, protocol string, from, to netip.AddrPort) string {
	answer := o.lookUp(ownerKey{protocol, from, to})
	if answer == nil {
		return ""
	}
	select {
	case <-answer.ready:
		return answer.name
	case <-time.After(limit):
		return ""
	}
}

// lookUp returns the answer to wait for. It starts a query unless there was one within ownerLife. nil: the guest cannot be asked now.
func (o *owners) lookUp(key ownerKey) *owner {
	o.mu.Lock()
	defer o.mu.Unlock()
	if a := o.known[key]; a != nil && time.Since(a.asked) < ownerLife {
		return a
	}
	if o.guest == nil || time.Now().Before(o.until) || !o.limit.Allow() {
		return nil
	}
	if len(o.known) >= maxOwners {
		clear(o.known)
	}
	a, guest := &owner{asked: time.Now(), ready: make(chan struct{})}, o.guest
	o.known[key] = a
	o.queries.Go(func() { o.query(guest, key, a) })
	return a
}

// query asks the guest and sets the answer.
func (o *owners) query(guest Guest, key ownerKey, a *owner) {
	ctx, cancel := context.WithTimeout(o.ctx, queryTime)
	defer cancel()
	a.name = ownerOf(ctx, guest, key)
	close(a.ready)
	if ctx.Err() == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.until = time.Now().Add(queryPause)
}

// ownerOf asks the guest for the socket. A UDP socket that is not connected has no remote address.
func ownerOf(ctx context.Context, guest Guest, key ownerKey) string {
	query := guestrpc.SocketQuery{Network: key.protocol, Local: key.from, Remote: key.to}
	s, found, err := guest.FindSocket(ctx, query)
	if err == nil && !found && key.protocol == egress.UDP {
		query.Remote = netip.AddrPort{}
		s, found, err = guest.FindSocket(ctx, query)
	}
	if err != nil || !found {
		return ""
	}
	return ownerName(s)
}

func ownerName(s guestrpc.Socket) string {
	name := oneLine(s.Process)
	switch {
	case s.PID == 0:
		return name
	case name == "":
		return fmt.Sprintf("[%d]", s.PID)
	}
	return fmt.Sprintf("%s[%d]", name, s.PID)
}

// oneLine replaces what is not printable in a guest's text.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}

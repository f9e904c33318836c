package vm

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
	"agentvm/rpc"
)

const (
	// ownerPatience is how long an answer to the guest is held back to learn whose socket asked: after a refusal the socket
	// is gone.
	ownerPatience = 50 * time.Millisecond
	// ownersPerSecond bounds what the guest can make the host ask it, and what that costs the guest.
	ownersPerSecond = 20
	// ownerLife is how long an answer is good for: ports are used again.
	ownerLife = 2 * time.Second
	maxOwners = 256
	// silence is how long a guest is not asked after it gave no answer: one that never answers would delay the audit.
	silence = 10 * time.Second
)

// owners knows which process of the guest has a socket. It is the guest's word: good for finding one's own mistakes, never
// for a decision.
type owners struct {
	limit *rate.Limiter

	mu     sync.Mutex
	client *rpc.Client // nil until the guest has answered
	known  map[ownerKey]*owner
	until  time.Time // not asked before
}

type ownerKey struct {
	protocol string
	from, to netip.AddrPort
}

// owner is an answer, or a question that is under way.
type owner struct {
	asked time.Time
	ready chan struct{} // closed when name is set
	name  string        // empty: not known
}

func newOwners() *owners {
	return &owners{limit: rate.NewLimiter(ownersPerSecond, ownersPerSecond), known: make(map[ownerKey]*owner)}
}

func (o *owners) connect(client *rpc.Client) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.client = client
}

// find returns "name[pid]" of the process in the guest whose socket goes from one address to the other, or "" when that is
// not to be had: no guest, too many questions, no answer in time.
func (o *owners) find(ctx context.Context, protocol string, from, to netip.AddrPort) string {
	answer, client := o.question(ownerKey{protocol, from, to})
	if answer == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, ownerPatience)
	defer cancel()
	if client != nil {
		answer.name = ask(ctx, client, protocol, from, to)
		close(answer.ready)
		o.note(ctx.Err() != nil)
	}
	select {
	case <-answer.ready:
		return answer.name
	case <-ctx.Done():
		return ""
	}
}

// question returns the answer to wait for, and the client when the caller is the one who has to ask.
func (o *owners) question(key ownerKey) (*owner, *rpc.Client) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if a := o.known[key]; a != nil && time.Since(a.asked) < ownerLife {
		return a, nil
	}
	if o.client == nil || time.Now().Before(o.until) || !o.limit.Allow() {
		return nil, nil
	}
	if len(o.known) >= maxOwners {
		clear(o.known)
	}
	a := &owner{asked: time.Now(), ready: make(chan struct{})}
	o.known[key] = a
	return a, o.client
}

// note remembers that the guest was silent.
func (o *owners) note(silent bool) {
	if !silent {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.until = time.Now().Add(silence)
}

// ask asks the guest. A UDP socket that is not connected has no remote address.
func ask(ctx context.Context, client *rpc.Client, protocol string, from, to netip.AddrPort) string {
	query := rpc.SocketQuery{Network: protocol, Local: from, Remote: to}
	s, found, err := client.FindSocket(ctx, query)
	if err == nil && !found && protocol == egress.UDP {
		query.Remote = netip.AddrPort{}
		s, found, err = client.FindSocket(ctx, query)
	}
	if err != nil || !found {
		return ""
	}
	return ownerName(s)
}

func ownerName(s rpc.Socket) string {
	name := oneLine(s.Process)
	switch {
	case s.PID == 0:
		return name
	case name == "":
		return fmt.Sprintf("[%d]", s.PID)
	}
	return fmt.Sprintf("%s[%d]", name, s.PID)
}

// oneLine replaces in what a guest wrote all that is more than text.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}

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
	// holdTime is how long an answer to the guest is held back to learn whose socket asked: after a refusal the socket is
	// gone. A guest that is not busy answers in a few milliseconds.
	holdTime = 50 * time.Millisecond
	// recordTime is how long an event waits for the same.
	recordTime = 200 * time.Millisecond
	// askTime is how long the guest may take, and silence how long it is not asked again when that was not enough.
	askTime = time.Second
	silence = 10 * time.Second
	// ownersPerSecond bounds what the guest can make the host ask it, and what that costs the guest.
	ownersPerSecond = 20
	// ownerLife is how long an answer is good for: ports are used again.
	ownerLife = 2 * time.Second
	maxOwners = 256
)

// owners knows which process of the guest has a socket. It is the guest's word: good for finding one's own mistakes, never
// for a decision.
type owners struct {
	limit  *rate.Limiter
	ctx    context.Context // of the questions
	cancel context.CancelFunc
	asking sync.WaitGroup

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
	o := &owners{limit: rate.NewLimiter(ownersPerSecond, ownersPerSecond), known: make(map[ownerKey]*owner)}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	return o
}

// close ends the questions that are under way; there are none afterwards.
func (o *owners) close() {
	o.connect(nil)
	o.cancel()
	o.asking.Wait()
}

func (o *owners) connect(client *rpc.Client) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.client = client
}

// find returns "name[pid]" of the process in the guest whose socket goes from one address to the other, or "" when that is
// not to be had: no guest, too many questions, no answer within patience.
func (o *owners) find(patience time.Duration, protocol string, from, to netip.AddrPort) string {
	answer := o.question(ownerKey{protocol, from, to})
	if answer == nil {
		return ""
	}
	select {
	case <-answer.ready:
		return answer.name
	case <-time.After(patience):
		return ""
	}
}

// question returns the answer to wait for, and asks when nobody has done so lately.
func (o *owners) question(key ownerKey) *owner {
	o.mu.Lock()
	defer o.mu.Unlock()
	if a := o.known[key]; a != nil && time.Since(a.asked) < ownerLife {
		return a
	}
	if o.client == nil || time.Now().Before(o.until) || !o.limit.Allow() {
		return nil
	}
	if len(o.known) >= maxOwners {
		clear(o.known)
	}
	a, client := &owner{asked: time.Now(), ready: make(chan struct{})}, o.client
	o.known[key] = a
	o.asking.Go(func() { o.ask(client, key, a) })
	return a
}

// ask asks the guest.
func (o *owners) ask(client *rpc.Client, key ownerKey, a *owner) {
	ctx, cancel := context.WithTimeout(o.ctx, askTime)
	defer cancel()
	a.name = ownerOf(ctx, client, key)
	close(a.ready)
	o.note(ctx.Err() != nil)
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

// ownerOf puts the question. A UDP socket that is not connected has no remote address.
func ownerOf(ctx context.Context, client *rpc.Client, key ownerKey) string {
	query := rpc.SocketQuery{Network: key.protocol, Local: key.from, Remote: key.to}
	s, found, err := client.FindSocket(ctx, query)
	if err == nil && !found && key.protocol == egress.UDP {
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

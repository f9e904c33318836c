package egress

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestPolicyCutsConnections changes the policy below a connection that waits in Read.
func TestPolicyCutsConnections(t *testing.T) {
	w := newWorld(t, Config{})
	w.serve("203.0.112.1:80")
	w.serve("203.0.112.2:80")
	one, err := w.dialTCP("203.0.112.1:80")
	if err != nil {
		t.Fatal(err)
	}
	other, err := w.dialTCP("203.0.112.2:80")
	if err != nil {
		t.Fatal(err)
	}
	echoes(t, one)
	failed := make(chan error)
	go func() {
		_, err := one.Read(make([]byte, 1))
		failed <- err
	}()
	w.seen()

	cut, err := w.gate.SetPolicy(Policy{Deny: rules(t, "203.0.112.1")})
	if cut != 1 || err != nil {
		t.Errorf("%d, %v", cut, err)
	}
	denied(t, <-failed, ReasonDenyRule)
	_, err = one.Write([]byte("x"))
	denied(t, err, ReasonDenyRule)
	echoes(t, other)
	if err := one.Close(); err != nil {
		t.Error(err)
	}
	other.Close()
	_, err = w.dialTCP("203.0.112.1:80")
	denied(t, err, ReasonDenyRule)

	var got []string
	for _, e := range w.seen() {
		got = append(got, fmt.Sprint(e.Kind, " ", e.Verdict, " ", e.Flow, " ", e.Sent, " ", e.Received, " ", e.Reason))
	}
	want := "policy allow 0 0 0 |tcp deny 1 5 5 denied-by-rule|tcp close 1 5 5 denied-by-rule|tcp close 2 5 5 |tcp deny 3 0 0 denied-by-rule"
	if strings.Join(got, "|") != want {
		t.Errorf("%s\nwant %s", strings.Join(got, "|"), want)
	}
	if s := w.gate.Stats(); s.Cut != 1 || s.Open != 0 {
		t.Errorf("%+v", s)
	}
}

// TestPolicyCutsBlockedWrite: the peer does not read.
func TestPolicyCutsBlockedWrite(t *testing.T) {
	w := newWorld(t, Config{})
	w.listen("203.0.112.1:80")
	c, err := w.dialTCP("203.0.112.1:80")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	failed := make(chan error)
	go func() {
		for {
			if _, err := c.Write(make([]byte, 1<<20)); err != nil {
				failed <- err
				return
			}
		}
	}()
	if cut, err := w.gate.SetPolicy(Policy{Mode: None}); cut != 1 || err != nil {
		t.Errorf("%d, %v", cut, err)
	}
	denied(t, <-failed, ReasonNone)
}

// TestPolicyCutsByOldAndNewNames: a connection is judged by the names that led to it when it began, and by names that have come since only
// to be denied.
func TestPolicyCutsByOldAndNewNames(t *testing.T) {
	w := newWorld(t, Config{})
	w.serve("203.0.112.1:80")
	w.tell("a.example", "203.0.112.1")
	c, err := w.dialTCP("203.0.112.1:80")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	w.clock.Advance(time.Hour) // no pin any more
	w.tell("b.example", "203.0.112.1")
	for _, step := range []struct {
		policy Policy
		cut    int
	}{
		{Policy{Allow: rules(t, "a.example:80")}, 0},
		{Policy{Allow: rules(t, "a.example:80"), Deny: rules(t, "c.example")}, 0},
		{Policy{Allow: rules(t, "a.example:80"), Deny: rules(t, "b.example")}, 1},
	} {
		if cut, err := w.gate.SetPolicy(step.policy); cut != step.cut || err != nil {
			t.Errorf("%s: %d, %v", step.policy, cut, err)
		}
	}
	_, err = c.Read(make([]byte, 1))
	denied(t, err, ReasonDenyRule)
}

func TestNewNameDoesNotAllowOldConnection(t *testing.T) {
	w := newWorld(t, Config{})
	w.serve("203.0.112.1:80")
	c, err := w.dialTCP("203.0.112.1:80")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	w.tell("a.example", "203.0.112.1")
	if cut, _ := w.gate.SetPolicy(Policy{Allow: rules(t, "a.example")}); cut != 1 {
		t.Errorf("cut %d", cut)
	}
}

// TestReplacePolicy: of many who change the policy that they have read at one time, all have their rule in it in the end.
func TestReplacePolicy(t *testing.T) {
	w := newWorld(t, Config{Policy: Policy{Deny: rules(t, "*:25")}})
	old := w.gate.Policy()
	var changes sync.WaitGroup
	for port := range 20 {
		changes.Go(func() {
			for {
				now := w.gate.Policy()
				version := now.Version()
				now.Deny = append(now.Deny, rules(t, fmt.Sprint("*:", 1000+port))...)
				if _, err := w.gate.ReplacePolicy(version, now); err == nil {
					return
				} else if !errors.Is(err, ErrPolicyChanged) {
					t.Error(err)
					return
				}
			}
		})
	}
	changes.Wait()
	if n := len(w.gate.Policy().Deny); n != 21 {
		t.Errorf("%d rules are left", n)
	}
	if _, err := w.gate.ReplacePolicy(old.Version(), old); !errors.Is(err, ErrPolicyChanged) {
		t.Errorf("an old policy was replaced: %v", err)
	}
}

// TestPolicyVersion: policies that decide the same are one, whether their mode is written out or not.
func TestPolicyVersion(t *testing.T) {
	a := Policy{Allow: rules(t, "a.example:443")}
	for other, same := range map[*Policy]bool{
		{Mode: Allowlist, Allow: rules(t, "a.example:443")}:                 true,
		{Mode: Allowlist, Allow: rules(t, "a.example:443"), Deny: []Rule{}}: true,
		{Mode: Public, Allow: rules(t, "a.example:443")}:                    false,
		{Allow: rules(t, "a.example:444")}:                                  false,
		{AllowSNI: rules(t, "a.example:443")}:                               false,
		{Allow: rules(t, "a.example:443"), Deny: rules(t, "*:25")}:          false,
	} {
		if got := other.Version() == a.Version(); got != same {
			t.Errorf("%s and %s: the same version: %t", a, other, got)
		}
	}
}

func TestPolicyThatIsRefusedChangesNothing(t *testing.T) {
	w := newWorld(t, Config{Policy: Policy{Deny: rules(t, "*:25")}})
	if _, err := w.gate.SetPolicy(Policy{Allow: rules(t, "10.0.0.0/24")}); err == nil {
		t.Error("accepted")
	}
	if got := w.gate.Policy().String(); got != "mode public; deny *:25" {
		t.Error(got)
	}
	if e := w.seen(); len(e) != 0 {
		t.Errorf("%+v", e)
	}
}

// TestPolicyIsTheGatesOwn: what a caller does with its slices later is of no effect.
func TestPolicyIsTheGatesOwn(t *testing.T) {
	list := rules(t, "a.example")
	w := newWorld(t, Config{Policy: Policy{Deny: list}})
	list[0] = rules(t, "b.example")[0]
	w.gate.Policy().Deny[0] = rules(t, "c.example")[0]
	if got := w.gate.Policy().String(); got != "mode public; deny a.example" {
		t.Error(got)
	}
}

// heldDial is a dial that answers when the test says so; it may ignore its context, as a dial in its last moment does.
type heldDial struct {
	started, release chan struct{}
	deaf             bool
	peer             net.Conn
}

func (d *heldDial) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	close(d.started)
	select {
	case <-d.release:
	case <-ctx.Done():
		if !d.deaf {
			return nil, ctx.Err()
		}
		<-d.release
	}
	conn, peer := net.Pipe()
	d.peer = peer
	return conn, nil
}

// TestPolicyCutsPendingDials, both those that can still be cancelled and those that succeed in spite of it.
func TestPolicyCutsPendingDials(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		d := &heldDial{started: make(chan struct{}), release: make(chan struct{}), deaf: deaf}
		w := newWorld(t, Config{Dial: d.dial})
		failed := make(chan error)
		go func() {
			_, err := w.dialTCP("203.0.112.1:80")
			failed <- err
		}()
		<-d.started
		if s := w.gate.Stats(); s.Open != 1 {
			t.Errorf("%+v", s)
		}
		if cut, err := w.gate.SetPolicy(Policy{Mode: None}); cut != 1 || err != nil {
			t.Errorf("%d, %v", cut, err)
		}
		close(d.release)
		denied(t, <-failed, ReasonNone)
		if deaf {
			if _, err := d.peer.Read(make([]byte, 1)); err == nil {
				t.Error("the socket is still open")
			}
		}
		if e := w.seen(); len(e) != 2 || e[1].Verdict != VerdictDeny || e[1].Reason != ReasonNone {
			t.Errorf("%+v", e)
		}
	}
}

// TestNameLearnedDuringDial: the guest learned a denied name of the address during the dial.
func TestNameLearnedDuringDial(t *testing.T) {
	d := &heldDial{started: make(chan struct{}), release: make(chan struct{})}
	w := newWorld(t, Config{Dial: d.dial, Policy: Policy{Deny: rules(t, "a.example:80")}})
	failed := make(chan error)
	go func() {
		_, err := w.dialTCP("203.0.112.1:80")
		failed <- err
	}()
	<-d.started
	w.tell("a.example", "203.0.112.1")
	close(d.release)
	denied(t, <-failed, ReasonDenyRule)
}

func TestDialIsCancelled(t *testing.T) {
	d := &heldDial{started: make(chan struct{}), release: make(chan struct{})}
	w := newWorld(t, Config{Dial: d.dial})
	ctx, cancel := context.WithCancel(context.Background())
	failed := make(chan error)
	go func() {
		_, err := w.gate.DialTCP(ctx, guest, netip.MustParseAddrPort("203.0.112.1:80"))
		failed <- err
	}()
	<-d.started
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if s := w.gate.Stats(); s.Open != 0 {
		t.Errorf("%+v", s)
	}
}

// TestPolicyAgainstDials races policies with dials. After a policy that denies everything has been set, no connection is alive, and none
// comes to life until another one is set.
func TestPolicyAgainstDials(t *testing.T) {
	w := newWorld(t, Config{})
	w.serve("203.0.112.1:80")
	var stop atomic.Bool
	var workers sync.WaitGroup
	var held sync.Map
	for range 8 {
		workers.Go(func() {
			for !stop.Load() {
				c, err := w.dialTCP("203.0.112.1:80")
				if denial := (*DeniedError)(nil); errors.As(err, &denial) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				held.Store(c, true)
				if rand.N(2) == 0 {
					_, _ = c.Write([]byte("hello"))
				}
				held.Delete(c)
				c.Close()
			}
		})
	}
	for giveUp := time.Now().Add(time.Minute); w.gate.Stats().Cut < 100 && !t.Failed(); {
		if time.Now().After(giveUp) {
			t.Error("no policy ever met a connection")
		}
		if _, err := w.gate.SetPolicy(Policy{Mode: None}); err != nil {
			t.Error(err)
		}
		if n := w.gate.Stats().Open; n != 0 {
			t.Errorf("%d connections are open in mode none", n)
		}
		held.Range(func(c, _ any) bool {
			if _, err := c.(net.Conn).Write([]byte("x")); err == nil {
				t.Error("a connection outlived mode none")
			}
			return true
		})
		if _, err := w.gate.SetPolicy(Policy{}); err != nil {
			t.Error(err)
		}
	}
	stop.Store(true)
	workers.Wait()
	if s := w.gate.Stats(); s.Open != 0 {
		t.Errorf("%+v", s)
	}
}

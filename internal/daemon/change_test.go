package daemon

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"agentvm/egress"
	"agentvm/internal/daemon/daemonrpc"
	"agentvm/nat"
)

// TestChanges changes what runs and looks at what a later start would have.
func TestChanges(t *testing.T) {
	k, c := startUsed(t, Config{})
	ctx := t.Context()
	rule, err := egress.ParseRule("*:25")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.SetPolicy(ctx, egress.Policy{Mode: egress.Public, Deny: []egress.Rule{rule}}, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := c.SetPolicy(ctx, egress.Policy{Mode: "wrong"}, ""); err == nil {
		t.Error("a wrong policy was taken")
	}
	for _, text := range []string{"127.0.0.1:8080:80", "127.0.0.1:8081:81"} {
		if _, err := c.Forward(ctx, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Change(ctx, daemonrpc.Change{CloseForward: "127.0.0.1:8080/tcp"}); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{"127.0.0.1:8080/tcp": "no port forward", "8080/tcp": "want ADDRESS:PORT", "127.0.0.1:8081/udp": "no port forward"} {
		if err := c.Change(ctx, daemonrpc.Change{CloseForward: text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("close %s: %v", text, err)
		}
	}
	idle, hibernate, life, always, wrong, negative := time.Minute, time.Hour, 2*time.Hour, "always", "sometimes", -time.Second
	if err := c.Change(ctx, daemonrpc.Change{IdleTimeout: &idle, HibernateAfter: &hibernate, MaxLifetime: &life, Restart: &always}); err != nil {
		t.Fatal(err)
	}
	if c.Change(ctx, daemonrpc.Change{Restart: &wrong}) == nil || c.Change(ctx, daemonrpc.Change{IdleTimeout: &negative}) == nil || c.Change(ctx, daemonrpc.Change{HibernateAfter: &negative}) == nil {
		t.Error("wrong changes were taken")
	}
	kept, err := k.store.Config("dev")
	if err != nil {
		t.Fatal(err)
	}
	want := nat.Forward{Protocol: "tcp", Listen: netip.MustParseAddrPort("127.0.0.1:8081"), GuestPort: 81}
	if len(kept.Network.Policy.Deny) != 1 || !slices.Equal(kept.Network.Forwards, []nat.Forward{want}) || kept.IdleTimeout != Duration(idle) || kept.HibernateAfter != Duration(hibernate) || kept.MaxLifetime != Duration(life) || kept.Restart != Always {
		t.Errorf("kept: %+v", kept)
	}
	if was := kept.AsStarted(); was.Network.Policy.Deny != nil || was.Network.Forwards != nil || was.IdleTimeout != 0 || was.HibernateAfter != 0 || was.MaxLifetime != 0 || was.Restart != "" || was.ChangedFrom != nil {
		t.Errorf("as it was started: %+v", was)
	}
}

// TestEvents reads what the daemon has recorded, and follows it.
func TestEvents(t *testing.T) {
	k, c := startUsed(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p, err := k.store.paths("dev")
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the event that it runs", func() bool { log, _ := os.ReadFile(p.events()); return strings.Contains(string(log), `"running"`) })
	followed, over := make(chan Event, 100), make(chan error, 1)
	since := time.Now()
	go func() {
		over <- k.store.Events(ctx, EventsOptions{Follow: true, Since: since}, func(e Event) error { followed <- e; return nil })
	}()
	if err := c.Client.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	if err := c.Client.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	denial, err := egress.Event{Time: time.Now(), Kind: egress.KindTCP, Verdict: egress.VerdictDeny, Names: []string{"evil.example"}, Destination: netip.MustParseAddrPort("203.0.113.1:443"), Process: "sh[7]"}.Line()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.audit(), append([]byte("rubbish\n{}\n"), denial...), 0o600); err != nil {
		t.Fatal(err)
	}
	var kinds []EventKind
	for len(kinds) < 3 {
		select {
		case e := <-followed:
			if kinds = append(kinds, e.Kind); e.VM != "dev" || e.Kind == EventDenied && (e.Target != "evil.example:443" || e.Program != "sh[7]") {
				t.Errorf("%+v", e)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("followed: %v", kinds)
		}
	}
	slices.Sort(kinds)
	if !slices.Equal(kinds, []EventKind{EventDenied, EventPaused, EventResumed}) {
		t.Errorf("followed: %v", kinds)
	}
	cancel()
	if err := <-over; err != nil {
		t.Error(err)
	}
	kinds = nil
	if err := k.store.Events(t.Context(), EventsOptions{}, func(e Event) error { kinds = append(kinds, e.Kind); return nil }); err != nil {
		t.Fatal(err)
	}
	if want := []EventKind{EventStarting, EventRunning, EventPaused, EventResumed, EventDenied}; !slices.Equal(kinds, want) {
		t.Errorf("kept: %v, want %v", kinds, want)
	}
	none := 0
	if err := k.store.Events(t.Context(), EventsOptions{Names: []string{"other"}}, func(Event) error { none++; return nil }); err != nil || none > 0 {
		t.Errorf("%d events of another VM, %v", none, err)
	}
}

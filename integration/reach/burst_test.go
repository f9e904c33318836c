package reach

import (
	"testing"

	"agentvm/integration/burst"
	"agentvm/nat"
	"agentvm/vm"
)

// TestBurstOfInboundConnections sends 20 kB into a published port over 400 connections at once. The frames of the burst need
// more of the card's buffers than there are, again and again, and the card has to continue each time: every byte arrives, and
// afterwards the guest reaches its gateway and can be reached.
func TestBurstOfInboundConnections(t *testing.T) {
	server := burst.Server(t)
	var c vm.Config
	c.Network.Forwards = []nat.Forward{{GuestPort: burst.Port}}
	g := boot(t, c)
	if err := g.WriteFile(limited(t), "/tmp/sums", server, 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := g.Start(limited(t), vm.Command{Line: "exec /tmp/sums"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Kill(limited(t))
		_, _ = p.Wait(limited(t))
	})
	g.eventually("the guest's program listens", func() bool { return g.listens(burst.Port) })
	at := must(g.Forwards(t.Context()))[0].String()
	for _, connections := range []int{400, 1} {
		if err := burst.Send(at, connections, nil); err != nil {
			t.Error(err)
		}
	}
	if r := g.run("ping -c 1 -W 20 192.168.127.1"); r.ExitCode != 0 {
		t.Errorf("the gateway does not answer the guest any more: %+v", r)
	}
}

//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"

	"agentvm/internal/network/vmnet"
	"agentvm/nat"
)

// measurePeers moves bytes from one VM to another in the same network of VMs, in turn with the host's to the same server through a port
// forward. Both VMs are of this process, and their bytes pass the same Unix socket as those of daemons.
func measurePeers(ctx context.Context, b *bench) error {
	probe, err := buildProbe(ctx, b.kit)
	if err != nil {
		return err
	}
	const network = "bench"
	store := vmnet.In(b.kit.store)
	if _, err := store.Create(ctx, network); err != nil {
		return err
	}
	defer store.Remove(context.WithoutCancel(ctx), network) //nolint:errcheck // a scratch store
	servers, err := startServers(b.transferSize())
	if err != nil {
		return err
	}
	defer servers.close()
	var guests []*ownGuest
	for _, name := range []string{"server", "client"} {
		c := servers.config(b.kit.config())
		c.Network.Networks, c.Network.Member = []string{network}, name
		g, err := startOwn(ctx, c)
		if err != nil {
			return err
		}
		defer g.close()
		if err := g.put(ctx, "/tmp/netprobe", probe); err != nil {
			return err
		}
		guests = append(guests, g)
	}
	server, client := guests[0], guests[1]
	if err := (reach{g: server, size: 1}).start(ctx); err != nil {
		return err
	}
	door, err := server.vm.Forward(ctx, nat.Forward{Listen: netip.MustParseAddrPort("127.0.0.1:0"), GuestPort: reachPort})
	if err != nil {
		return err
	}
	size := b.transferSize()
	line := fmt.Sprintf("/tmp/netprobe put 198.18.0.2 %d %d", reachPort, size)
	upload := fmt.Sprintf("/tmp/netprobe put %s %d %d", ownHost, servers.sink(), size)
	ways := []struct {
		name string
		do   func() error
		cost costs
	}{
		{name: "from the host to a VM, through a port forward", do: func() error { return send(door.String(), size) }},
		{name: "from a VM to the host", do: func() error { _, err := client.sh(ctx, upload); return err }},
		{name: "from one VM to another", do: func() error { _, err := client.sh(ctx, line); return err }},
	}
	for range b.rounds(5) {
		for i := range ways {
			took, err := timed(client.pid(), ways[i].do)
			if err != nil {
				return err
			}
			ways[i].cost.add(took)
		}
	}
	for _, w := range ways {
		speeds := make(samples, 0, len(w.cost.wall))
		for _, took := range w.cost.wall {
			speeds = append(speeds, float64(size)/1e6/took)
		}
		b.report.add(figure{name: w.name, unit: "MB/s", value: speeds.median(), spread: speeds})
	}
	toVM, toHost, peers := ways[0].cost, ways[1].cost, ways[2].cost
	ratio := toVM.wall.over(peers.wall)
	b.report.add(figure{name: "from one VM to another", unit: "times the host's speed", value: ratio.median(), spread: ratio, bar: atLeast(0.8)})
	both := make(samples, len(peers.cpu)) // what no way between the two can avoid
	for i := range both {
		both[i] = toVM.cpu[i] + toHost.cpu[i]
	}
	ratio = peers.cpu.over(both)
	b.report.add(figure{name: "from one VM to another", unit: "times the processor time of both ways", value: ratio.median(), spread: ratio})
	ratio = peers.cpu.over(peers.wall)
	b.report.add(figure{name: "from one VM to another", unit: "processors in use", value: ratio.median(), spread: ratio})
	return nil
}

// send writes zeros to a server and waits for its answer.
func send(at string, size int) error {
	conn, err := net.Dial("tcp", at)
	if err != nil {
		return err
	}
	defer conn.Close()
	zeros := make([]byte, 256<<10)
	for left := size; left > 0; left -= len(zeros) {
		if _, err := conn.Write(zeros[:min(left, len(zeros))]); err != nil {
			return err
		}
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	if answer, err := io.ReadAll(conn); err != nil || len(answer) != 1 {
		return fmt.Errorf("the server in the VM answered %d bytes: %w", len(answer), err)
	}
	return nil
}

//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"agentvm/vm"
)

// reachPort is where netprobe serves in the guest.
const reachPort = 4000

// measureReach measures the host's connections into the guest: how long one takes, and how much one carries each way, in turn with
// what the guest uploads through its network. All times are the host's.
func measureReach(ctx context.Context, b *bench) error {
	r, stop, err := startReach(ctx, b)
	if err != nil {
		return err
	}
	defer stop()
	if err := r.measureDial(ctx, b); err != nil {
		return err
	}
	return r.measureTransfers(ctx, b)
}

// reach is a guest with a server in it.
type reach struct {
	g    *ownGuest
	size int // bytes of a transfer
	sink int // port of the host that swallows
}

// startReach boots a guest in which netprobe serves, and the host's servers that it is compared with; stop ends both.
func startReach(ctx context.Context, b *bench) (r reach, stop func(), err error) {
	probe, err := buildProbe(ctx, b.kit)
	if err != nil {
		return r, nil, err
	}
	servers, err := startServers(b.transferSize())
	if err != nil {
		return r, nil, err
	}
	g, err := startOwn(ctx, servers.config(b.kit.config()))
	if err != nil {
		servers.close()
		return r, nil, err
	}
	stop = func() {
		g.close()
		servers.close()
	}
	r = reach{g: g, size: servers.size, sink: servers.sink()}
	if err = g.put(ctx, "/tmp/netprobe", probe); err == nil {
		err = r.start(ctx)
	}
	if err != nil {
		stop()
	}
	return r, stop, err
}

// start has netprobe serve.
func (r reach) start(ctx context.Context) error {
	ready := make(chan struct{})
	var once sync.Once
	_, err := r.g.vm.Start(ctx, vm.Command{
		Line:   fmt.Sprintf("exec /tmp/netprobe serve %d %d", reachPort, r.size),
		Stdout: writerFunc(func(p []byte) (int, error) { once.Do(func() { close(ready) }); return len(p), nil }),
	})
	if err != nil {
		return err
	}
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r reach) dial(ctx context.Context) (net.Conn, error) {
	return r.g.vm.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(reachPort)))
}

func (r reach) measureDial(ctx context.Context, b *bench) error {
	count := 200
	if b.quick {
		count = 50
	}
	var took, steps samples
	for range count {
		began, before := time.Now(), r.g.vm.Instructions()
		c, err := r.dial(ctx)
		if err != nil {
			return err
		}
		took = append(took, time.Since(began).Seconds()*1e3)
		steps = append(steps, float64(r.g.vm.Instructions()-before)/1e3)
		_ = c.Close()
	}
	b.report.value("Reach/dial", took.median(), "ms")
	b.report.add(figure{name: "`vm.DialContext` to a listening port, median", unit: "ms", value: took.median(), spread: took, bar: atMost(5)})
	b.report.add(figure{name: "`vm.DialContext` to a listening port, median", unit: "1000 guest instructions", value: steps.median(), spread: steps})
	return nil
}

// get makes the guest send; the connection was dialled by the host.
func (r reach) get(ctx context.Context) error {
	c, err := r.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Write([]byte("g")); err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, c)
	if err == nil && n != int64(r.size) {
		err = fmt.Errorf("%d bytes of %d", n, r.size)
	}
	return err
}

// put sends to the guest.
func (r reach) put(ctx context.Context) error {
	c, err := r.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Write([]byte("p")); err != nil {
		return err
	}
	for left, zeros := r.size, make([]byte, 256<<10); left > 0; left -= len(zeros) {
		if _, err := c.Write(zeros[:min(left, len(zeros))]); err != nil {
			return err
		}
	}
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		return err
	}
	_, err = io.ReadFull(c, make([]byte, 1))
	return err
}

// upload is the network's, which the others are compared with.
func (r reach) upload(ctx context.Context) error {
	_, err := r.g.sh(ctx, fmt.Sprintf("/tmp/netprobe put %s %d %d", ownHost, r.sink, r.size))
	return err
}

// serve is a listener in the guest that is the host's; a program of the guest sends there.
func (r reach) serve(ctx context.Context) error {
	l, err := r.g.vm.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	var serving sync.WaitGroup
	defer serving.Wait()
	serving.Go(func() {
		if c, err := l.Accept(); err == nil {
			receive(c)
			_ = c.Close()
		}
	})
	_, port, _ := strings.Cut(l.Addr().String(), ":")
	_, err = r.g.sh(ctx, fmt.Sprintf("/tmp/netprobe put 127.0.0.1 %s %d", port, r.size))
	return err
}

func (r reach) measureTransfers(ctx context.Context, b *bench) error {
	ways := []struct {
		name, figure string
		move         func(context.Context) error
	}{
		{"upload", "", r.upload},
		{"get", "from the guest, `vm.DialContext`", r.get},
		{"put", "to the guest, `vm.DialContext`", r.put},
		{"listen", "from the guest, `vm.Listen`", r.serve},
	}
	speeds, steps := make([]samples, len(ways)), make([]samples, len(ways))
	for range b.rounds(5) {
		for i, way := range ways {
			before := r.g.vm.Instructions()
			took, err := timed(r.g.pid(), func() error { return way.move(ctx) })
			if err != nil {
				return fmt.Errorf("%s: %w", way.name, err)
			}
			speed := float64(r.size) / 1e6 / took.wall.Seconds()
			speeds[i] = append(speeds[i], speed)
			b.report.value("Reach/"+way.name, speed, "MB/s")
			steps[i] = append(steps[i], float64(r.g.vm.Instructions()-before)/float64(r.size))
			b.report.value("Reach/"+way.name+"/guest", steps[i][len(steps[i])-1], "instructions/byte")
		}
	}
	b.report.add(figure{name: "the network's upload", unit: "guest instructions a byte", value: steps[0].median(), spread: steps[0]})
	for i, way := range ways[1:] {
		b.report.add(figure{name: way.figure, unit: "guest instructions a byte", value: steps[i+1].median(), spread: steps[i+1]})
		ratio := speeds[i+1].over(speeds[0])
		b.report.add(figure{name: way.figure, unit: "MB/s", value: speeds[i+1].median(), spread: speeds[i+1]})
		b.report.add(figure{name: way.figure, unit: "times the network's upload", value: ratio.median(), spread: ratio, bar: atLeast(0.6)})
	}
	return nil
}

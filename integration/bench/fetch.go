//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"agentvm/vm"
)

// fetchPort is where a shell script serves HTTP in the guest.
const fetchPort = 4080

// measureFetch measures HTTP from a server in the guest, in turn with what the guest uploads through its network. All times are the
// host's.
func measureFetch(ctx context.Context, b *bench) error {
	probe, err := buildProbe(ctx, b.kit)
	if err != nil {
		return err
	}
	servers, err := startServers(b.transferSize())
	if err != nil {
		return err
	}
	defer servers.close()
	g, err := startOwn(ctx, servers.config(b.kit.config()))
	if err != nil {
		return err
	}
	defer g.close()
	if err := g.put(ctx, "/tmp/netprobe", probe); err != nil {
		return err
	}
	f := fetch{reach{g: g, size: servers.size, sink: servers.sink()}}
	if err := f.serveHTTP(ctx); err != nil {
		return err
	}
	return f.measure(ctx, b)
}

// fetch is a guest with an HTTP server in it.
type fetch struct {
	reach
}

// serveHTTP has nc and dd of the guest's BusyBox serve: dd writes to the socket itself.
func (f fetch) serveHTTP(ctx context.Context) error {
	_, err := f.g.vm.Spawn(ctx, vm.Command{Line: fmt.Sprintf(`cat >/tmp/answer <<'END'
while read line && [ ${#line} -gt 1 ]; do :; done
printf 'HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %[1]d\r\n\r\n'
exec dd if=/dev/zero bs=65536 count=%[2]d 2>/dev/null
END
exec nc -lk -p %[3]d -e sh /tmp/answer`, f.size, f.size>>16, fetchPort)})
	if err != nil {
		return err
	}
	for f.g.vm.CheckFetch(ctx, fetchPort) != nil {
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

func (f fetch) get(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://localhost:%d/", fetchPort), nil)
	if err != nil {
		return err
	}
	res, err := f.g.vm.Fetch(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	n, err := io.Copy(io.Discard, res.Body)
	if err == nil && n != int64(f.size) {
		err = fmt.Errorf("%d bytes of %d", n, f.size)
	}
	return err
}

func (f fetch) measure(ctx context.Context, b *bench) error {
	var upload, get, steps samples
	for range b.rounds(5) {
		for _, way := range []struct {
			name   string
			move   func(context.Context) error
			speeds *samples
		}{{"upload", f.upload, &upload}, {"get", f.get, &get}} {
			before := f.g.vm.Instructions()
			took, err := timed(f.g.pid(), func() error { return way.move(ctx) })
			if err != nil {
				return fmt.Errorf("%s: %w", way.name, err)
			}
			*way.speeds = append(*way.speeds, float64(f.size)/1e6/took.wall.Seconds())
			b.report.value("Fetch/"+way.name, (*way.speeds)[len(*way.speeds)-1], "MB/s")
			if way.name == "get" {
				steps = append(steps, float64(f.g.vm.Instructions()-before)/float64(f.size))
			}
		}
	}
	ratio := get.over(upload)
	b.report.add(figure{name: "`vm.Fetch` of a large body", unit: "guest instructions a byte", value: steps.median(), spread: steps})
	b.report.add(figure{name: "`vm.Fetch` of a large body", unit: "MB/s", value: get.median(), spread: get})
	b.report.add(figure{name: "`vm.Fetch` of a large body", unit: "times the network's upload", value: ratio.median(), spread: ratio, bar: atLeast(0.6)})
	return nil
}

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
	r, stop, err := startReach(ctx, b)
	if err != nil {
		return err
	}
	defer stop()
	return fetch{r}.measure(ctx, b)
}

// fetch is a guest with an HTTP server in it, netprobe.
type fetch struct {
	reach
}

// serveHTTP has a shell script of the guest's serve, as measurePreview wants it: a new process for each request.
func (f fetch) serveHTTP(ctx context.Context) error {
	_, err := f.g.vm.Start(ctx, vm.Command{Line: fmt.Sprintf(`cat >/tmp/answer <<'END'
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
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://localhost:%d/", reachPort), nil)
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
	ways := map[string]func(context.Context) error{"upload": f.upload, "get": f.get}
	speeds, works, steps := make(map[string]samples), make(map[string]samples), make(map[string]samples)
	for range b.rounds(5) {
		for _, name := range []string{"upload", "get"} {
			before := f.g.vm.Instructions()
			took, err := timed(f.g.pid(), func() error { return ways[name](ctx) })
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			speed := float64(f.size) / 1e6 / took.wall.Seconds()
			speeds[name] = append(speeds[name], speed)
			works[name] = append(works[name], took.cpu.Seconds())
			steps[name] = append(steps[name], float64(f.g.vm.Instructions()-before)/float64(f.size))
			b.report.value("Fetch/"+name, speed, "MB/s")
			b.report.value("Fetch/"+name+"/processor", took.cpu.Seconds(), "s")
		}
	}
	const what = "`vm.Fetch` of a large body"
	ratio, processor := speeds["get"].over(speeds["upload"]), works["upload"].over(works["get"])
	b.report.add(figure{name: what, unit: "guest instructions a byte", value: steps["get"].median(), spread: steps["get"]})
	b.report.add(figure{name: what, unit: "MB/s", value: speeds["get"].median(), spread: speeds["get"]})
	b.report.add(figure{name: what, unit: "times the network's upload", value: ratio.median(), spread: ratio, bar: atLeast(0.6)})
	b.report.add(figure{name: what, unit: "times the network's upload, by processor time", value: processor.median(), spread: processor})
	return nil
}

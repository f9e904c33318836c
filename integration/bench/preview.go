//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"agentvm/preview"
	"agentvm/vm"
)

// smallPort is where a shell script answers with two bytes over connections that are kept.
const smallPort = 4082

// measurePreview measures what a preview adds to vm.Fetch of the same, in turn.
func measurePreview(ctx context.Context, b *bench) error {
	g, err := startOwn(ctx, b.kit.config())
	if err != nil {
		return err
	}
	defer g.close()
	p := &previewed{g: g, size: b.transferSize()}
	if err := p.serve(ctx); err != nil {
		return err
	}
	end, err := p.share(ctx, b.kit)
	if err != nil {
		return err
	}
	defer end()
	if err := p.measureTransfers(ctx, b); err != nil {
		return err
	}
	return p.measureRequests(ctx, b)
}

// previewed is a guest with servers in it, and the ways to them.
type previewed struct {
	g            *ownGuest
	size         int
	large, small string // links
	visitor      *http.Client
}

// serve has the guest serve a large body as for measureFetch, and answer each empty line of a request.
func (p *previewed) serve(ctx context.Context) error {
	if err := (fetch{reach{g: p.g, size: p.size}}).serveHTTP(ctx); err != nil {
		return err
	}
	_, err := p.g.vm.Spawn(ctx, vm.Command{Line: fmt.Sprintf(`cat >/tmp/small <<'END'
while read line; do [ ${#line} -le 1 ] && printf 'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok'; done
END
exec nc -lk -p %d -e sh /tmp/small`, smallPort)})
	if err != nil {
		return err
	}
	for p.g.vm.CheckFetch(ctx, smallPort) != nil {
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// share serves previews of both, as a daemon does.
func (p *previewed) share(ctx context.Context, k *kit) (end func(), err error) {
	store, err := preview.OpenStore(filepath.Join(k.store, "bench", "preview.db"), preview.Options{})
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	permit := func(_ context.Context, one preview.Preview) error {
		return p.g.vm.Access().Decide(vm.CallerFetch, vm.OpLoopback, one.Port)
	}
	server := preview.NewServer(preview.ServerConfig{Store: store, Dialer: p.g.vm, Permit: permit})
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(context.WithoutCancel(ctx), l) }()
	end = func() { _ = server.Close(); <-served; _ = store.Close() }
	port := uint16(l.Addr().(*net.TCPAddr).Port) //nolint:gosec // a port
	p.visitor = &http.Client{}
	for to, guest := range map[*string]uint16{&p.large: fetchPort, &p.small: smallPort} {
		link, err := store.Create(ctx, "bench", "bench", guest, time.Hour)
		if err != nil {
			end()
			return nil, err
		}
		*to = link.PathURL(port)
	}
	return end, nil
}

// get reads one answer and checks its length.
func (p *previewed) get(ctx context.Context, client *http.Client, url string, size int) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	n, err := io.Copy(io.Discard, answer.Body)
	if err == nil && (n != int64(size) || answer.StatusCode != http.StatusOK) {
		err = fmt.Errorf("%s: %s with %d bytes of %d", url, answer.Status, n, size)
	}
	return err
}

func (p *previewed) measureTransfers(ctx context.Context, b *bench) error {
	ways := []struct {
		name   string
		client *http.Client
		url    string
		speeds samples
	}{
		{"fetch", p.g.vm.HTTPClient(), fmt.Sprintf("http://localhost:%d/", fetchPort), nil},
		{"preview", p.visitor, p.large, nil},
	}
	for range b.rounds(7) {
		for i := range ways {
			w := &ways[i]
			took, err := timed(p.g.pid(), func() error { return p.get(ctx, w.client, w.url, p.size) })
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			w.speeds = append(w.speeds, float64(p.size)/1e6/took.wall.Seconds())
			b.report.value("Preview/large/"+w.name, w.speeds[len(w.speeds)-1], "MB/s")
		}
	}
	ratio := ways[1].speeds.over(ways[0].speeds)
	b.report.add(figure{name: "a large body through a preview", unit: "MB/s", value: ways[1].speeds.median(), spread: ways[1].speeds})
	b.report.add(figure{name: "a large body through a preview", unit: "times `vm.Fetch`", value: ratio.median(), spread: ratio, bar: atLeast(0.8)})
	return nil
}

// measureRequests compares single requests over connections that are kept. The figure is the difference of the medians.
func (p *previewed) measureRequests(ctx context.Context, b *bench) error {
	count := 400
	if b.quick {
		count = 60
	}
	var fetched, shown samples
	local := fmt.Sprintf("http://localhost:%d/", smallPort)
	for i := range count {
		for _, w := range []struct {
			client *http.Client
			url    string
			took   *samples
		}{{p.g.vm.HTTPClient(), local, &fetched}, {p.visitor, p.small, &shown}} {
			began := time.Now()
			if err := p.get(ctx, w.client, w.url, 2); err != nil {
				return err
			}
			if i > 0 { // the first makes the connection
				*w.took = append(*w.took, time.Since(began).Seconds()*1e3)
			}
		}
	}
	b.report.value("Preview/small/fetch", fetched.median(), "ms")
	b.report.value("Preview/small/preview", shown.median(), "ms")
	b.report.add(figure{name: "a small request through a preview", unit: "ms", value: shown.median(), spread: shown})
	b.report.add(figure{name: "a small request through a preview, beyond `vm.Fetch`", unit: "ms", value: shown.median() - fetched.median(), bar: atMost(2)})
	return nil
}

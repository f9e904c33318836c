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
	"strings"
	"time"

	"agentvm/internal/network/preview"
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
	_, err := p.g.vm.Start(ctx, vm.Command{Line: fmt.Sprintf(`cat >/tmp/small <<'END'
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
		return p.g.vm.Access().DecideFetch(one.Port)
	}
	server := preview.NewServer(preview.ServerConfig{Store: store, Dialer: p.g.vm, Permit: permit})
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(context.WithoutCancel(ctx), l) }()
	end = func() { _ = server.Close(); <-served; _ = store.Close() }
	port := uint16(l.Addr().(*net.TCPAddr).Port) //nolint:gosec // a port
	p.visitor = &http.Client{Transport: &http.Transport{DisableCompression: true}}
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
	if client != p.visitor { // what the preview adds: the guest reads byte by byte
		for key, value := range map[string]string{"For": "127.0.0.1", "Host": "127.0.0.1:40000", "Proto": "http", "Prefix": "/p/" + strings.Repeat("0", preview.TokenLength)} {
			r.Header.Set("X-Forwarded-"+key, value)
		}
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

// way is one of the two ways to the same server.
type way struct {
	name   string
	client *http.Client
	url    string

	wall, processor, steps samples // s, s, guest instructions
}

// try gets once and notes what it took.
func (w *way) try(ctx context.Context, p *previewed, size int) error {
	before := p.g.vm.Instructions()
	took, err := timed(p.g.pid(), func() error { return p.get(ctx, w.client, w.url, size) })
	if err != nil {
		return fmt.Errorf("%s: %w", w.name, err)
	}
	w.wall, w.processor = append(w.wall, took.wall.Seconds()), append(w.processor, took.cpu.Seconds())
	w.steps = append(w.steps, float64(p.g.vm.Instructions()-before))
	return nil
}

// ways are those to what listens at port.
func (p *previewed) ways(port int, link string) []*way {
	return []*way{
		{name: "fetch", client: p.g.vm.HTTPClient(), url: fmt.Sprintf("http://localhost:%d/", port)},
		{name: "preview", client: p.visitor, url: link},
	}
}

func (p *previewed) measureTransfers(ctx context.Context, b *bench) error {
	ways := p.ways(fetchPort, p.large)
	for range b.rounds(7) {
		for _, w := range ways {
			if err := w.try(ctx, p, p.size); err != nil {
				return err
			}
			b.report.value("Preview/large/"+w.name, float64(p.size)/1e6/w.wall[len(w.wall)-1], "MB/s")
		}
	}
	fetched, shown := ways[0], ways[1]
	ratio, processor := fetched.wall.over(shown.wall), shown.processor.over(fetched.processor)
	b.report.add(figure{name: "a large body through a preview", unit: "times the speed of `vm.Fetch`", value: ratio.median(), spread: ratio, bar: atLeast(0.8)})
	b.report.add(figure{name: "a large body through a preview", unit: "times the processor time of `vm.Fetch`", value: processor.median(), spread: processor})
	return nil
}

// measureRequests compares single requests over connections that are kept. What is compared is their tenth quantile: on a busy computer most
// of the time of most of them is spent waiting for a processor.
func (p *previewed) measureRequests(ctx context.Context, b *bench) error {
	count := 400
	if b.quick {
		count = 100
	}
	ways := p.ways(smallPort, p.small)
	for i := range count {
		for _, w := range ways {
			if err := w.try(ctx, p, 2); err != nil {
				return err
			}
			if i == 0 { // it made the connection
				w.wall, w.processor, w.steps = nil, nil, nil
			}
		}
	}
	for _, w := range ways {
		b.report.value("Preview/small/"+w.name, w.wall.quantile(0.1)*1e3, "ms")
		b.report.value("Preview/small/"+w.name+"/processor", w.processor.median()*1e3, "ms")
		b.report.value("Preview/small/"+w.name+"/guest", w.steps.median(), "instructions")
	}
	fetched, shown := ways[0], ways[1]
	b.report.add(figure{name: "a small request through a preview, beyond `vm.Fetch`", unit: "ms", value: (shown.wall.quantile(0.1) - fetched.wall.quantile(0.1)) * 1e3, bar: atMost(2)})
	b.report.add(figure{name: "a small request through a preview, beyond `vm.Fetch`", unit: "ms of processor time", value: (shown.processor.median() - fetched.processor.median()) * 1e3})
	return nil
}

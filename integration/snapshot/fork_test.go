package snapshot

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"agentvm/egress"
	"agentvm/vm"
)

func TestForksAreDistinct(t *testing.T) {
	v := start(t, config(t))
	output(t, v, "cat /proc/sys/kernel/random/uuid >/root/before")
	all := []map[string]string{answers(t, v)}
	for _, f := range forks(t, v, 8, vm.ForkOptions{}) {
		all = append(all, answers(t, f))
		want(t, f, "cat /root/before", output(t, v, "cat /root/before"))
		wantClock(t, f)
	}
	wantDistinct(t, all)
}

// Programs that had drawn random numbers before the fork draw others after it: their kernel does, if not they themselves.
func TestForksDrawOtherNumbersAtOnce(t *testing.T) {
	v := start(t, config(t))
	if _, err := v.Start(limited(t), vm.Command{Line: "exec >/dev/null 2>&1; while :; do cat /proc/sys/kernel/random/uuid >/tmp/next; mv /tmp/next /tmp/uuid; done"}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, v, "test -s /tmp/uuid")
	seen := make(map[string]bool)
	for i, f := range append(forks(t, v, 4, vm.ForkOptions{KeepPrograms: true}), v) {
		for range 2 { // the first may have been drawn before the fork
			old := output(t, f, "cat /tmp/uuid")
			waitFor(t, f, "test $(cat /tmp/uuid) != "+old)
		}
		for range 5 {
			if id := output(t, f, "cat /tmp/uuid"); seen[fmt.Sprint(i, id)] {
				continue // the same fork, asked again
			} else if seen[id] {
				t.Errorf("two forks drew %s", id)
			} else {
				seen[id], seen[fmt.Sprint(i, id)] = true, true
			}
		}
	}
}

// busy is what a compiler does to a machine: processes, small files, pipes, and computing.
const busy = `mkdir -p /tmp/build; for i in $(seq 1 20); do
	seq 1 2000 | sed "s/^/$i: /" >/tmp/build/$i.c
	sha256sum </tmp/build/$i.c | cut -c1-64 >/tmp/build/$i.o
done; cat /tmp/build/*.o | sha256sum | cut -c1-64`

func TestForkDuringACompilation(t *testing.T) {
	t.Parallel()
	v := start(t, config(t))
	undisturbed := output(t, v, busy)
	output(t, v, "rm -r /tmp/build")
	p, err := v.Start(limited(t), vm.Command{Line: busy})
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, v, "test -s /tmp/build/5.o")
	killed := forks(t, v, 2, vm.ForkOptions{})
	kept := forks(t, v, 1, vm.ForkOptions{KeepPrograms: true})[0]
	for _, f := range killed {
		want(t, f, "ps -o args | grep -E '^(seq|sed|sha256sum)( |$)' | wc -l; test -s /tmp/build/5.o && echo there", "0\nthere")
		output(t, f, "rm -r /tmp/build")
		want(t, f, busy, undisturbed) // and it can be begun anew
	}
	waitFor(t, kept, "test -s /tmp/build/20.o")
	want(t, kept, "cat /tmp/build/*.o | sha256sum | cut -c1-64", undisturbed)
	if r, err := p.Wait(limited(t)); err != nil || strings.TrimSpace(string(r.Stdout)) != undisturbed {
		t.Errorf("the VM's own: %+v, %v", r, err)
	}
}

// The download of the VM that is forked continues to its end; the fork's copy of the connection is reset, and it can begin anew.
func TestForkDuringADownload(t *testing.T) {
	t.Parallel()
	content := make([]byte, 2<<20)
	rand.NewChaCha8([32]byte{1}).Read(content)
	sum := sha256.Sum256(content)
	half, forked := make(chan struct{}), make(chan struct{})
	reached := sync.OnceFunc(func() { close(half) })
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		w.Write(content[:len(content)/2])
		w.(http.Flusher).Flush()
		reached()
		select {
		case <-forked:
		case <-r.Context().Done():
		}
		w.Write(content[len(content)/2:])
	}))
	defer server.Close()
	c := config(t)
	c.Network = vm.Network{
		HostPorts: []uint16{netip.MustParseAddrPort(server.Listener.Addr().String()).Port()},
		Policy:    egress.Policy{},
		Resolvers: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")},
	}
	v := start(t, c)
	url := fmt.Sprintf("http://192.168.127.254:%d/", c.Network.HostPorts[0])
	p, err := v.Start(limited(t), vm.Command{Line: "wget -q -O /tmp/got " + url + "; echo $? >/tmp/status; sha256sum </tmp/got | cut -c1-64"})
	if err != nil {
		t.Fatal(err)
	}
	<-half
	list := forks(t, v, 2, vm.ForkOptions{KeepPrograms: true})
	close(forked)
	r, err := p.Wait(limited(t))
	if err != nil || strings.TrimSpace(string(r.Stdout)) != hex.EncodeToString(sum[:]) {
		t.Errorf("the VM's download: %+v, %v", r, err)
	}
	for _, f := range list {
		began := time.Now()
		waitFor(t, f, "test -s /tmp/status")
		if output(t, f, "cat /tmp/status") == "0" {
			t.Error("the download of before succeeded in a fork")
		}
		t.Log("the fork's download ended after", time.Since(began))
		want(t, f, "wget -q -O - "+url+" | sha256sum | cut -c1-64", hex.EncodeToString(sum[:]))
	}
}

// Many forks live in one process and are all worth something.
func TestFiftyForks(t *testing.T) {
	v := start(t, config(t))
	output(t, v, "echo parent >/root/file")
	began := time.Now()
	list := forks(t, v, 50, vm.ForkOptions{})
	t.Log("50 forks took", time.Since(began))
	var all sync.WaitGroup
	for i, f := range list {
		all.Go(func() {
			r, err := f.Exec(limited(t), fmt.Sprintf("cat /root/file; echo %d >/root/file; cat /root/file", i))
			if err != nil || string(r.Stdout) != fmt.Sprintf("parent\n%d\n", i) {
				t.Errorf("fork %d: %+v, %v", i, r, err)
			}
		})
	}
	all.Wait()
	t.Log("each has answered after", time.Since(began))
	want(t, v, "cat /root/file", "parent")
	want(t, list[7], "cat /root/file", "7")
	for _, f := range list {
		all.Go(func() { f.Close() })
	}
	all.Wait()
	want(t, v, "echo alive", "alive")
}

// Networks of forks are apart, and both work while the other does.
func TestForksOnTheNetwork(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { io.Copy(conn, conn); conn.Close() }()
		}
	}()
	c := config(t)
	c.Network.HostPorts = []uint16{netip.MustParseAddrPort(listener.Addr().String()).Port()}
	c.Network.Resolvers = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")}
	v := start(t, c)
	line := fmt.Sprintf("seq 1 20000 | nc 192.168.127.254 %d | sha256sum", c.Network.HostPorts[0])
	expected := output(t, v, "seq 1 20000 | sha256sum")
	var all sync.WaitGroup
	for _, f := range append(forks(t, v, 4, vm.ForkOptions{}), v) {
		all.Go(func() {
			if r, err := f.Exec(limited(t), line); err != nil || strings.TrimSpace(string(r.Stdout)) != expected {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
	all.Wait()
}

package vm_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentvm/internal/network/reach"
	"agentvm/vm"
)

// await waits until a condition holds.
func await(t testing.TB, what string, come func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !come(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited too long: " + what)
		}
	}
}

// awaitRefusal waits until nothing listens: Close of a listener gives the guest a second, and a busy host may need more.
func awaitRefusal(t testing.TB, v *vm.VM, address string) {
	t.Helper()
	await(t, "nothing listens at "+address, func() bool {
		c, err := v.DialContext(limited(t), "tcp", address)
		if err == nil {
			_ = c.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
}

// TestHungSocket: connections that are not read, and a dial that is not accepted, hold up no command.
func TestHungSocket(t *testing.T) {
	v := sharedVM(t)
	l := listener(t, v, "127.0.0.1:0")
	var hung sync.WaitGroup
	defer hung.Wait()
	for range 3 {
		c, far := pair(t, v, l)
		for _, c := range []net.Conn{c, far} {
			hung.Go(func() {
				n, err := c.Write(make([]byte, 64<<20))
				if err == nil || n > 32<<20 {
					t.Errorf("%d bytes that are not read were taken, %v", n, err)
				}
			})
		}
		defer func() { _, _ = c.Close(), far.Close() }()
	}
	for range 100 {
		wantOutput(t, v, "echo quick", "quick\n")
	}
}

// TestDialPaused: a pause ends no connection; calls to the guest wait for the pause's end, or for their own deadline.
func TestDialPaused(t *testing.T) {
	v := ownVM(t, nil)
	l := listener(t, v, "127.0.0.1:0")
	c, far := pair(t, v, l)
	if err := v.Pause(limited(t)); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := v.DialContext(short, "tcp", l.Addr().String()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Dial while paused: %v", err)
	}
	if _, err := v.Sockets(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Sockets while paused: %v", err)
	}
	_ = far.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	var timeout net.Error
	if _, err := c.Write([]byte("before")); err != nil {
		t.Error(err)
	}
	if _, err := far.Read(make([]byte, 1)); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("Read while paused: %v", err)
	}
	later := make(chan error, 1)
	go func() {
		l, err := v.Listen(limited(t), "tcp", "127.0.0.1:0")
		if err == nil {
			err = l.Close()
		}
		later <- err
	}()
	_ = far.SetReadDeadline(time.Time{})
	if err := v.Resume(limited(t)); err != nil {
		t.Fatal(err)
	}
	if err := <-later; err != nil {
		t.Errorf("Listen while paused: %v", err)
	}
	b := make([]byte, 6)
	if _, err := io.ReadFull(far, b); err != nil || string(b) != "before" {
		t.Errorf("after the pause: %q, %v", b, err)
	}
	pair(t, v, l) // the listener still works
}

// blocked has one goroutine each in Read, Write and Accept, and returns where their errors come.
func blocked(t *testing.T, v *vm.VM) <-chan error {
	l := listener(t, v, "127.0.0.1:0")
	c, _ := pair(t, v, l)
	ends := make(chan error, 3)
	go func() { _, err := l.Accept(); ends <- err }()
	go func() { _, err := io.Copy(io.Discard, c); ends <- err }()
	go func() { _, err := c.Write(make([]byte, 128<<20)); ends <- err }() // the other end does not read
	return ends
}

// TestDialStopped: the VM's end unblocks everything.
func TestDialStopped(t *testing.T) {
	for name, end := range map[string]func(*vm.VM) error{
		"Close": (*vm.VM).Close,
		"Stop": func(v *vm.VM) error {
			if err := v.Stop(context.Background()); !errors.Is(err, context.DeadlineExceeded) { // a busy host switches the guest off
				return err
			}
			return nil
		},
		"Close while paused": func(v *vm.VM) error { return errors.Join(v.Pause(context.Background()), v.Close()) },
		"the guest powers off": func(v *vm.VM) error {
			_, _ = v.Run(context.Background(), vm.Command{Line: "poweroff -f"})
			<-v.Done()
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := ownVM(t, nil)
			ends := blocked(t, v)
			if err := end(v); err != nil {
				t.Error(err)
			}
			for range cap(ends) {
				if err := <-ends; !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, net.ErrClosed) {
					t.Errorf("got %v", err)
				}
			}
			if _, err := v.DialContext(limited(t), "tcp", unused); err == nil {
				t.Error("dialled a VM that has ended")
			}
		})
	}
}

// TestDialForked: the VM's own connections and listeners work on; its fork has none of them, and programs there see resets.
func TestDialForked(t *testing.T) {
	v := ownVM(t, nil)
	l := listener(t, v, "127.0.0.1:0")
	address := l.Addr().String()
	c, far := pair(t, v, l)
	_, port, _ := net.SplitHostPort(address)
	// A program that the host's listener serves, and which runs on in the fork.
	program, err := v.Start(context.Background(), vm.Command{Line: "sleep 1000 | nc 127.0.0.1 " + port + "; echo ended >/tmp/ended; sleep 1000"})
	if err != nil {
		t.Fatal(err)
	}
	served, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = served.Close() }()
	forks, err := v.Fork(limited(t), 1, vm.ForkOptions{KeepPrograms: true})
	if err != nil {
		t.Fatal(err)
	}
	fork := forks[0]
	defer func() { _ = fork.Close() }()
	if _, err := fork.DialContext(limited(t), "tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the fork has a listener: %v", err)
	}
	sockets, err := fork.Sockets(limited(t))
	if err != nil {
		t.Error(err)
	}
	for _, s := range sockets {
		if s.State.String() == "ESTABLISHED" && s.Local.Addr().IsLoopback() {
			t.Errorf("the fork has %+v", s)
		}
	}
	listener(t, fork, address) // its port is free there
	if _, err := c.Write([]byte("on")); err != nil {
		t.Error(err)
	}
	b := make([]byte, 2)
	if _, err := io.ReadFull(far, b); err != nil || string(b) != "on" {
		t.Errorf("%q, %v", b, err)
	}
	pair(t, v, l)
	_ = program.Kill(limited(t))
}

// TestTwoVMs: each has its own ports, and none of them reaches the host's ports.
func TestTwoVMs(t *testing.T) {
	a, b := ownVM(t, nil), ownVM(t, nil)
	host, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = host.Close() }()
	hit := make(chan struct{})
	go func() {
		if c, err := host.Accept(); err == nil {
			_ = c.Close()
			close(hit)
		}
	}()
	address := host.Addr().String()
	for name, v := range map[string]*vm.VM{"a": a, "b": b} {
		if _, err := v.DialContext(limited(t), "tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: nothing listens in the VM: %v", name, err)
		}
		if r := mustRun(t, v, vm.Command{Line: "nc 127.0.0.1 " + strings.Split(address, ":")[1] + " </dev/null"}); r.ExitCode == 0 {
			t.Errorf("%s: a program reaches the host's loopback", name)
		}
	}
	la, lb := listener(t, a, address), listener(t, b, address) // the same port, three times
	serve := func(l net.Listener, word string) {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(word))
			_ = c.Close()
		}
	}
	var serving sync.WaitGroup
	defer serving.Wait()
	serving.Go(func() { serve(la, "a") })
	serving.Go(func() { serve(lb, "b") })
	read := func(v *vm.VM) string {
		c, err := v.DialContext(limited(t), "tcp", address)
		if err != nil {
			return err.Error()
		}
		defer func() { _ = c.Close() }()
		got, _ := io.ReadAll(c)
		return string(got)
	}
	for range 20 {
		if got := read(a) + read(b); got != "ab" {
			t.Errorf("got %q", got)
		}
	}
	_ = la.Close() // reuse: what a had is b's own still, and nothing of b is a's
	awaitRefusal(t, a, address)
	if got := read(b); got != "b" {
		t.Errorf("b: %q", got)
	}
	_ = lb.Close()
	again := listener(t, a, address)
	serving.Go(func() { serve(again, "a again") })
	if got := read(a); got != "a again" {
		t.Errorf("got %q", got)
	}
	awaitRefusal(t, b, address)
	_ = again.Close()
	select {
	case <-hit:
		t.Error("the host's own service was reached")
	default:
	}
}

// TestLocalConnectionsLimit: the limit holds before there is a connection, warns once at four fifths, and is shown.
func TestLocalConnectionsLimit(t *testing.T) {
	var log lockedBuffer
	v := ownVM(t, func(c *vm.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	l := listener(t, v, "127.0.0.1:0")
	var open []net.Conn
	for range reach.MaxConnections / 2 {
		c, far := pair(t, v, l)
		open = append(open, c, far)
	}
	if _, err := v.DialContext(limited(t), "tcp", l.Addr().String()); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("one more: %v", err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	wantOutput(t, v, "nc 127.0.0.1 "+port+" </dev/null 2>/dev/null; true", "") // reset, not kept waiting
	wantOutput(t, v, "echo works", "works\n")
	if n := strings.Count(log.String(), "limit of the VM is nearly reached"); n != 1 || !strings.Contains(log.String(), "local connections") {
		t.Errorf("%d warnings: %s", n, log.String())
	}
	found := false
	for _, use := range must(v.NetworkStats(t.Context())).Limits {
		if use.Limit == "local connections" {
			found = true
			if use.Maximum != reach.MaxConnections || use.Used != use.Maximum || use.Refused == 0 {
				t.Errorf("got %+v", use)
			}
		}
	}
	if !found {
		t.Error("the limit is not shown")
	}
	for _, c := range open {
		_ = c.Close()
	}
	awaitLocals(t, v, 0)
	pair(t, v, l)
}

// awaitLocals waits until so many places are taken.
func awaitLocals(t *testing.T, v *vm.VM, want int) {
	t.Helper()
	await(t, "the places of connections are free", func() bool {
		for _, use := range must(v.NetworkStats(t.Context())).Limits {
			if use.Limit == "local connections" {
				return use.Used == want
			}
		}
		return false
	})
}

// TestHungPeer: a connection that is closed leaves its place, whatever its other end does, which is another one here.
func TestHungPeer(t *testing.T) {
	v := ownVM(t, nil)
	l := listener(t, v, "127.0.0.1:0")
	for range 3 {
		c, far := pair(t, v, l)
		if _, err := c.Write([]byte("last words")); err != nil {
			t.Error(err)
		}
		_ = c.Close()
		awaitLocals(t, v, 1)
		if b, err := io.ReadAll(far); err != nil || string(b) != "last words" {
			t.Errorf("%q, %v", b, err)
		}
		_ = far.Close()
		awaitLocals(t, v, 0)
	}
}

// lockedBuffer is a buffer for several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// TestSocketTable: the guest's listeners and connections with the processes that have them, as they are now.
func TestSocketTable(t *testing.T) {
	v := sharedVM(t)
	find := func(match func(vm.Socket) bool) (found []vm.Socket) {
		list, err := v.Sockets(limited(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range list {
			if match(s) {
				found = append(found, s)
			}
		}
		return found
	}
	port := serveInGuest(t, v, 4712)
	listens := func(port string) func(vm.Socket) bool {
		return func(s vm.Socket) bool {
			return s.State.String() == "LISTEN" && strings.HasSuffix(s.Local.String(), ":"+port)
		}
	}
	var got []vm.Socket
	await(t, "it listens", func() bool { got = find(listens(port)); return len(got) == 1 && got[0].PID != 0 })
	if s := got[0]; s.Family != 4 || s.Network != "tcp" || s.PID < 2 || s.Process == "" || s.UID != 0 || s.Remote.Port() != 0 {
		t.Errorf("got %+v", s)
	}
	l := listener(t, v, "[::1]:0")
	_, port, _ = net.SplitHostPort(l.Addr().String())
	if got := find(listens(port)); len(got) != 1 || got[0].Family != 6 || got[0].PID != 1 || got[0].Local.Addr().String() != "::1" {
		t.Errorf("the host's listener: %+v", got)
	}
	c, _ := pair(t, v, l)
	local := c.LocalAddr().String()
	if got := find(func(s vm.Socket) bool { return s.Local.String() == local && s.State.String() == "ESTABLISHED" }); len(got) != 1 {
		t.Errorf("the host's connection: %+v", got)
	}
	_ = l.Close()
	await(t, "a listener that is closed is not listed", func() bool { return len(find(listens(port))) == 0 })
}

//go:build linux || darwin

package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentvm/internal/host/lockfile"
	"agentvm/nat"
	"agentvm/vm"
)

// portConfig is of a fakeVM with published ports that is hibernated soon.
func portConfig(ports ...uint16) Config {
	c := Config{HibernateAfter: Duration(time.Second)}
	for _, port := range ports {
		c.Network.Forwards = append(c.Network.Forwards, nat.Forward{GuestPort: port, Listen: netip.MustParseAddrPort("127.0.0.1:0")})
	}
	return c
}

// porting is a store with a VM called dev that sleeps, and the addresses of its ports.
func porting(t *testing.T, ports ...uint16) (s Store, addresses []string) {
	t.Helper()
	s = testStore(t, roleFake)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		for _, name := range []string{"dev", "other"} {
			_, _ = s.Stop(ctx, name, 0)
			_ = s.Remove(ctx, name)
		}
		await(t, "the activator's end", func() bool {
			_, err := os.Lstat(s.activator().lock())
			return err != nil
		})
		log, _ := os.ReadFile(s.activator().log())
		if t.Failed() {
			t.Logf("the activator's log:\n%s", log)
		}
		if strings.Contains(string(log), "panic") || strings.Contains(string(log), "DATA RACE") {
			t.Errorf("the activator's log:\n%s", log)
		}
		// Its last lines may come after its lock is gone, and a folder is not removed while a file is made in it.
		await(t, "the activator's last write", func() bool { return os.RemoveAll(s.activator().dir) == nil })
	})
	c, err := s.Start(t.Context(), "dev", portConfig(ports...), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	sleeps(t, s)
	p, _ := s.paths("dev")
	r, err := p.readRestoration()
	if err != nil || len(r.Ports) != len(ports) {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, want := range ports { // the sockets have no order
		for _, port := range r.Ports {
			if port.GuestPort == want {
				addresses = append(addresses, port.Listen.String())
			}
		}
	}
	return s, addresses
}

// talk sends through a port of a fakeVM, and returns its pid.
func talk(address string, size int) (pid string, err error) {
	conn, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return "", err
	}
	sent := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	go func() { // before anything answers, as HTTP's clients do
		_, _ = conn.Write(sent)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	answer, err := io.ReadAll(conn)
	pid, rest, _ := strings.Cut(string(answer), "\n")
	if err == nil && rest != string(sent) {
		err = fmt.Errorf("%d bytes of %d have come back", len(rest), len(sent))
	}
	return pid, err
}

func refused(t *testing.T, address string) {
	t.Helper()
	if conn, err := net.Dial("tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connect to %s: %v", address, err)
		if err == nil {
			_ = conn.Close()
		}
	}
}

// activatorPid is that of the newest activator.
func activatorPid(t *testing.T, s Store) (pid int) {
	t.Helper()
	log, err := os.ReadFile(s.activator().log())
	if err != nil {
		t.Fatal(err)
	}
	_, last, _ := strings.Cut(string(log[bytes.LastIndex(log, []byte("the activator listens")):]), "pid=")
	if _, err := fmt.Sscan(last, &pid); err != nil {
		t.Fatal(err)
	}
	return pid
}

// killActivator ends the activator as nothing else does.
func killActivator(t *testing.T, s Store) {
	t.Helper()
	process, _ := os.FindProcess(activatorPid(t, s))
	if err := process.Kill(); err != nil {
		t.Fatal(err)
	}
	await(t, "the activator's death", func() bool {
		lock, err := lockfile.TryShared(s.activator().lock())
		return err == nil && lock.Close() == nil
	})
}

// TestWakerNeedsTheKey: what wakes VMs for the activator wakes no VM whose key it is not shown, none that is not hibernated, and outlives nothing.
func TestWakerNeedsTheKey(t *testing.T) {
	s, _ := porting(t, 80)
	w, err := s.startWaker()
	if err != nil {
		t.Fatal(err)
	}
	p, _ := s.paths("dev")
	record, err := p.readRestoration()
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]string{"dev": "wrong", "other": record.Key, "../dev": record.Key, "": ""} {
		if err := w.wake(t.Context(), name, key); err == nil {
			t.Errorf("%q is woken with the key %q", name, key)
		}
	}
	if st, err := s.Status(t.Context(), "dev"); err != nil || st.State != Hibernated {
		t.Errorf("%+v, %v", st, err)
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if err := w.wake(t.Context(), "dev", record.Key); err != nil && !errors.Is(err, ErrNotRunning) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if st, err := s.Status(t.Context(), "dev"); err != nil || st.State == Hibernated {
		t.Errorf("%+v, %v", st, err)
	}
	if err := w.end(); err != nil {
		t.Error(err)
	}
	if err := w.wake(t.Context(), "dev", record.Key); !errors.Is(err, errWakerEnded) {
		t.Errorf("after its end: %v", err)
	}
	out := &bytes.Buffer{}
	for _, text := range []string{"\xff\xff\xff\xff", "\x00\x00\x00\x02[]", "\x00\x00"} {
		_ = RunWaker(t.Context(), s, strings.NewReader(text), out)
	}
	if out.Len() > 0 {
		t.Errorf("nonsense is answered with %q", out)
	}
}

// TestPorts: connections to the ports of a hibernated VM wake it once, and none loses a byte; also after the activator was killed. Its ports show,
// and are gone when it is stopped, or removed.
func TestPorts(t *testing.T) {
	s, at := porting(t, 80, 81)
	for round := range 3 {
		st, err := s.Status(t.Context(), "dev")
		if want := []string{at[0] + " -> 80/tcp", at[1] + " -> 81/tcp"}; err != nil || len(st.Ports) != 2 || st.Ports[0] != want[0] && st.Ports[0] != want[1] {
			t.Errorf("%+v, %v", st, err)
		}
		var mu sync.Mutex
		pids := make(map[string]int)
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				pid, err := talk(at[i%2], 100<<10)
				mu.Lock()
				defer mu.Unlock()
				if pids[pid]++; err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if len(pids) != 1 {
			t.Errorf("round %d: woken processes: %v", round, pids)
		}
		sleeps(t, s)
		if round == 1 {
			killActivator(t, s)
			refused(t, at[0])
			if _, err := s.List(t.Context()); err != nil { // starts it anew, which finds its ports in the VM's record
				t.Error(err)
			}
			await(t, "the new activator", func() bool {
				conn, err := net.Dial("tcp", at[0])
				return err == nil && conn.Close() == nil
			})
			awakens(t, s)
			sleeps(t, s)
		}
	}
	if err := s.Rename(t.Context(), "dev", "other"); err != nil {
		t.Fatal(err)
	}
	if _, err := talk(at[1], 16); err != nil {
		t.Errorf("renamed: %v", err)
	}
	if err := s.awaitAsleep(t, "other"); err != nil {
		t.Fatal(err)
	}
	if err := s.Rename(t.Context(), "other", "dev"); err != nil {
		t.Fatal(err)
	}
	if how, err := s.Stop(t.Context(), "dev", time.Second); err != nil || how != StoppedByAsk {
		t.Errorf("%v, %v", how, err)
	}
	refused(t, at[0])
	c, err := s.Start(t.Context(), "dev", portConfig(80), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	sleeps(t, s)
	st, err := s.Status(t.Context(), "dev")
	if err != nil || len(st.Ports) != 1 {
		t.Fatalf("%+v, %v", st, err)
	}
	if err := s.Remove(t.Context(), "dev"); err != nil {
		t.Fatal(err)
	}
	refused(t, strings.TrimSuffix(st.Ports[0], " -> 80/tcp"))
}

func awakens(t *testing.T, s Store) {
	t.Helper()
	await(t, "the VM's waking", func() bool {
		st, err := s.Status(t.Context(), "dev")
		return err == nil && st.State == Running
	})
}

func (s Store) awaitAsleep(t *testing.T, name string) error {
	p, err := s.paths(name)
	await(t, "hibernation", func() bool {
		alive, unlock, err := probe(p)
		return err == nil && !alive && unlock() == nil && p.asleep()
	})
	return err
}

// TestPortsOfAFailure: connections to a VM that cannot be woken are closed, with the reason in the log, and a later one tries again.
func TestPortsOfAFailure(t *testing.T) {
	s, at := porting(t, 80)
	p, _ := s.paths("dev")
	good, err := os.ReadFile(p.config())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.config(), []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	if pid, err := talk(at[0], 16); err == nil {
		t.Errorf("process %s has answered", pid)
	}
	var log []byte
	await(t, "the reason in the log", func() bool { // until it is there, a connection that comes now is closed as well
		log, _ = os.ReadFile(s.activator().log())
		return strings.Contains(string(log), "cannot be woken")
	})
	if !strings.Contains(string(log), "config.json") {
		t.Errorf("log: %s", log)
	}
	whole := p.config() + ".new"
	if err := errors.Join(os.WriteFile(whole, good, 0o600), os.Rename(whole, p.config())); err != nil {
		t.Fatal(err)
	}
	if _, err := talk(at[0], 1<<20); err != nil { // it waits for the next attempt, unless that had just read the rubbish
		if _, err := talk(at[0], 1<<20); err != nil {
			t.Error(err)
		}
	}
}

// TestPortsAreTheirOwners: an activator gives the sockets of a VM only to who knows its key, and takes none for another VM.
func TestPortsAreTheirOwners(t *testing.T) {
	s, at := porting(t, 80)
	ctx := t.Context()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	for _, r := range []activatorRequest{
		{Do: doTake, VM: "dev", Key: newToken()}, {Do: doTake, VM: "dev"}, {Do: doTake, VM: "../dev"}, {Do: "other"}, {},
		{Do: doGive, VM: "dev", Key: newToken()}, {Do: doGive, VM: "nothing"}, {Do: doGive, VM: "dev"},
	} {
		if files, err := s.askActivator(ctx, r, []*os.File{file}); err == nil || files != nil {
			t.Errorf("%+v: %v, %v", r, files, err)
		}
	}
	if _, err := talk(at[0], 16); err != nil {
		t.Error(err)
	}
}

// TestPortsInUse: a connection keeps its VM awake, one that sends nothing wakes it as any does, and a crowd is served as far as there are places.
func TestPortsInUse(t *testing.T) {
	s, at := porting(t, 80)
	silent, err := net.Dial("tcp", at[0])
	if err != nil {
		t.Fatal(err)
	}
	awakens(t, s)
	time.Sleep(2500 * time.Millisecond)
	if st, err := s.Status(t.Context(), "dev"); err != nil || st.State != Running {
		t.Errorf("with a connection: %+v, %v", st, err)
	}
	_ = silent.Close()
	sleeps(t, s)
	silent, err = net.Dial("tcp", at[0]) // it could hibernate again before its state is asked for
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	var crowd sync.WaitGroup
	for range 300 {
		crowd.Go(func() {
			if _, err := talk(at[0], 1024); err != nil {
				t.Error(err)
			}
		})
	}
	crowd.Wait()
	if st, err := s.Status(t.Context(), "dev"); err != nil || st.State != Running {
		t.Errorf("%+v, %v", st, err)
	}
}

// TestPortsWhileEnding: connections and clients that come while a hibernated VM is stopped, or removed, leave no process and no port.
func TestPortsWhileEnding(t *testing.T) {
	for _, remove := range []bool{false, true} {
		t.Run(fmt.Sprintf("remove %v", remove), func(t *testing.T) {
			s, at := porting(t, 80)
			p, _ := s.paths("dev")
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() { _, _ = talk(at[0], 1024) })
				all.Go(func() {
					if c, err := s.Connect(t.Context(), "dev"); err == nil {
						_ = c.Close()
					}
				})
			}
			if remove {
				for err := s.Remove(t.Context(), "dev"); err != nil && !errors.Is(err, ErrNotFound); err = s.Remove(t.Context(), "dev") {
					if !errors.Is(err, ErrRunning) && !strings.Contains(err.Error(), "started") {
						t.Fatal(err)
					}
					_, _ = s.Stop(t.Context(), "dev", 0)
				}
			}
			all.Wait()
			if _, err := s.Stop(t.Context(), "dev", 0); err != nil && !errors.Is(err, ErrNotFound) {
				t.Error(err)
			}
			await(t, "the end of the port", func() bool {
				conn, err := net.Dial("tcp", at[0])
				if err == nil {
					_ = conn.Close()
				}
				return err != nil
			})
			if alive, unlock, err := probe(p); err == nil && (alive || unlock() != nil) {
				t.Error("a daemon lives on")
			}
			_ = os.RemoveAll(filepath.Join(p.dir)) // of probe
		})
	}
}

// TestPortsKeepAwake: what no activator can hold keeps the VM awake, and its log says why.
func TestPortsKeepAwake(t *testing.T) {
	udp := portConfig()
	udp.Network.Forwards = []nat.Forward{{Protocol: "udp", GuestPort: 53, Listen: netip.MustParseAddrPort("127.0.0.1:0")}}
	secret := portConfig(80)
	secret.Secrets = []vm.Secret{{Name: "TOKEN", Source: "env:TOKEN", Hosts: []string{"example.com"}}}
	for want, config := range map[string]Config{"UDP": udp, "secret TOKEN": secret, "nothing would hold its ports": portConfig(80)} {
		t.Run(want, func(t *testing.T) {
			d, c := startUsed(t, config)
			for _, f := range config.Network.Forwards {
				f.Listen = netip.MustParseAddrPort("127.0.0.1:9")
				d.vm.ports = append(d.vm.ports, f)
			}
			_ = c.Close()
			await(t, "the reason in the log", func() bool {
				log, err := os.ReadFile(d.paths().log())
				return err == nil && strings.Contains(string(log), "idle and not hibernated") && strings.Contains(string(log), want)
			})
			c = d.connect(t)
			if state, err := c.State(t.Context()); err != nil || state != Running {
				t.Errorf("%v, %v", state, err)
			}
		})
	}
}

// TestListeners: connections that come while they are held are accepted afterwards, in either process, and none is lost.
func TestListeners(t *testing.T) {
	s := newListeners()
	l, err := s.listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{}, 100)
	accept := func(l net.Listener) {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			served <- struct{}{} // before the client sees the end
			_ = conn.Close()
		}
	}
	go accept(l)
	address := l.Addr().String()
	connect := func() {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Error(err)
			return
		}
		_, err = io.ReadAll(conn)
		if err := errors.Join(err, conn.Close()); err != nil {
			t.Error(err)
		}
	}
	var all sync.WaitGroup
	for range 50 {
		all.Go(connect)
		s.hold()
		s.release()
	}
	all.Wait()
	began := time.Now()
	connect()
	if s.hold() && time.Since(began) < countedTime {
		t.Error("a connection that was just accepted is not seen")
	}
	for len(served) > 0 {
		<-served
	}
	all.Go(connect)
	time.Sleep(50 * time.Millisecond)
	if len(served) > 0 {
		t.Error("a connection was accepted meanwhile")
	}
	at := netip.MustParseAddrPort(address)
	to := nat.Forward{Listen: at, GuestPort: 80, Localhost: true}
	var r Restoration
	files, err := s.files(&r, []nat.Forward{to})
	if err != nil || len(files) != 1 || len(r.Ports) != 1 || r.Ports[0] != to {
		t.Fatalf("%v, %+v, %v", files, r, err)
	}
	if _, err := s.files(&r, nil); err == nil {
		t.Error("a port that leads to no one knows where")
	}
	_ = l.Close()
	next := newListeners()
	if err := next.inherit(files); err != nil {
		t.Fatal(err)
	}
	if l, err = next.listen(t.Context(), "tcp4", at.String()); err != nil {
		t.Fatal(err)
	}
	go accept(l)
	next.release()
	all.Wait()
	if next.dropInherited(); len(next.inherited) > 0 {
		t.Error("what was not asked for is open")
	}
	_ = l.Close()
}

package daemon

import (
	"context"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"agentvm/images/storetest"
	"agentvm/internal/test/leaktest"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		if err := play(role, os.Args[1], os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	os.Exit(leaktest.Check(storetest.WithOwnUser(m.Run)))
}

// testStore is a store whose daemons run this test program in a role.
func testStore(t testing.TB, role string) Store {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(roleEnv, role)
	t.Setenv("GORACE", "atexit_sleep_ms=0") // otherwise they run for a second after their end
	s := Store{Dir: t.TempDir(), Version: "test"}
	s.Command, s.ActivatorCommand, s.MountCommand = []string{program, s.Dir}, []string{program, s.Dir, activatorName}, []string{program, s.Dir, mountName}
	s.WakerCommand = []string{program, s.Dir, wakerName}
	s.Environment = []string{roleEnv, "GORACE"}
	return s
}

// inside runs a daemon in this process.
type inside struct {
	store Store
	vm    *fakeVM
	stop  context.CancelFunc
	ended chan error
}

// startInside starts a daemon with a fakeVM and waits for its address, and for the VM when boot is nil.
func startInside(t testing.TB, c Config, tm timing, boot bootFunc) *inside {
	t.Helper()
	d := &inside{store: Store{Dir: t.TempDir(), Version: "test", Command: []string{"none"}}, vm: newFakeVM(), ended: make(chan error, 1)}
	d.restart(t, c, tm, boot)
	return d
}

func (d *inside) restart(t testing.TB, c Config, tm timing, boot bootFunc) {
	t.Helper()
	p := d.paths()
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := writeConfig(p.config(), c); err != nil {
		t.Fatal(err)
	}
	if tm.stateCheck == 0 {
		tm.stateCheck = 5 * time.Millisecond
	}
	runs, boots := int32(0), boot == nil
	if boots {
		runs = d.vm.runs.Load()
		boot = func(context.Context, booting) (VM, error) { return d.vm, nil }
	}
	ctx, stop := context.WithCancel(context.Background())
	d.stop = stop
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.ended <- run(ctx, d.store, "dev", tm.withDefaults(), boot)
	}()
	t.Cleanup(func() { stop(); <-ended })
	await(t, "the daemon", func() bool { // a short-lived one may have ended already
		_, err := p.readState("dev")
		return err == nil && (!boots || d.vm.runs.Load() > runs) || len(d.ended) > 0
	})
}

// startUsed starts a daemon with a first client, which connects before the boot ends: however busy the host is, the daemon is not
// idle before the test begins.
func startUsed(t testing.TB, c Config) (*inside, *Client) {
	t.Helper()
	here := make(chan struct{})
	d := &inside{store: Store{Dir: t.TempDir(), Version: "test", Command: []string{"none"}}, vm: newFakeVM(), ended: make(chan error, 1)}
	d.restart(t, c, timing{}, func(ctx context.Context, _ booting) (VM, error) {
		select {
		case <-here:
			return d.vm, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	client := d.connect(t)
	close(here)
	if err := client.AwaitReady(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	return d, client
}

// dialStranger returns a connection to the daemon that has not shown the token.
func (d *inside) dialStranger() (net.Conn, error) {
	st, err := d.paths().readState("dev")
	if err != nil {
		return nil, err
	}
	return dialDoor(context.Background(), d.paths(), st.Address)
}

// onBothDoors runs a test with the daemon's default listener on this system, and with a port.
func onBothDoors(t *testing.T, test func(t *testing.T)) {
	t.Run("as here", test)
	t.Run("port", func(t *testing.T) {
		t.Setenv("AGENTVM_DEBUG", "tcp")
		test(t)
	})
}

func (d *inside) paths() paths { p, _ := d.store.paths("dev"); return p }

// wait returns when the daemon has ended.
func (d *inside) wait(t testing.TB) error {
	t.Helper()
	select {
	case err := <-d.ended:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("the daemon does not end")
		return nil
	}
}

func (d *inside) connect(t testing.TB) *Client {
	t.Helper()
	c, err := d.store.Connect(t.Context(), "dev")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// await polls until a condition is true.
func await(t testing.TB, what string, is func() bool) {
	t.Helper()
	for range 4000 {
		if is() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatal("waited without success for " + what)
}

//go:build linux

package guest

import (
	"context"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"agentvm/internal/guestrpc"
)

// endless is input of any length.
type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// TestMachineIsTakenOver copies a machine at moments of a session that is busy in both directions, and calls Start in each copy
// while the guest is in the middle of whatever it does. No request is repeated and none times out.
func TestMachineIsTakenOver(t *testing.T) {
	e := bootEmulated(t, emulatedProgram(t))
	c := e.dial(guestrpc.ClientConfig{})
	defer func() { _ = c.Close() }()
	if _, err := c.Start(t.Context(), guestrpc.StartParams{}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []guestrpc.ExecParams{
		{Args: []string{"cat"}, Stdin: endless{}, Stdout: io.Discard},
		{Args: []string{"/bin/sh", "-c", "while :; do echo endless; done"}, Stdout: io.Discard},
	} {
		if _, err := c.Exec(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	run(t, c, script("setsid sleep 4321 >/dev/null 2>&1 &")) // left running by a program that has ended
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 6 {
		time.Sleep(time.Duration(random.IntN(20_000)) * time.Microsecond)
		e.pause()
		copied := e.copy(t)
		e.run()
		begin := copied.Retired()
		copied.run()
		again := copied.dial(guestrpc.ClientConfig{HelloInterval: time.Hour, KeepPrograms: i%2 == 1})
		greeted := copied.Retired() - begin
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if _, err := again.Start(ctx, guestrpc.StartParams{Restored: &guestrpc.Restored{Entropy: entropy(), NewIdentity: true, KeepPrograms: i%2 == 1}}); err != nil {
			t.Errorf("copy %d: %v", i, err)
		}
		t.Logf("copy %d: %d instructions until the hello was answered, %d more until it had started", i, greeted, copied.Retired()-begin-greeted)
		want := "0\n"
		if i%2 == 1 {
			want = "1\n"
		}
		if got := run(t, again, script("ps | grep -c 'echo endles[s]'; ps | grep -c 'sleep 432[1]'")); got.Stdout != want+want {
			t.Errorf("copy %d: programs: %+v, want %q twice", i, got, want)
		}
		cancel()
		_ = again.Close()
		copied.pause()
	}
	select {
	case <-c.Done():
		t.Error("the session of the first machine has ended")
	default:
	}
}

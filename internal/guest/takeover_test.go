//go:build linux

package guest

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/platform"
)

// endless is input of any length.
type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// TestMachineIsTakenOver copies a machine at moments of a session that is busy in both directions, and calls Start in each copy
// while the guest is in the middle of whatever it does. No request is repeated and none times out.
func TestMachineIsTakenOver(t *testing.T) { forEach(t, machineIsTakenOver) }

func machineIsTakenOver(t *testing.T, architecture platform.Architecture) {
	e := bootEmulated(t, architecture)
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
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
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

// TestAdoptInput: programs with keys read on from the next host, or find the end of their input.
func TestAdoptInput(t *testing.T) {
	e := bootEmulated(t, platform.RISCV64)
	c := e.dial(guestrpc.ClientConfig{})
	defer func() { _ = c.Close() }()
	ctx := testContext(t)
	if _, err := c.Start(ctx, guestrpc.StartParams{}); err != nil {
		t.Fatal(err)
	}
	const echo = "while read a; do echo got $a; done; echo over"
	all := map[string]struct {
		terminal *guestrpc.Size
		input    bool   // of the first host
		more     string // of the next host
		want     string // of its output
	}{
		"pipe": {nil, true, "two\nthree\n", "got two\ngot three\nover\n"}, "ended": {nil, true, "", "over\n"}, "none": {nil, false, "two\n", "over\n"},
		"terminal": {&guestrpc.Size{Columns: 80, Rows: 24}, true, "two\n", "two\r\ngot two\r\nover\r\n"},
	}
	var keys []string
	for key, one := range all {
		keys = append(keys, key)
		got, output := io.Pipe()
		defer func() { _ = output.Close() }()
		p := guestrpc.ExecParams{Args: []string{"/bin/sh", "-c", "sleep 0.2; " + echo}, Key: key, Terminal: one.terminal, Stdout: output}
		input, write := io.Pipe()
		defer func() { _ = write.Close() }()
		if one.input {
			p.Stdin = input
		} else {
			p.Args[2] = "while ! [ -e /tmp/go ]; do sleep 0.05; done; " + echo // is not over before it is adopted
		}
		if _, err := c.Exec(ctx, p); err != nil {
			t.Fatal(key, err)
		}
		if one.input {
			go func() { _, _ = io.WriteString(write, "one\n") }()
			var seen []byte
			for b := make([]byte, 64); !strings.Contains(string(seen), "got one"); {
				n, err := got.Read(b)
				if seen = append(seen, b[:n]...); err != nil {
					t.Fatal(err)
				}
			}
		}
		go func() { _, _ = io.Copy(io.Discard, got) }()
	}
	time.Sleep(20 * time.Millisecond) // the output has arrived, and the next Read of the input has been asked for
	e.pause()
	copied := e.copy(t)
	e.run()
	copied.run()
	again := copied.dial(guestrpc.ClientConfig{HelloInterval: time.Hour, KeepPrograms: true})
	defer func() { _ = again.Close() }()
	if _, err := again.Start(ctx, guestrpc.StartParams{Restored: &guestrpc.Restored{Entropy: entropy(), KeepPrograms: true, Programs: keys}}); err != nil {
		t.Fatal(err)
	}
	for key, one := range all {
		var output bytes.Buffer
		var stdin io.Reader
		if one.more != "" {
			stdin = io.MultiReader(strings.NewReader(one.more)) // of a length that is not known
		}
		p, err := again.Adopt(ctx, key, 1<<20, stdin, &output, &output)
		if err != nil {
			t.Error(key, err)
			continue
		}
		if !one.input {
			run(t, again, script("echo >/tmp/go"))
		}
		if status, err := p.Wait(ctx); err != nil || status.Code != 0 || output.String() != one.want {
			t.Errorf("%s: %+v, %v, %q, want %q", key, status, err, output.String(), one.want)
		}
	}
	copied.pause()
}

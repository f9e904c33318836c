package vm_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentvm/vm"
)

func echoCommand(prefix string) vm.HostCommand {
	return vm.HostCommand{Name: "hostecho", Run: func(_ context.Context, c vm.HostCall) error {
		_, err := fmt.Fprintf(c.Stdout, "%s%q\n", prefix, c.Args)
		return err
	}}
}

func hostCommands(c *vm.Config) {
	c.HostCommands = []vm.HostCommand{
		echoCommand(""),
		{Name: "upper", Description: "Writes its input in capitals.", Schema: json.RawMessage(`{"type":"object","properties":{"file":{"type":"string","description":"not used"}},"required":["file"]}`),
			Run: func(_ context.Context, c vm.HostCall) error {
				b, err := io.ReadAll(c.Stdin)
				if err == nil {
					_, err = c.Stdout.Write([]byte(strings.ToUpper(string(b))))
				}
				return err
			}},
		{Name: "seven", Run: func(_ context.Context, c vm.HostCall) error {
			_, _ = io.WriteString(c.Stderr, "to stderr\n")
			return &vm.HostExitError{Code: 7}
		}},
		{Name: "fails", Run: func(context.Context, vm.HostCall) error { return errors.New("out of order") }},
		{Name: "slow", Timeout: 100 * time.Millisecond, Run: func(ctx context.Context, _ vm.HostCall) error { <-ctx.Done(); return ctx.Err() }},
	}
}

func TestHostCommandsSocket(t *testing.T) {
	c := vm.Config{UnixSockets: []vm.UnixSocket{{Host: "/s", Guest: "/run/agentvm/bind.sock"}}}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	hostCommands(&c)
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "name another") {
		t.Errorf("a socket in the place of the commands': %v", err)
	}
}

func TestHostCommands(t *testing.T) {
	v := ownVM(t, hostCommands)
	wantOutput(t, v, `hostecho a 'b c' '$(id)' ''`, `["a" "b c" "$(id)" ""]`+"\n")
	wantOutput(t, v, `hostecho "$(printf 'x\377y')"`, `["x\xffy"]`+"\n")
	wantOutput(t, v, "echo abc | upper", "ABC\n")
	wantOutput(t, v, "head -c 3000000 /dev/zero | tr '\\0' x | upper | tr -d X | wc -c", "0\n")
	wantOutput(t, v, "head -c 3000000 /dev/zero | upper | wc -c", "3000000\n")
	wantOutput(t, v, "seven 2>&1; echo $?", "to stderr\n7\n")
	wantOutput(t, v, "fails 2>&1; echo $?", "fails: out of order\n1\n")
	wantOutput(t, v, "slow 2>&1; echo $?", "slow: the host has ended the command after 100ms\n124\n")
	wantOutput(t, v, "/run/agentvm/bin/upper --help", "Usage: upper [ARGUMENTS]\n\nWrites its input in capitals.\n\nArguments:\n  file (string) required  not used\n")
	wantOutput(t, v, "ln -s /run/agentvm/bin/upper /tmp/other; /tmp/other 2>&1; echo $?", "agentvm: the host has no command \"other\"\n125\n")
	var tools []struct {
		Name   string
		Schema map[string]any
	}
	if err := json.Unmarshal(must(v.ReadFile(limited(t), "/run/agentvm/tools")), &tools); err != nil || len(tools) != 5 || tools[1].Schema["type"] != "object" {
		t.Errorf("the list: %v, %v", tools, err)
	}
	if r := mustRun(t, v, vm.Command{Args: []string{"hostecho", "by another user"}, User: "65534"}); string(r.Stdout) != "[\"by another user\"]\n" {
		t.Errorf("another user: %+v", r)
	}
}

// TestHostCommandsOfCopies: a fork and a restored VM have what their own configuration gives, and no more.
func TestHostCommandsOfCopies(t *testing.T) {
	v := ownVM(t, hostCommands)
	same := fork(t, v, 1, vm.ForkOptions{})[0]
	wantOutput(t, same, "hostecho x", "[\"x\"]\n")
	other := fork(t, v, 1, vm.ForkOptions{Configure: func(_ int, c *vm.Config) { c.HostCommands = []vm.HostCommand{echoCommand("fork")} }})[0]
	wantOutput(t, other, "hostecho x; ls /run/agentvm/bin", "fork[\"x\"]\nhostecho\n")
	wantNone := func(v *vm.VM) {
		t.Helper()
		wantOutput(t, v, "ls -d /run/agentvm/bin /run/agentvm/tools 2>/dev/null; PATH=/run/agentvm/bin:$PATH hostecho x 2>/dev/null; echo $?", "127\n")
	}
	wantNone(fork(t, v, 1, vm.ForkOptions{Configure: func(_ int, c *vm.Config) { c.HostCommands = nil }})[0])
	saved := save(t, v, vm.SnapshotOptions{})
	wantNone(restore(t, saved, func(*vm.Config) {}, vm.RestoreOptions{}))
	wantOutput(t, restore(t, saved, func(c *vm.Config) { c.HostCommands = []vm.HostCommand{echoCommand("restored")} }, vm.RestoreOptions{}),
		"hostecho x", "restored[\"x\"]\n")
}

// TestHostileCallers: calls that are killed, without readers and floods end, and leave the host's commands usable.
func TestHostileCallers(t *testing.T) {
	var running atomic.Int32
	v := ownVM(t, func(c *vm.Config) {
		hang := vm.HostCommand{Name: "hang", Run: func(ctx context.Context, _ vm.HostCall) error {
			running.Add(1)
			defer running.Add(-1)
			<-ctx.Done()
			return ctx.Err()
		}}
		flood := vm.HostCommand{Name: "flood", Run: func(ctx context.Context, c vm.HostCall) error {
			running.Add(1)
			defer running.Add(-1)
			for ctx.Err() == nil {
				if _, err := c.Stdout.Write(make([]byte, 1<<20)); err != nil {
					return err
				}
			}
			return ctx.Err()
		}}
		c.HostCommands = []vm.HostCommand{hang, flood, echoCommand("")}
	})
	ended := func() {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); running.Load() != 0; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d calls still run", running.Load())
			}
		}
	}
	wantOutput(t, v, "timeout 1 hang 2>/dev/null; echo $?", "143\n")
	ended()
	wantOutput(t, v, "flood | head -c 10 | wc -c", "10\n")
	ended()
	wantOutput(t, v, "flood | sleep 1; echo over", "over\n")
	ended()
	wantOutput(t, v, `refused() { grep -c 'cut the call off' /tmp/refused; }
		>/tmp/refused; for i in $(seq 40); do hang 2>>/tmp/refused & done
		for i in $(seq 600); do [ $(refused) -ge 24 ] && break; sleep 0.1; done; sleep 0.5; refused; killall hang; sleep 0.2`, "24\n")
	ended()
	wantOutput(t, v, "hostecho still", "[\"still\"]\n")
	wantOutput(t, v, "head -c 120000 /dev/zero | tr '\\0' x >/tmp/x; hostecho $(cat /tmp/x) | wc -c; hostecho $(cat /tmp/x) $(cat /tmp/x) 2>&1 >/dev/null; echo $?",
		"120005\nagentvm: the arguments of a host command have at most 128 KiB\n125\n")
	go func() { _, _ = v.Run(context.Background(), vm.Command{Line: "hang"}) }()
	for running.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if n := running.Load(); n != 0 {
		t.Errorf("%d calls run after Close", n)
	}
}

// BenchmarkHostCommand is a call by a program of the guest, which is one new process there: bar 5 ms.
func BenchmarkHostCommand(b *testing.B) {
	v := ownVM(b, hostCommands)
	var calls, plain []time.Duration
	for b.Loop() {
		for times, name := range map[*[]time.Duration]string{&calls: "/run/agentvm/bin/hostecho", &plain: "/bin/true"} {
			began := time.Now()
			if r, err := v.Run(limited(b), vm.Command{Args: []string{name}}); err != nil || r.ExitCode != 0 {
				b.Fatal(r, err)
			}
			*times = append(*times, time.Since(began))
		}
	}
	slices.Sort(calls)
	slices.Sort(plain)
	b.ReportMetric(float64(calls[len(calls)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(plain[len(plain)/2].Microseconds()), "true-p50-µs")
}

package e2b

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"agentvm/internal/api/live"
	"agentvm/internal/api/rpc"
	"agentvm/vm"
)

// startVM starts programs that run until they are ended.
type startVM struct {
	VM
	until chan struct{}
}

type runningProcess struct {
	vm.Process
	until chan struct{}
}

func (v startVM) Start(context.Context, vm.Command) (vm.Process, error) {
	return runningProcess{until: v.until}, nil
}

func (p runningProcess) Wait(context.Context) (*vm.Result, error) {
	<-p.until
	return &vm.Result{}, nil
}

// TestProcessesAtOnce: one more than there may be is refused.
func TestProcessesAtOnce(t *testing.T) {
	run := make(chan struct{})
	b := &sandbox{procs: newTable(), vm: startVM{until: run}}
	begin := func() error {
		return b.start(t.Context(), live.New(started{}, false, true), vm.Command{})
	}
	for i := range maxProcs {
		if err := begin(); err != nil {
			t.Fatalf("with %d that run: %v", i, err)
		}
	}
	if err := begin(); rpc.Code(err) != connect.CodeResourceExhausted {
		t.Errorf("with %d that run: %v", maxProcs, err)
	}
	close(run)
	b.procs.Wait()
}

// TestSavedProcesses: what clients have started can be read again by the server that continues it, whatever they have said.
func TestSavedProcesses(t *testing.T) {
	for _, long := range []int{0, 10, 20_000, 3 << 20} {
		s := &Server{sandboxes: map[string]*sandbox{}}
		b := &sandbox{procs: newTable(), id: "one", vm: startVM{until: make(chan struct{})}, asked: creation{Env: map[string]string{"A": strings.Repeat("x", long/2)}}}
		s.sandboxes["one"] = b
		for i := range maxProcs {
			config := processConfig{Cmd: "sh", Args: []string{strings.Repeat("\x01", long/6)}} // six bytes each in JSON
			if err := b.start(t.Context(), live.New(started{config, fmt.Sprint("tag ", i)}, false, i%2 == 0), vm.Command{}); err != nil {
				t.Fatal(err)
			}
		}
		text, err := s.Creation("one")
		if err != nil || len(text) > maxJSON-maxJSON/10 {
			t.Fatalf("%d bytes, %v", len(text), err)
		}
		var q creation
		if err := json.Unmarshal(text, &q); err != nil {
			t.Fatal(err)
		}
		if err := q.Processes.check(); err != nil || len(q.Processes.Running) != maxProcs || q.Processes.Last != maxProcs || q.Processes.keys()[1] != "e2b-2" {
			t.Errorf("%d processes, %v", len(q.Processes.Running), err)
		}
		if one := q.Processes.Running[0]; !one.Input || one.Config.Cmd != "sh" || long < 1<<20 && (one.Tag != "tag 0" || len(one.Config.Args) != 1) {
			t.Errorf("%+.200v", one)
		}
		close(b.vm.(startVM).until)
		b.procs.Wait()
	}
	for _, bad := range []savedProcesses{
		{Last: 1, Running: []savedProcess{{PID: 2}}}, {Last: 1, Running: []savedProcess{{PID: 0}}}, {Last: 3, Running: []savedProcess{{PID: 2}, {PID: 2}}},
		{Last: maxPID + 1}, {Last: 1000, Running: make([]savedProcess, maxProcs+1)},
	} {
		if bad.check() == nil {
			t.Errorf("%.200v is accepted", bad)
		}
	}
}

// TestCallOfSandboxThatGoes: a call that waits in a sandbox that is removed gets the answer of a sandbox that is not there, one whose time is over
// gets the code of that.
func TestCallOfSandboxThatGoes(t *testing.T) {
	h := serve(t, false)
	life, remove := context.WithCancel(t.Context())
	until := make(chan struct{})
	b := &sandbox{procs: newTable(), id: "one", vm: startVM{until: until}, live: life}
	h.s.mu.Lock()
	h.s.sandboxes["one"] = b
	h.s.mu.Unlock()
	defer func() {
		h.s.mu.Lock()
		delete(h.s.sandboxes, "one")
		h.s.mu.Unlock()
		close(until)
		b.procs.Wait()
	}()
	if err := b.start(t.Context(), live.New(started{config: processConfig{Cmd: "sleep"}}, false, true), vm.Command{}); err != nil {
		t.Fatal(err)
	}
	send := func(headers ...string) (int, string) {
		return h.do("POST", "/process.Process/SendInput", strings.NewReader(`{"process":{"pid":1},"input":{"stdin":"eA=="}}`),
			append([]string{"Content-Type", "application/json; charset=utf-8", "E2b-Sandbox-Id", "one", "X-Access-Token", h.s.token("one")}, headers...)...)
	}
	for _, limit := range []string{"20", "20.5"} { // the SDK for Python sends a fraction
		if code, text := send("Connect-Timeout-Ms", limit); code != 504 || !strings.Contains(text, `"deadline_exceeded"`) {
			t.Errorf("whose time of %s is over: %d %s", limit, code, text)
		}
	}
	time.AfterFunc(50*time.Millisecond, remove)
	if code, text := send(); code != 502 || text != `{"code":502,"message":"The sandbox was not found","sandboxId":"one"}`+"\n" {
		t.Errorf("of a sandbox that goes: %d %s", code, text)
	}
}

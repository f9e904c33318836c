package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"agentvm/vm"
)

// startVM starts programs that run until they are ended.
type startVM struct {
	VM
	until chan struct{}
}

type started struct {
	vm.Process
	until chan struct{}
}

func (v startVM) Start(context.Context, vm.Command) (vm.Process, error) {
	return started{until: v.until}, nil
}

func (p started) Wait(context.Context) (*vm.Result, error) {
	<-p.until
	return &vm.Result{}, nil
}

// TestProcessesAtOnce: programs that have ended make room for others, those that run do not.
func TestProcessesAtOnce(t *testing.T) {
	ended := make(chan struct{})
	close(ended)
	run := make(chan struct{})
	b := &sandbox{}
	begin := func(until chan struct{}) error {
		p := &process{done: make(chan struct{})}
		b.vm = startVM{until: until}
		err := b.start(t.Context(), p, vm.Command{})
		if err == nil && until == ended {
			<-p.done
		}
		return err
	}
	for i := range 3 * maxProcs {
		if err := begin(ended); err != nil {
			t.Fatalf("after %d that have ended: %v", i, err)
		}
	}
	for i := range maxProcs {
		if err := begin(run); err != nil {
			t.Fatalf("with %d that run: %v", i, err)
		}
	}
	var full *rpcError
	if err := begin(run); !errors.As(err, &full) || full.Code != resourceExhausted {
		t.Errorf("with %d that run: %v", maxProcs, err)
	}
	if n := len(b.procs.procs); n != maxProcs {
		t.Errorf("%d are remembered", n)
	}
	close(run)
	b.procs.wait()
}

// TestSavedProcesses: what clients have started can be read again by the server that continues it, whatever they have said.
func TestSavedProcesses(t *testing.T) {
	for _, long := range []int{0, 10, 20_000, 3 << 20} {
		s := &Server{sandboxes: map[string]*sandbox{}}
		b := &sandbox{id: "one", vm: startVM{until: make(chan struct{})}, asked: creation{Env: map[string]string{"A": strings.Repeat("x", long/2)}}}
		s.sandboxes["one"] = b
		for i := range maxProcs {
			config := processConfig{Cmd: "sh", Args: []string{strings.Repeat("\x01", long/6)}} // six bytes each in JSON
			if err := b.start(t.Context(), newProcess(config, fmt.Sprint("tag ", i), false, i%2 == 0), vm.Command{}); err != nil {
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
		b.procs.wait()
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

package e2b

import (
	"context"
	"errors"
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

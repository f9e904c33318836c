package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"syscall"
	"time"

	"agentvm/internal/api/live"
	"agentvm/vm"
)

const (
	adoptTime = 30 * time.Second // bounds how long the processes of a sandbox that continues are asked for
	maxPID    = 1 << 31
)

// KeyProcesses is the key of savedProcesses in what Creation returns.
const KeyProcesses = "agentvmProcesses"

// savedProcesses are those of a sandbox whose VM is saved. Where it continues they have the same numbers and tags, and input if they had some; of
// their output clients get what comes from then on.
type savedProcesses struct {
	Last    uint32         `json:"last"` // number that was given
	Running []savedProcess `json:"running,omitempty"`
}

type savedProcess struct {
	PID    uint32        `json:"pid"`
	Config processConfig `json:"config"`
	Tag    string        `json:"tag,omitempty"`
	PTY    bool          `json:"pty,omitempty"`
	Input  bool          `json:"input,omitempty"` // clients can send some
}

// processKey is vm.Command.Key of a process.
func processKey(pid uint32) string { return fmt.Sprintf("e2b-%d", pid) }

func (s savedProcesses) check() error {
	seen := map[uint32]bool{0: true}
	for _, p := range s.Running {
		if seen[p.PID] || p.PID > s.Last {
			return fail(http.StatusBadRequest, "agentvmProcesses: %d is no process's number, or that of two", p.PID)
		}
		seen[p.PID] = true
	}
	if len(s.Running) > maxProcs || s.Last > maxPID {
		return fail(http.StatusBadRequest, "agentvmProcesses: there are more than %d, or numbers beyond %d", maxProcs, maxPID)
	}
	return nil
}

func (s savedProcesses) keys() (keys []string) {
	for _, p := range s.Running {
		keys = append(keys, processKey(p.PID))
	}
	return keys
}

// save describes the processes that run, in at most so many bytes of JSON. Where a client has made them too long to say, they have no arguments,
// variables and tags, or are left out.
func save(t *live.Table[started], room int) (s savedProcesses) {
	list, last := t.List()
	s.Last = last
	for _, p := range list {
		if p.Over() {
			continue
		}
		one := savedProcess{p.ID, p.Info.config, p.Info.tag, p.Terminal, !p.Input.Ended()}
		size := one.size()
		if size > maxJSON/maxProcs/2 && size > room/2 {
			one.Config, one.Tag = processConfig{Cmd: one.Config.Cmd[:min(len(one.Config.Cmd), 100)]}, ""
			size = one.size()
		}
		if room -= size; room < 0 {
			break
		}
		s.Running = append(s.Running, one)
	}
	return s
}

func (p savedProcess) size() int {
	text, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings and numbers
	}
	return len(text) + 1
}

// adopt continues with the processes that its VM has of them. The sandbox is not in use yet.
func (b *sandbox) adopt(ctx context.Context, s savedProcesses) error {
	ctx, cancel := context.WithTimeout(ctx, adoptTime)
	defer cancel()
	b.procs.Continue(s.Last)
	var failed error
	for _, saved := range s.Running {
		p := live.New(started{saved.Config, saved.Tag}, saved.PTY, saved.Input)
		p.ID = saved.PID
		command := vm.Command{Key: processKey(p.ID), Args: append([]string{saved.Config.Cmd}, saved.Config.Args...)}
		if p.Terminal {
			command.Terminal = &vm.Size{} // it has its size
		}
		p.Connect(&command)
		err := b.procs.Start(p, func(uint32) (vm.Process, error) { return b.vm.Adopt(ctx, 0, command) })
		if err != nil && !errors.Is(err, syscall.ENOENT) { // it ended as the VM was saved, or this is another VM
			failed = errors.Join(failed, fmt.Errorf("%s (%d): %w", saved.Config.Cmd, saved.PID, err))
		}
	}
	return failed
}

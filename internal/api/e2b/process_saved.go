package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"syscall"
	"time"

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
func (t *table) save(room int) savedProcesses {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := savedProcesses{Last: t.last}
	for _, pid := range slices.Sorted(maps.Keys(t.procs)) {
		p := t.procs[pid]
		if p.over() {
			continue
		}
		one := savedProcess{pid, p.config, p.tag, p.pty, p.hasInput()}
		size := one.size()
		if size > maxJSON/maxProcs/2 && size > room/2 {
			one.Config, one.Tag = processConfig{Cmd: p.config.Cmd[:min(len(p.config.Cmd), 100)]}, ""
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
	t := &b.procs
	t.last = s.Last
	var failed error
	for _, saved := range s.Running {
		p := newProcess(saved.Config, saved.Tag, saved.PTY, saved.Input)
		p.pid = saved.PID
		command := vm.Command{Key: processKey(p.pid), Args: append([]string{p.config.Cmd}, p.config.Args...)}
		if p.pty {
			command.Terminal = &vm.Size{} // it has its size
		}
		p.connect(&command)
		running, err := b.vm.Adopt(ctx, 0, command)
		switch {
		case err == nil:
			t.running.Add(1)
			t.add(p, running)
		case !errors.Is(err, syscall.ENOENT): // it ended as the VM was saved, or this is another VM
			failed = errors.Join(failed, fmt.Errorf("%s (%d): %w", p.config.Cmd, p.pid, err))
		}
	}
	return failed
}

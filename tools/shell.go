package tools

import (
	"context"
	"errors"
	"fmt"
	"time"

	"agentvm/client"
	"agentvm/vm"
)

// Shell is OpenAI's tool shell. Every command is run by itself.
type Shell struct {
	v client.AnyVM
	o Options
}

// ShellAction is the action of a shell_call.
type ShellAction struct {
	Commands        []string `json:"commands"` // shell source each
	TimeoutMillis   *int64   `json:"timeout_ms,omitempty"`
	MaxOutputLength *int     `json:"max_output_length,omitempty"` // bytes of a command's output, both streams together
}

// ShellOutput is what a shell_call_output has.
type ShellOutput struct {
	Output          []ShellCommandOutput `json:"output"` // one for each command
	MaxOutputLength *int                 `json:"max_output_length,omitempty"`
}

// ShellCommandOutput is the output of a command, and how it ended.
type ShellCommandOutput struct {
	Stdout  string       `json:"stdout"`
	Stderr  string       `json:"stderr"`
	Outcome ShellOutcome `json:"outcome"`
}

// ShellOutcome is of Type "exit", or "timeout" when the command was killed because its time had passed.
type ShellOutcome struct {
	Type     string `json:"type"`
	ExitCode *int   `json:"exit_code,omitempty"`
}

// maxCommands bounds the commands of a call.
const maxCommands = 100

// Run runs the commands of a call, one after another.
func (s *Shell) Run(ctx context.Context, a ShellAction) (*ShellOutput, error) {
	timeout, limit := s.o.Timeout, s.o.MaxOutput
	if a.TimeoutMillis != nil {
		timeout = time.Duration(*a.TimeoutMillis) * time.Millisecond
	}
	if a.MaxOutputLength != nil {
		limit = *a.MaxOutputLength
	}
	switch {
	case len(a.Commands) == 0 || len(a.Commands) > maxCommands:
		return nil, fmt.Errorf("%d commands: want 1 to %d", len(a.Commands), maxCommands)
	case timeout <= 0 || timeout > 24*time.Hour:
		return nil, errors.New("timeout_ms: want 1 to 86400000")
	case limit <= 0 || limit > 10<<20:
		return nil, errors.New("max_output_length: want 1 to 10485760")
	}
	out := &ShellOutput{MaxOutputLength: a.MaxOutputLength}
	for _, line := range a.Commands {
		r, err := s.v.Run(ctx, vm.Command{Line: line, Dir: s.o.Dir, User: s.o.User, Env: s.o.Env, Timeout: timeout, MaxOutput: 2 * limit})
		if err != nil {
			return nil, fmt.Errorf("run %.80q: %w", line, err)
		}
		forErr := min(len(r.Stderr), max(limit/2, limit-len(r.Stdout)))
		o := ShellCommandOutput{
			Stdout:  shorten(string(r.Stdout), int(r.StdoutTruncated.Dropped), limit-forErr),
			Stderr:  shorten(string(r.Stderr), int(r.StderrTruncated.Dropped), forErr),
			Outcome: ShellOutcome{Type: "timeout"},
		}
		if !r.TimedOut {
			o.Outcome = ShellOutcome{"exit", &r.ExitCode}
		}
		out.Output = append(out.Output, o)
	}
	return out, nil
}

package guestrpc

import (
	"context"
	"time"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc/guestwire"
)

// Shell is a shell in the guest that runs one command after another; working directory, variables and functions stay.
// Each command has its own streams and exit status.
type Shell struct {
	c      *Client
	remote guestwire.Shell
}

// OpenShell starts a shell. It uses Env, Dir and User of p, and Args[0] as the shell's path; empty: /bin/sh.
func (c *Client) OpenShell(ctx context.Context, p ExecParams) (*Shell, error) {
	future, release := c.supervisor.OpenShell(ctx, func(call guestwire.Supervisor_openShell_Params) error {
		w, err := call.NewParams()
		if err != nil {
			return err
		}
		return ExecParams{Args: p.Args, Env: p.Env, Dir: p.Dir, User: p.User}.Write(w)
	})
	defer release()
	r, err := capnprpc.Await(c.fault, "open a shell", future.Struct)
	if err != nil {
		return nil, err
	}
	return &Shell{c: c, remote: r.Shell().AddRef()}, nil
}

// Run starts a command in the shell, one at a time: a second one while the first runs is an *Error of KindState. The
// Process is as from Exec; killing it kills the shell too. When ExitStatus.ShellEnded is set, or Run returns an *Error of
// KindState with ESRCH, open a new shell.
func (s *Shell) Run(ctx context.Context, command Command) (*Process, error) {
	future, release := s.remote.Run(ctx, func(call guestwire.Shell_run_Params) error {
		w, err := call.NewParams()
		if err != nil {
			return err
		}
		w.SetHoldMillis(uint16(s.c.cfg.Hold / time.Millisecond))
		if err := w.SetCommand(command.Line); err != nil {
			return err
		}
		return writeInput(w, command.Stdin)
	})
	defer release()
	r, err := future.Struct()
	if err != nil {
		return nil, s.c.fault("run", err)
	}
	return s.c.adopt(r, command.Stdout, command.Stderr)
}

// Close kills the shell and what runs in it.
func (s *Shell) Close() error {
	s.remote.Release()
	return nil
}

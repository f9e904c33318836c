package vm

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"syscall"

	"agentvm/internal/guest/guestrpc"
)

// ShellConfig says how to start a Shell. The zero value is /bin/sh, with the image's user and directory.
type ShellConfig struct {
	Program string   // the shell; it must understand POSIX shell source. Default: /bin/sh
	Env     []string // KEY=VALUE, wins over the VM's environment
	Dir     string   // default: as for a command
	User    string   // as Command.User
}

// Shell is a shell in the guest that runs one command after another. Working directory, variables and functions stay.
type Shell struct {
	vm     *VM
	config ShellConfig

	mu     sync.Mutex
	remote *guestrpc.Shell // nil after Close
}

// Shell starts a shell. It must be closed.
func (v *VM) Shell(ctx context.Context, config ShellConfig) (*Shell, error) {
	s := &Shell{vm: v, config: config}
	if err := s.Restart(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// Restart replaces the shell by a new one, whatever state it is in. A command that runs in it is killed.
func (s *Shell) Restart(ctx context.Context) error {
	client, err := s.vm.guest(ctx)
	if err != nil {
		return err
	}
	if err := checkEnv(s.config.Env); err != nil {
		return err
	}
	var args []string
	if s.config.Program != "" {
		args = []string{s.config.Program}
	}
	remote, err := client.OpenShell(ctx, guestrpc.ExecParams{
		Args: args, Env: s.config.Env, Dir: s.vm.workingDir(s.config.Dir), User: cmp.Or(s.config.User, s.vm.image.User),
	})
	if err != nil {
		return s.vm.explain(err)
	}
	s.mu.Lock()
	old := s.remote
	s.remote = remote
	s.mu.Unlock()
	if old != nil {
		return old.Close()
	}
	return nil
}

// Exec runs a line of shell source in the shell and returns its result, like VM.Exec.
func (s *Shell) Exec(ctx context.Context, line string) (*Result, error) {
	return s.Run(ctx, Command{Line: line})
}

// Run runs a command in the shell. Of c, Line, the streams, MaxOutput and Timeout count; the rest is the shell's
// own. One command runs at a time: another one gives an error for which errors.Is(err, syscall.EBUSY) holds. A command
// that is killed, because of its Timeout or of ctx, takes the shell with it: Result.ShellEnded is then set, and the next
// command is answered with ErrShellEnded until Restart is called.
func (s *Shell) Run(ctx context.Context, c Command) (*Result, error) {
	if len(c.Args) > 0 || len(c.Env) > 0 || c.Dir != "" || c.User != "" || c.Terminal != nil {
		return nil, errors.New("a shell's command has no Args, Env, Dir, User or Terminal of its own")
	}
	if _, err := c.Arguments(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	remote := s.remote
	s.mu.Unlock()
	if remote == nil {
		return nil, ErrShellEnded
	}
	if _, err := s.vm.guest(ctx); err != nil {
		return nil, err
	}
	p := newProcess(s.vm, c)
	var err error
	p.remote, err = remote.Run(ctx, guestrpc.Command{Line: c.Line, Stdin: c.Stdin, Stdout: p.out(), Stderr: p.err()})
	if err = p.started(err); errors.Is(err, syscall.ESRCH) {
		return nil, ErrShellEnded
	}
	if err != nil {
		return nil, s.vm.explain(err)
	}
	return p.finish(ctx)
}

// Close ends the shell and what runs in it.
func (s *Shell) Close() error {
	s.mu.Lock()
	remote := s.remote
	s.remote = nil
	s.mu.Unlock()
	if remote == nil {
		return nil
	}
	return remote.Close()
}

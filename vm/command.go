package vm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"agentvm/rpc"
)

// defaultDir is where commands start when nobody says where, as in containers: the home of root is empty.
const defaultDir = "/"

// Command is what to run in a VM. Exactly one of Line and Args is given.
type Command struct {
	// Line is shell source, run by /bin/sh -c.
	Line string
	// Args is a program and its arguments, run without a shell. A name without a slash is searched in the PATH.
	Args []string

	// Env holds KEY=VALUE and wins over the VM's environment.
	Env []string
	// Dir is the working directory. Default: /, as containers have it.
	Dir string
	// User is "name", "uid", "name:group" or "uid:gid" of the guest. Default: root.
	User string

	// Stdin is read until it ends or the command has ended; a Read that blocks then is left to itself, and what it
	// returns is lost. Default: empty.
	Stdin io.Reader
	// Stdout and Stderr receive output while the command runs; a Write that blocks makes the command wait. Without one,
	// the output is in the Result.
	Stdout, Stderr io.Writer
	// MaxOutput is how many bytes of each stream without a writer are kept, half of the beginning and half of the end.
	// Default: DefaultMaxOutput; negative: all.
	MaxOutput int

	// Timeout ends the command and everything it has started. Default: none.
	Timeout time.Duration
	// Terminal gives the command a terminal of this size instead of three pipes; all its output is then Stdout.
	Terminal *Size
}

// Size is a terminal's size in characters.
type Size struct {
	Columns, Rows uint16
}

// Exec runs a line of shell source with /bin/sh and returns its result. A command that fails is a Result, not an error.
func (v *VM) Exec(ctx context.Context, line string) (*Result, error) {
	return v.Run(ctx, Command{Line: line})
}

// Run runs a command to its end. A command that cannot be started because it does not exist (ExitCode 127) or cannot be
// executed (126), that fails or runs out of time, is a Result, not an error.
//
// When ctx ends, the command and everything it has started is killed, and Run returns ctx's error. A guest that ends
// meanwhile is a *GuestError. With an error, the Result holds what the command had written, or is nil.
func (v *VM) Run(ctx context.Context, c Command) (*Result, error) {
	p, err := v.Spawn(ctx, c)
	if err != nil {
		return nil, err
	}
	return p.finish(ctx)
}

// Spawn starts a command. ctx covers the start only. Every Process must be waited for.
func (v *VM) Spawn(ctx context.Context, c Command) (*Process, error) {
	p := &Process{vm: v}
	if err := v.spawn(ctx, c, p); err != nil {
		return nil, err
	}
	return p, nil
}

// spawn starts a command as p.
func (v *VM) spawn(ctx context.Context, c Command, p *Process) error {
	args, err := c.arguments()
	if err != nil {
		return err
	}
	client, err := v.guest(ctx)
	if err != nil {
		return err
	}
	p.prepare(c)
	params := rpc.ExecParams{
		Args: args, Env: c.Env, Dir: cmp.Or(c.Dir, defaultDir), User: c.User, Stdin: c.Stdin, Stdout: p.out(), Stderr: p.err(),
	}
	if c.Terminal != nil {
		params.Terminal = &rpc.Size{Columns: c.Terminal.Columns, Rows: c.Terminal.Rows}
	}
	p.remote, err = client.Exec(ctx, params)
	return v.explain(err)
}

func (c Command) arguments() ([]string, error) {
	switch {
	case c.Line != "" && len(c.Args) > 0:
		return nil, errors.New("a command has either a Line or Args, not both")
	case c.Line == "" && (len(c.Args) == 0 || c.Args[0] == ""):
		return nil, errors.New("the command is empty")
	}
	for _, s := range append([]string{c.Line, c.Dir, c.User}, c.Args...) {
		if strings.ContainsRune(s, 0) {
			return nil, fmt.Errorf("the command contains a NUL byte: %.80q", s)
		}
	}
	if err := checkEnv(c.Env); err != nil {
		return nil, err
	}
	if c.Line != "" {
		return []string{"/bin/sh", "-c", c.Line}, nil
	}
	return c.Args, nil
}

// alive returns why the VM has ended, if it has.
func (v *VM) alive() error {
	select {
	case <-v.halted:
		return v.cause
	default:
		return nil
	}
}

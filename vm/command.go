package vm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"agentvm/internal/guest/guestrpc"
)

// defaultDir is where commands start by default, as in containers: the home of root is empty.
const defaultDir = "/"

// Command is what to run in a VM. Exactly one of Line and Args is given.
type Command struct {
	// Line is shell source, run by /bin/sh -c.
	Line string
	// Args is a program and its arguments, run without a shell. A name without a slash is searched in the PATH.
	Args []string

	// Env holds KEY=VALUE and wins over the VM's environment.
	Env []string
	// Dir is the working directory. Default: the image's, or /.
	Dir string
	// User is "name", "uid", "name:group" or "uid:gid" of the guest. Default: the image's, or root.
	User string

	// Stdin is read until it ends or the command has ended. A Read that blocks then is not waited for, and what it
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

	// Key, for Start, names the command for VM.Adopt after the VM was saved and restored; up to 64 bytes, and no other that runs in the VM
	// has it. It has no effect where CanAdopt is false. Default: none.
	Key string
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
	p, err := v.start(ctx, c)
	if err != nil {
		return nil, err
	}
	return p.finish(ctx)
}

// Start starts a command. ctx covers the start only. Every Process must be waited for.
func (v *VM) Start(ctx context.Context, c Command) (Process, error) {
	p, err := v.start(ctx, c)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (v *VM) start(ctx context.Context, c Command) (*process, error) {
	args, err := c.Arguments()
	if err != nil {
		return nil, err
	}
	client, err := v.guest(ctx)
	if err != nil {
		return nil, err
	}
	p := newProcess(v, c)
	p.remote, err = client.Exec(ctx, guestrpc.ExecParams{
		Args: args, Env: c.Env, Dir: v.workingDir(c.Dir), User: cmp.Or(c.User, v.image.User),
		Stdin: c.Stdin, Stdout: p.out(), Stderr: p.err(), Terminal: (*guestrpc.Size)(c.Terminal), Key: c.Key,
	})
	if err = p.started(err); err != nil {
		return nil, v.explain(err)
	}
	return p, nil
}

// Adopt continues with a command that ran with this Key when the VM was saved, and that RestoreOptions.Adopt has named. received is how many
// bytes of its output, of both streams together, had been written when the VM was saved, or later: what follows goes to Stdout and
// Stderr of c, and nothing is lost or doubled. Stdin is what follows of its input, if it was started with some; nil ends it. Of the rest of c,
// Timeout counts from now. When there is no such command errors.Is(err, syscall.ENOENT) holds.
func (v *VM) Adopt(ctx context.Context, received uint64, c Command) (Process, error) {
	client, err := v.guest(ctx)
	if err != nil {
		return nil, err
	}
	p := newProcess(v, c)
	p.remote, err = client.Adopt(ctx, c.Key, received, c.Stdin, p.out(), p.err())
	if err = p.started(err); err != nil {
		return nil, v.explain(err)
	}
	return p, nil
}

// CanAdopt reports whether Command.Key is obeyed: not by a VM that continues from a snapshot of an earlier version.
func (v *VM) CanAdopt() bool { return v.guestInfo().Flags&guestrpc.AdoptPrograms != 0 }

// maxArgument is how many bytes one argument can have in Linux (MAX_ARG_STRLEN), without the ending NUL.
const maxArgument = 128<<10 - 1

// shellArguments has the shell run a line. A line that is too long for one argument is split into several, which the shell joins.
func shellArguments(line string) []string {
	if len(line) <= maxArgument {
		return []string{"/bin/sh", "-c", line}
	}
	args := []string{"/bin/sh", "-c", `IFS=; set -- "$*"; unset IFS; eval "set --
$1"`, "/bin/sh"}
	for len(line) > maxArgument {
		args, line = append(args, line[:maxArgument]), line[maxArgument:]
	}
	return append(args, line)
}

// Arguments returns the program and its arguments that the guest executes, or what is wrong with c.
func (c Command) Arguments() ([]string, error) {
	switch {
	case c.Line != "" && len(c.Args) > 0:
		return nil, errors.New("a command has either a Line or Args, not both")
	case c.Line == "" && (len(c.Args) == 0 || c.Args[0] == ""):
		return nil, errors.New("the command is empty")
	}
	if len(c.Key) > 64 {
		return nil, fmt.Errorf("the command's key has %d bytes: at most 64", len(c.Key))
	}
	for _, s := range append([]string{c.Line, c.Dir, c.User, c.Key}, c.Args...) {
		if strings.ContainsRune(s, 0) {
			return nil, fmt.Errorf("the command contains a NUL byte: %.80q", s)
		}
	}
	if err := checkEnv(c.Env); err != nil {
		return nil, err
	}
	if c.Line != "" {
		return shellArguments(c.Line), nil
	}
	return c.Args, nil
}

// alive returns why the VM has ended, if it has.
func (v *VM) alive() error {
	select {
	case <-v.halted:
		return v.cause
	case <-v.stuck:
		return v.stuckErr
	default:
		return nil
	}
}

// Truncation records that output exceeded Command.MaxOutput. The zero value says that nothing is missing.
type Truncation struct {
	// Offset is where in the kept output the gap is: before it is the beginning, after it the end.
	Offset int `json:"offset"`
	// Dropped is how many bytes are missing there.
	Dropped int64 `json:"dropped"`
}

// Result is how a command ended and what it wrote.
type Result struct {
	// Stdout and Stderr are what the command wrote to streams that had no writer, byte for byte; both streams are
	// separate unless the command had a terminal.
	Stdout, Stderr []byte
	// StdoutTruncated and StderrTruncated say what is missing when the command wrote more than Command.MaxOutput.
	StdoutTruncated, StderrTruncated Truncation
	// ExitCode is 0 to 255; 126 and 127 when the command could not be executed or found, 128+Signal after a signal.
	ExitCode int
	// Signal is the Linux number of the signal that ended the command, or 0.
	Signal int
	// TimedOut says that the command was ended because its Timeout had passed.
	TimedOut bool
	// ShellEnded says that the Shell which ran the command is gone, see Shell.Restart.
	ShellEnded bool
	// Duration is the time from the request to the end, on the host.
	Duration time.Duration
}

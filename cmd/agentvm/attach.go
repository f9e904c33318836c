package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"agentvm/client"
	"agentvm/internal/settings"
	"agentvm/vm"
)

const attachLong = `Opens a lasting shell in a VM that agentvm start has started, or comes back to it. The shell runs on when the terminal closes, or when you
leave with Ctrl-P Ctrl-Q, or with ~. at the start of a line. exit ends it. Several terminals can be attached: they all see the same, and the
last one sets its size. Coming back shows the end of its output first. While the shell runs, the VM is in use (--idle-timeout).

agentvm shell -n NAME opens a shell that does not last; so does attach when standard input or output is not a terminal. To see the output of a command that
runs in the VM, use agentvm job attach.`

func (c *cli) attachCommand() *cobra.Command {
	var f vmFlags
	var user, which string
	command := &cobra.Command{
		Use: "attach [flags] NAME", Short: "Open a shell that lasts in a running VM, or come back to it", Long: attachLong,
		Example: "  agentvm start dev && agentvm attach dev\n  agentvm attach --session build dev", Args: counted(1, 1), ValidArgsFunction: completeRunning(1),
	}
	command.Flags().StringVarP(&which, "session", "s", "main", "the shell of this `NAME`: a VM can have several")
	command.Flags().StringArrayVarP(&f.env, "env", "e", nil, "set KEY=VALUE in a new shell, or pass on the value that KEY has here (may be repeated)")
	command.Flags().StringVarP(&user, "user", "u", "", "the user of a new shell in the VM (default root)")
	return runs(command, func(ctx context.Context, args []string) error {
		if err := client.CheckName(which); err != nil {
			return fmt.Errorf("--session: %w", err)
		}
		if !isTerminal(c.stdin) || !isTerminal(c.stdout) {
			return c.interactive(ctx, args[0], &f, user)
		}
		env, err := settings.Environment(f.env)
		if err != nil {
			return err
		}
		return c.attachSession(ctx, args[0], which, vm.Command{Args: []string{"/bin/sh", "-l"}, User: user, Env: env})
	})
}

const (
	// sessionOutput is how much of a lasting shell's output its VM's daemon keeps, and pastSize how much of its end whoever comes back sees.
	sessionOutput = 1 << 20
	pastSize      = 16 << 10
)

// errLeft is why an attachment has ended whose shell runs on.
var errLeft = errors.New("left")

func (c *cli) attachSession(ctx context.Context, name, which string, command vm.Command) error {
	s := newSession(shellInterruptWindow) // with no command to pass them on to, signals end only this attachment
	ctx = s.begin(ctx)
	defer s.end()
	var result *vm.Result
	err := withVM(ctx, name, func(v *client.VM) error {
		defer c.printPaused(ctx, v)()
		size := vm.Size{Columns: 80, Rows: 24}
		if now, ok := terminalSize(c.stdout); ok {
			size = now
		}
		command.Terminal = &size
		j, err := joinSession(ctx, v, which, command)
		if err != nil {
			return err
		}
		defer j.Close()
		if result, err = c.attachTo(ctx, j, size, s); err == nil && result.Signal != 0 {
			c.printEnd(ctx, v)
		}
		return err
	})
	err = s.explain(err)
	switch {
	case errors.Is(err, errLeft):
		fmt.Fprintf(c.stderr, "\r\nagentvm: the shell runs on: agentvm attach %scomes back, agentvm job ls %s lists it\n", sessionArgs(which)+name+" ", name)
		return nil
	case err != nil:
		return err
	}
	return status(result)
}

// sessionArgs are the arguments that name a session, and a space.
func sessionArgs(which string) string {
	if which == "main" {
		return ""
	}
	return "--session " + which + " "
}

// joinSession returns the job of a lasting shell, which is started unless it runs.
func joinSession(ctx context.Context, v *client.VM, which string, command vm.Command) (vm.Job, error) {
	label := "session " + which
	running := func() (id string, err error) {
		list, err := v.Jobs(ctx)
		for _, i := range list {
			if i.Label == label && i.Terminal && i.Durable && i.Ended.IsZero() {
				return i.ID, nil // the oldest
			}
		}
		return "", err
	}
	id, err := running()
	if err != nil {
		return nil, err
	}
	if id == "" {
		j, err := v.StartJob(ctx, command, vm.JobOptions{Label: label, Head: sessionOutput / 2, Tail: sessionOutput / 2})
		if err != nil {
			return nil, err
		}
		if id, err = running(); err != nil || id == j.ID() || id == "" {
			return j, err
		}
		_ = errors.Join(j.Kill(ctx), j.Close()) // another terminal was faster
	}
	return v.Job(ctx, id)
}

// attachTo shows a job on the terminal and passes what is typed on, until the job ends or its user leaves.
func (c *cli) attachTo(ctx context.Context, j vm.Job, size vm.Size, s *session) (*vm.Result, error) {
	state, err := term.MakeRaw(int(c.stdin.Fd()))
	if err != nil {
		return nil, fmt.Errorf("prepare the terminal: %w", err)
	}
	defer func() { _ = term.Restore(int(c.stdin.Fd()), state) }()
	from, err := c.showPast(ctx, j)
	if err != nil {
		return nil, err
	}
	if from > 0 { // a program on the whole screen draws it again when its size changes
		_ = j.Resize(ctx, vm.Size{Columns: size.Columns, Rows: max(size.Rows, 2) - 1})
	}
	_ = j.Resize(ctx, size)
	defer watchSize(c.stdout, func(size vm.Size) { _ = j.Resize(ctx, size) })()
	leave := func() { s.fail(errLeft) }
	typed := &detachReader{from: &escapeReader{from: c.stdin, session: s, leave: leave, lineStart: true}, leave: leave}
	defer c.lines.end()
	shown := output{c.stdout, s, c.lines}
	return client.Follow(ctx, j, vm.Command{Stdin: typed, Stdout: shown, Stderr: shown}, from).Wait(ctx)
}

// showPast prints the end of what a job has written, and returns where that ends. It prints text and styles alone: a terminal would answer a
// question of before, as where the cursor is, and the shell would take the answer for typed.
func (c *cli) showPast(ctx context.Context, j vm.Job) (vm.Cursor, error) {
	info, err := j.Info(ctx)
	if err != nil {
		return 0, err
	}
	end := vm.Cursor(info.OutputBytes)
	next := end - min(end, pastSize)
	var text []byte
	for cut := next > 0; next < end; {
		o, err := j.Output(ctx, next, int(end-next))
		if err != nil || o.End != nil || o.Next == next {
			return next, err // the end comes again when the job is followed
		}
		for _, chunk := range o.Chunks {
			text = append(text, chunk.Data...)
		}
		next = o.Next
		if i := bytes.IndexByte(text, '\n'); cut && i >= 0 {
			text, cut = text[i+1:], false // not the rest of a line or a sequence
		}
	}
	_, err = c.stdout.Write(harmless(text))
	return next, err
}

// harmless returns a terminal's output with no sequences except those of styles, and no control characters except those of lines.
func harmless(text []byte) (out []byte) {
	var s sequence
	begin := 0
	for i, b := range text {
		before := s.state
		what := s.next(b)
		switch {
		case what == partOfSequence && before == outsideSequence:
			begin = i
		case what == typedSequence && before == inControl && b == 'm':
			out = append(out, text[begin:i+1]...)
		case what == plainByte && (b >= ' ' && b != 0x7f || b == '\n' || b == '\r' || b == '\t' || b == '\b'):
			out = append(out, b)
		}
	}
	return append(out, "\x1b[m"...)
}

const (
	ctrlP = 0x10
	ctrlQ = 0x11
)

// detachReader reads what is typed up to Ctrl-P Ctrl-Q, which leaves, as the end of the terminal does. A Ctrl-P is passed on with the key after
// it, as docker does.
type detachReader struct {
	from  io.Reader
	leave func()
	held  bool // a Ctrl-P
	left  bool
}

// Read returns what was typed. After it has called leave it returns an error.
func (r *detachReader) Read(p []byte) (int, error) {
	if len(p) < 2 {
		return 0, io.ErrShortBuffer
	}
	for !r.left {
		at := 0
		if r.held {
			p[0], at, r.held = ctrlP, 1, false
		}
		n, err := r.from.Read(p[at:])
		typed := p[:at+n]
		if i := bytes.Index(typed, []byte{ctrlP, ctrlQ}); i >= 0 || err != nil {
			r.left = true
			if i > 0 { // what was typed before is for the shell
				return i, nil
			}
			break
		}
		if r.held = len(typed) > 0 && typed[len(typed)-1] == ctrlP; r.held {
			typed = typed[:len(typed)-1]
		}
		if len(typed) > 0 {
			return len(typed), nil
		}
	}
	r.leave()
	return 0, io.EOF
}

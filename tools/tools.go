// Package tools implements the tools that models are trained to use, with handlers that work in a VM: Anthropic's bash (bash_20250124) and text editor
// (text_editor_20250728), and OpenAI's shell, exec_command and write_stdin. Inputs and results have the members that those models write and expect; the
// texts are our own.
//
// Tools.Call takes a call as a model's API delivers it. The handlers can be called by themselves, too.
package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"agentvm/client"
)

// Names of the tools.
const (
	BashName        = "bash"
	EditorName      = "str_replace_based_edit_tool"
	ShellName       = "shell"
	ExecCommandName = "exec_command"
	WriteStdinName  = "write_stdin"
)

// Options say how the tools run commands. The zero value is the image's user and directory.
type Options struct {
	Dir  string   // where commands start that name no directory, and where the session of bash does
	User string   // as vm.Command.User
	Env  []string // KEY=VALUE, in addition to the VM's
	// Timeout is how long bash and shell wait for a command before they kill it, when the call does not say. Default: 2 minutes.
	Timeout time.Duration
	// MaxOutput is how many bytes of a command's output, or of a file, a result of bash, shell and the text editor has at most, when the call does not
	// say. Default: 30,000.
	MaxOutput int
}

const (
	defaultTimeout   = 2 * time.Minute
	defaultMaxOutput = 30_000
)

// Result is what a model gets of a call.
type Result struct {
	Text    string `json:"content"`
	IsError bool   `json:"is_error,omitempty"`
}

func mistake(format string, args ...any) Result { return Result{fmt.Sprintf(format, args...), true} }

// Tools has all the tools for a VM, one conversation's. Calls may be concurrent.
type Tools struct {
	Bash   *Bash
	Editor *Editor
	Shell  *Shell
	Exec   *Exec
}

// New makes tools for a VM, which stays the caller's. Close them before it.
func New(v client.AnyVM, o Options) *Tools {
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout
	}
	if o.MaxOutput <= 0 {
		o.MaxOutput = defaultMaxOutput
	}
	return &Tools{Bash: newBash(v, o), Editor: &Editor{v, o}, Shell: &Shell{v, o}, Exec: newExec(v, o)}
}

// Close ends the session of bash, and kills what exec_command has left running.
func (t *Tools) Close() error { return errors.Join(t.Bash.Close(), t.Exec.Close()) }

// Call makes a call of the tool of that name. What the model can do something about is a Result; the error is ctx's.
func (t *Tools) Call(ctx context.Context, name string, input json.RawMessage) (Result, error) {
	r, err := Result{}, error(nil)
	switch name {
	case BashName:
		r, err = handle(ctx, input, t.Bash.Call)
	case EditorName:
		r, err = handle(ctx, input, t.Editor.Call)
	case ShellName:
		r, err = handle(ctx, input, func(ctx context.Context, in ShellAction) (Result, error) {
			out, err := t.Shell.Run(ctx, in)
			if err != nil {
				return Result{}, err
			}
			text, err := json.Marshal(out)
			return Result{Text: string(text)}, err
		})
	case ExecCommandName:
		r, err = handle(ctx, input, func(ctx context.Context, in ExecCommandInput) (Result, error) {
			return execText(t.Exec.Command(ctx, in))
		})
	case WriteStdinName:
		r, err = handle(ctx, input, func(ctx context.Context, in WriteStdinInput) (Result, error) {
			return execText(t.Exec.WriteStdin(ctx, in))
		})
	default:
		return mistake("there is no tool %q", name), nil
	}
	if err != nil && ctx.Err() == nil {
		r, err = mistake("%v", err), nil
	}
	return r, err
}

func handle[In any](ctx context.Context, input json.RawMessage, do func(context.Context, In) (Result, error)) (Result, error) {
	var in In
	if err := json.Unmarshal(input, &in); err != nil {
		return mistake("the input is not what the tool takes: %v", err), nil
	}
	return do(ctx, in)
}

// shorten leaves out the middle of a text that has more than limit bytes, or of which more bytes are missing there than it has.
func shorten(text string, missing, limit int) string {
	if missing == 0 && len(text) <= limit {
		return strings.ToValidUTF8(text, "\uFFFD")
	}
	head := min(limit, len(text)) / 2
	tail := len(text) - head
	for head > 0 && head < len(text) && !utf8.RuneStart(text[head]) {
		head--
	}
	for tail < len(text) && !utf8.RuneStart(text[tail]) {
		tail++
	}
	return strings.ToValidUTF8(text[:head]+leftOut(missing+tail-head)+text[tail:], "\uFFFD")
}

func leftOut(n int) string { return fmt.Sprintf("\n[... %d bytes left out ...]\n", n) }

// lines returns a text that another line can follow.
func lines(text string) string {
	if text == "" || strings.HasSuffix(text, "\n") {
		return text
	}
	return text + "\n"
}

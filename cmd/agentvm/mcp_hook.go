package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/vm"
)

const mcpHookLong = `Serves as a PreToolUse hook of Claude Code, and sends the commands of its Bash tool to the VM of agentvm mcp with the same flags.
agentvm mcp install claude-code --hook configures both.

It reads the call as JSON from standard input, and answers with JSON: with a command that runs agentvm mcp hook with the flags and, after --, the
agent's command; or with a refusal, for a tool that would run commands on this host (Monitor, PowerShell). Other tools get no answer. What the agent runs
needs the user's consent only where the VM can change files of this host: in a mount that is neither :ro nor :cow. When the hook itself fails it exits
with 2, and Claude Code does not run the call.

With a command after -- it runs that with /bin/sh -c in the VM, in the mounted directory that corresponds to the current one, and exits with the
command's exit code, or with 125 when agentvm itself fails. It starts the VM when that does not run.`

const mcpHookExample = `  agentvm mcp install claude-code --hook -- --mount .:/work:cow
  agentvm mcp hook --mount .:/work:cow <call.json
  agentvm mcp hook --mount .:/work:cow -- "make test"`

// hookBlocks is the exit code with which Claude Code does not make the call; with others it does.
const hookBlocks = 2

// maxHookCall bounds what is read of a call, in bytes. A command can have no more than 128 KiB on Linux.
const maxHookCall = 4 << 20

// mcpHookFlags are the flags of mcp hook.
type mcpHookFlags struct {
	mcpFlags
	project string
	yes     bool
	dir     string // where the hook was called
}

func (c *cli) mcpHookCommand() *cobra.Command {
	var f mcpHookFlags
	command := &cobra.Command{
		Use: "hook [flags] [-- COMMAND]", Short: "Send the commands of Claude Code's Bash tool to the VM", Long: mcpHookLong, Example: mcpHookExample,
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash < 0 && len(args) > 0 || dash >= 0 && (dash > 0 || len(args) != 1 || args[0] == "") {
				return fmt.Errorf("%q: want flags alone, or one command behind --", args)
			}
			return nil
		},
	}
	f.register(command)
	command.Flags().StringVar(&f.project, "project", "", "use relative paths and the VM of this `DIRECTORY` (default: CLAUDE_PROJECT_DIR, or the current one)")
	command.Flags().BoolVarP(&f.yes, "yes", "y", false, "let commands run without the user's consent also where they can change files of this host")
	run := func(ctx context.Context, args []string) error {
		err := f.begin(command)
		if err == nil && len(args) == 0 {
			return c.hook(&f)
		}
		if err == nil {
			err = c.runHooked(ctx, &f, args[0])
		}
		var status exitStatus
		if len(args) > 0 && err != nil && !errors.As(err, &status) {
			return failure{err, exitOwnFailure}
		}
		return err
	}
	command.PreRunE = nil // begin does it, whose failures have an exit code of their own
	return withExitCode(command, hookBlocks, run)
}

// begin changes to the project's directory, whose VM and relative paths are meant.
func (f *mcpHookFlags) begin(command *cobra.Command) (err error) {
	if f.http != "" || f.token != "" {
		return errors.New("--http and --token-file are for agentvm mcp: leave them out")
	}
	if f.dir, err = os.Getwd(); err != nil {
		return err
	}
	if f.project == "" {
		f.project = os.Getenv("CLAUDE_PROJECT_DIR")
	}
	if f.project == "" {
		f.project = f.dir
	}
	if f.project, err = filepath.Abs(f.project); err != nil {
		return err
	}
	if err := os.Chdir(f.project); err != nil {
		return fmt.Errorf("--project: %w", err)
	}
	return f.prepare(command, nil)
}

// hookCall is what Claude Code writes before it uses a tool. Source: code.claude.com/docs/en/hooks.
type hookCall struct {
	Event string                     `json:"hook_event_name"`
	Tool  string                     `json:"tool_name"`
	Input map[string]json.RawMessage `json:"tool_input"`
}

// hookAnswer is what a PreToolUse hook answers.
type hookAnswer struct {
	Output hookDecision `json:"hookSpecificOutput"`
}

type hookDecision struct {
	Event    string                     `json:"hookEventName"`
	Decision string                     `json:"permissionDecision"` // allow, ask or deny
	Reason   string                     `json:"permissionDecisionReason"`
	Input    map[string]json.RawMessage `json:"updatedInput,omitempty"` // takes the place of the whole tool_input
}

// hook answers a call. It starts no VM: Claude Code runs the call when a hook takes too long.
func (c *cli) hook(f *mcpHookFlags) error {
	text, err := io.ReadAll(io.LimitReader(c.stdin, maxHookCall+1))
	if err != nil {
		return err
	}
	if len(text) > maxHookCall {
		return fmt.Errorf("the call on standard input has more than %d bytes", maxHookCall)
	}
	var call hookCall
	if err := json.Unmarshal(text, &call); err != nil {
		return fmt.Errorf("standard input is no call of a hook: %w", err)
	}
	if call.Event != preToolUse {
		return fmt.Errorf("the hook was called for %q: configure it for %s", call.Event, preToolUse)
	}
	d := hookDecision{Event: preToolUse, Decision: "deny"}
	var command string
	switch call.Tool {
	case "Bash":
		if err := json.Unmarshal(call.Input["command"], &command); err != nil {
			return fmt.Errorf("the call of Bash has no command: %w", err)
		}
	case "Monitor", "PowerShell":
		d.Reason = call.Tool + " runs commands on the user's computer, which are to run in the VM: use Bash, with run_in_background for what takes long"
		return c.printHook(d)
	case "":
		return errors.New("the call on standard input names no tool")
	default:
		return nil
	}
	if strings.TrimSpace(command) == "" || strings.ContainsRune(command, 0) {
		d.Reason = "the command is empty, or has a NUL"
		return c.printHook(d)
	}
	_, config, err := f.serving()
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	var b bytes.Buffer
	for _, arg := range append([]string{program}, c.args...) {
		b.WriteString(quoteShell(arg) + " ")
	}
	fmt.Fprintf(&b, "--project %s -- %s", quoteShell(f.project), quoteShell(command))
	rewritten, err := json.Marshal(b.String())
	if err != nil {
		return err
	}
	d.Decision, d.Reason, d.Input = "allow", fmt.Sprintf("runs in the VM %s, not on the user's computer", f.name), call.Input
	d.Input["command"] = rewritten
	if changesHost(config) {
		d.Reason += ", but can change files of the user's computer in a mount"
		if !f.yes {
			d.Decision = "ask"
		}
	}
	return c.printHook(d)
}

const preToolUse = "PreToolUse"

func (c *cli) printHook(d hookDecision) error {
	encoder := json.NewEncoder(c.stdout)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(hookAnswer{d})
}

// changesHost says whether a VM can change files of the host.
func changesHost(config client.Config) bool {
	for _, m := range config.Mounts {
		if !m.ReadOnly && !m.CopyOnWrite {
			return true
		}
	}
	return false
}

// quoteShell returns a word of POSIX shell source.
func quoteShell(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:,=@") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// runHooked runs what the agent gave to its Bash tool, in the VM.
func (c *cli) runHooked(ctx context.Context, f *mcpHookFlags, line string) error {
	s := newSession(execInterruptWindow)
	ctx = s.begin(ctx)
	defer s.end()
	store, config, err := f.serving()
	if err != nil {
		return err
	}
	v, err := (&mcpVMs{c, store, f.name, config}).open(ctx, f.name, func(string) {})
	if err != nil {
		return s.explain(err)
	}
	defer v.Close()
	command := vm.Command{Line: line, Dir: guestDir(config, f.dir), Stdout: io.Writer(c.stdout), Stderr: io.Writer(c.stderr)}
	if !isNull(c.stdin) {
		command.Stdin = c.stdin
	}
	began := time.Now()
	result, err := c.runIn(ctx, c.startIn(v), command, false, s)
	if err != nil {
		return adviseEnded(f.name, err)
	}
	c.printDenials(&f.vmFlags, deniedSince(ctx, v, began, ""))
	return status(result)
}

// guestDir is where a directory of the host is in the VM: in the last mount that has it, or else where commands run by default.
func guestDir(config client.Config, dir string) (guest string) {
	for i, m := range config.Mounts {
		if i == 0 {
			guest = m.GuestPath
		}
		if rest, err := filepath.Rel(realPath(m.HostPath), realPath(dir)); err == nil && filepath.IsLocal(rest) {
			guest = strings.TrimSuffix(m.GuestPath+"/"+filepath.ToSlash(rest), "/.")
		}
	}
	return guest
}

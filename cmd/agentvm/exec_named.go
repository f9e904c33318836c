package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"agentvm/daemon"
	"agentvm/egress"
	"agentvm/rpc"
	"agentvm/vm"
)

// namedVM is a VM that a daemon keeps, as a place to run commands.
type namedVM struct {
	*daemon.Client
	env []string
	out io.Writer // gets what there is to say
}

// spawn starts a command that ends with this client.
func (v namedVM) spawn(ctx context.Context, command vm.Command) (process, error) {
	job, err := v.start(ctx, command, rpc.JobOptions{Input: command.Stdin != nil, Timeout: command.Timeout})
	if err != nil {
		return nil, err
	}
	return newNamedProcess(v.Name(), job, command, 0), nil
}

func (v namedVM) start(ctx context.Context, command vm.Command, o rpc.JobOptions) (*rpc.JobClient, error) {
	params := rpc.ExecParams{Args: command.Args, Env: v.env, Dir: command.Dir, User: command.User}
	if command.Line != "" {
		params.Args = []string{"/bin/sh", "-c", command.Line}
	}
	if command.Terminal != nil {
		params.Terminal = &rpc.Size{Columns: command.Terminal.Columns, Rows: command.Terminal.Rows}
	}
	defer v.tellPaused(ctx)()
	job, err := v.StartJob(ctx, params, nil, o)
	return job, ended(v.Name(), err)
}

// pausedTime is how long a start may take before it is asked what it waits for.
const pausedTime = time.Second

// tellPaused says after a while that the VM is paused, unless the function that it returns is called before.
func (v namedVM) tellPaused(ctx context.Context) (stop func()) {
	timer := time.AfterFunc(pausedTime, func() {
		info, err := v.Info(ctx)
		if err == nil && info.State == rpc.DaemonPaused {
			fmt.Fprintf(v.out, "agentvm: %s is paused: the command waits until agentvm resume %s\n", v.Name(), v.Name())
		}
	})
	return func() { timer.Stop() }
}

// runNamed is run in a named VM. The denials are those of the time while the command ran, whoever asked.
func (c *cli) runNamed(ctx context.Context, name string, env []string, command vm.Command, terminal bool, p patience) (*vm.Result, denials, error) {
	s := newSession(p)
	ctx = s.begin(ctx)
	defer s.end()
	env, err := environment(env)
	if err != nil {
		return nil, denials{}, err
	}
	client, err := connect(ctx, name)
	if err != nil {
		return nil, denials{}, s.explain(err)
	}
	defer client.Close() // which ends the command, if it still runs
	began := time.Now()
	result, err := c.runIn(ctx, namedVM{client, env, c.stderr}.spawn, command, terminal, s)
	if err != nil {
		return result, denials{}, err
	}
	return result, deniedSince(ctx, client, began), nil
}

// deniedSince asks what was denied. A VM without a network, or that has just ended, has nothing to tell.
func deniedSince(ctx context.Context, client *daemon.Client, began time.Time) (d denials) {
	events, err := askFor[[]egress.Event](ctx, client, "denials", nil)
	if err != nil {
		return d
	}
	for _, e := range events {
		if !e.Time.Before(began) {
			d.add(e)
		}
	}
	return d
}

// askFor puts a question of package daemon.
func askFor[T any](ctx context.Context, client *daemon.Client, name string, question any) (answer T, err error) {
	asked, err := json.Marshal(question)
	if err != nil {
		return answer, err
	}
	told, err := client.Ask(ctx, name, asked)
	if err != nil {
		return answer, ended(client.Name(), err)
	}
	if err := json.Unmarshal(told, &answer); err != nil {
		return answer, fmt.Errorf("answer of %s about %s: %w", client.Name(), name, err)
	}
	return answer, nil
}

// namedProcess is a job as a process.
type namedProcess struct {
	name    string
	job     daemon.Job
	command vm.Command
	from    uint64 // where its output is read from
	began   time.Time
	lost    uint64 // bytes of output that were no longer kept, after Wait

	stdout, stderr *keeper // what --json prints; nil where the command has a writer
}

func newNamedProcess(name string, job daemon.Job, command vm.Command, from uint64) *namedProcess {
	p := &namedProcess{name: name, job: job, command: command, from: from, began: time.Now()}
	if command.Stdout == nil {
		p.stdout = newKeeper(command.MaxOutput)
		p.command.Stdout = p.stdout
	}
	if command.Stderr == nil {
		p.stderr = newKeeper(command.MaxOutput)
		p.command.Stderr = p.stderr
	}
	return p
}

// Signal passes a signal on.
func (p *namedProcess) Signal(ctx context.Context, number int) error {
	return p.job.Signal(ctx, number)
}

// Resize passes the size of the terminal on.
func (p *namedProcess) Resize(ctx context.Context, size vm.Size) error {
	return p.job.Resize(ctx, rpc.Size{Columns: size.Columns, Rows: size.Rows})
}

// Wait passes the streams on until the job has ended.
func (p *namedProcess) Wait(ctx context.Context) (*vm.Result, error) {
	o, err := daemon.Follow(ctx, p.job, daemon.Streams{Stdin: p.command.Stdin, Stdout: p.command.Stdout, Stderr: p.command.Stderr}, p.from)
	p.lost = o.Lost
	if err != nil {
		return nil, ended(p.name, err)
	}
	r := &vm.Result{ExitCode: o.Exit.Code, Signal: o.Exit.Signal, TimedOut: o.TimedOut, Duration: time.Since(p.began)}
	if p.stdout != nil {
		r.Stdout, r.StdoutTruncated = p.stdout.take()
	}
	if p.stderr != nil {
		r.Stderr, r.StderrTruncated = p.stderr.take()
	}
	return r, nil
}

// detach starts a command that lives on after this process, and prints its id.
func (c *cli) detach(ctx context.Context, f *execFlags, command vm.Command, input bool) error {
	env, err := environment(f.env)
	if err != nil {
		return err
	}
	client, err := connect(ctx, f.name)
	if err != nil {
		return err
	}
	defer client.Close()
	if f.terminal {
		command.Terminal = &vm.Size{Columns: 80, Rows: 24}
	}
	o := rpc.JobOptions{Durable: true, Input: input || f.terminal, Timeout: command.Timeout, Label: f.label}
	job, err := namedVM{client, env, c.stderr}.start(ctx, command, o)
	if err != nil {
		return err
	}
	fmt.Fprintln(c.stdout, job.ID())
	return nil
}

// onlyFresh is the error of flags that make no sense for a VM that is there already.
func onlyFresh(command *cobra.Command, name string) error {
	for _, flag := range []string{
		"image", "memory", "mount", "net", "allow", "deny", "policy", "host-port", "publish", "dns", "pcap", "net-log", "mtu", "no-ipv6",
		"send-limit", "receive-limit", "network", "no-network", "ca-cert", "no-new-privileges", "socket", "cold",
		"listen-allow", "listen-deny", "connect-allow", "connect-deny", "loopback-exempt",
	} {
		if command.Flags().Changed(flag) {
			return fmt.Errorf("--%s is for a fresh machine: %s is as agentvm start has made it", flag, name)
		}
	}
	return nil
}

// checkNamed finds flags of exec that contradict each other.
func (f *execFlags) checkNamed(command *cobra.Command) error {
	switch {
	case f.name != "":
		if f.detach && f.json {
			return errors.New("--detach prints the job's id and no result: agentvm job ls --json tells about it")
		}
		return onlyFresh(command, f.name)
	case command.Flags().Changed("name"):
		return daemon.CheckName(f.name)
	case f.detach:
		return errors.New("--detach: a fresh machine ends with its command; name one that lives on, with -n NAME")
	case f.label != "":
		return errors.New("--label is for --detach")
	}
	return nil
}

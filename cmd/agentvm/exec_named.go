package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"agentvm/internal/daemon"
	"agentvm/internal/daemonrpc"
	"agentvm/internal/guestrpc"
	"agentvm/internal/headtail"
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
	job, err := v.start(ctx, command, daemonrpc.JobOptions{Input: command.Stdin != nil, Timeout: command.Timeout})
	if err != nil {
		return nil, err
	}
	return newNamedProcess(v.Name(), job, command, 0), nil
}

func (v namedVM) start(ctx context.Context, command vm.Command, o daemonrpc.JobOptions) (*daemonrpc.JobClient, error) {
	params := guestrpc.ExecParams{Args: command.Args, Env: v.env, Dir: command.Dir, User: command.User}
	if command.Line != "" {
		params.Args = []string{"/bin/sh", "-c", command.Line}
	}
	if command.Terminal != nil {
		params.Terminal = &guestrpc.Size{Columns: command.Terminal.Columns, Rows: command.Terminal.Rows}
	}
	defer v.printPaused(ctx)()
	job, err := v.StartJob(ctx, params, nil, o)
	return job, adviseEnded(v.Name(), err)
}

// pausedTime is how long a command may take to start before agentvm asks the VM whether it is paused.
const pausedTime = time.Second

// printPaused says after a while that the VM is paused, unless the function that it returns is called before.
func (v namedVM) printPaused(ctx context.Context) (stop func()) {
	timer := time.AfterFunc(pausedTime, func() {
		info, err := v.Info(ctx)
		if err == nil && info.State == daemonrpc.Paused {
			fmt.Fprintf(v.out, "agentvm: %s is paused: the command waits until agentvm resume %s\n", v.Name(), v.Name())
		}
	})
	return func() { timer.Stop() }
}

// runNamed does what run does in a named VM. The denials are those of the time while the command ran, whichever program caused them.
func (c *cli) runNamed(ctx context.Context, name string, env []string, command vm.Command, terminal bool, window interruptWindow) (*vm.Result, denials, error) {
	s := newSession(window)
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
	c.printFullDisk(ctx, client)
	result, err := c.runIn(ctx, namedVM{client, env, c.stderr}.spawn, command, terminal, s)
	if err == nil && result.Signal != 0 && !result.TimedOut {
		c.printEnd(ctx, client)
	}
	if ctx.Err() == nil && (err != nil || result.ExitCode != 0 || time.Since(began) >= longTime) {
		c.printCrowd(ctx, client)
	}
	if err != nil {
		return result, denials{}, err
	}
	return result, deniedSince(ctx, client, began), nil
}

// printEnd says why a command was ended by a signal that agentvm has not sent, if the VM's end was the reason.
func (c *cli) printEnd(ctx context.Context, client *daemon.Client) {
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	info, err := client.Info(ctx)
	what := ""
	switch {
	case err != nil && ctx.Err() == nil:
		what = "has ended"
	case err != nil:
	case info.State == daemonrpc.Stopping:
		what = "is being stopped"
	case info.State == daemonrpc.Starting:
		what = "is starting again, for its guest has restarted itself"
	case info.State == daemonrpc.Failed:
		what = "has ended by itself"
	case info.State == daemonrpc.Running:
		if _, err := client.Stats(ctx); errors.Is(err, syscall.ESHUTDOWN) {
			what = "is restarting or being switched off by a program in it"
		}
	}
	if what != "" {
		fmt.Fprintf(c.stderr, "agentvm: %s %s, which has ended the command\n", client.Name(), what)
	}
}

// endTime is how long a VM may take to say whether it is ending.
const endTime = time.Second

const (
	// longTime is how long a command must have run for one more question to the guest to be no noticeable delay.
	longTime = time.Second
	// crowdedProcesses is a number of programs and threads that is larger than a user is likely to have meant.
	crowdedProcesses = 512
)

// printCrowd says so when very many programs run in a VM: a command that has failed or took long may have had no room beside them.
func (c *cli) printCrowd(ctx context.Context, client *daemon.Client) {
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	if stats, err := client.Stats(ctx); err == nil && stats.Processes >= crowdedProcesses {
		fmt.Fprintf(c.stderr, "agentvm: %s: %d programs and threads are in the VM: if they were not meant, agentvm restart %s ends them all\n", client.Name(), stats.Processes, client.Name())
	}
}

// printFullDisk says so when a VM waits for room on the host's disk.
func (c *cli) printFullDisk(ctx context.Context, client *daemon.Client) {
	if since, path, err := client.DiskWaits(ctx); err == nil && !since.IsZero() {
		fmt.Fprintf(c.stderr, "agentvm: %s: the host's disk is full: what the VM writes waits until there is room at %s\n", client.Name(), printable(path))
	}
}

// deniedSince asks what was denied. A VM without a network, or one that has just ended, reports nothing.
func deniedSince(ctx context.Context, client *daemon.Client, began time.Time) (d denials) {
	events, err := client.Denials(ctx)
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

// namedProcess makes a process of a daemon's job.
type namedProcess struct {
	name    string
	job     daemon.Job
	command vm.Command
	from    uint64 // where its output is read from
	began   time.Time
	lost    uint64 // bytes of output that were no longer kept, after Wait

	stdout, stderr *headtail.Buffer // what --json prints; nil where the command has a writer
}

func newNamedProcess(name string, job daemon.Job, command vm.Command, from uint64) *namedProcess {
	p := &namedProcess{name: name, job: job, command: command, from: from, began: time.Now()}
	if command.Stdout == nil {
		p.stdout = headtail.New(cmp.Or(command.MaxOutput, vm.DefaultMaxOutput))
		p.command.Stdout = p.stdout
	}
	if command.Stderr == nil {
		p.stderr = headtail.New(cmp.Or(command.MaxOutput, vm.DefaultMaxOutput))
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
	return p.job.Resize(ctx, guestrpc.Size{Columns: size.Columns, Rows: size.Rows})
}

// Wait passes the streams on until the job has ended.
func (p *namedProcess) Wait(ctx context.Context) (*vm.Result, error) {
	o, err := daemon.Follow(ctx, p.job, daemon.Streams{Stdin: p.command.Stdin, Stdout: p.command.Stdout, Stderr: p.command.Stderr}, p.from)
	p.lost = o.Lost
	if err != nil {
		return nil, adviseEnded(p.name, err)
	}
	r := &vm.Result{ExitCode: o.Exit.Code, Signal: o.Exit.Signal, TimedOut: o.TimedOut, Duration: time.Since(p.began)}
	if p.stdout != nil {
		kept, gap := p.stdout.Take()
		r.Stdout, r.StdoutTruncated = kept, vm.Truncation(gap)
	}
	if p.stderr != nil {
		kept, gap := p.stderr.Take()
		r.Stderr, r.StderrTruncated = kept, vm.Truncation(gap)
	}
	return r, nil
}

// detach starts a command that continues after this process has ended, and prints its ID.
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
	o := daemonrpc.JobOptions{Durable: true, Input: input || f.terminal, Timeout: command.Timeout, Label: f.label}
	job, err := namedVM{client, env, c.stderr}.start(ctx, command, o)
	if err != nil {
		return err
	}
	fmt.Fprintln(c.stdout, job.ID())
	return nil
}

// onlyFresh returns an error when a flag is given that makes no sense for a VM that exists already.
func onlyFresh(command *cobra.Command, name string) error {
	for _, flag := range []string{
		"image", "memory", "mount", "net", "allow", "deny", "policy", "host-port", "publish", "dns", "pcap", "net-log", "mtu", "no-ipv6",
		"send-limit", "receive-limit", "network", "no-network", "ca-cert", "no-new-privileges", "socket", "cold",
		"isolate", "listen-allow", "listen-deny", "connect-allow", "connect-deny", "loopback-exempt",
	} {
		if command.Flags().Changed(flag) {
			return fmt.Errorf("--%s is for a fresh VM: %s is as agentvm start has made it", flag, name)
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
		return errors.New("--detach: a fresh VM ends with its command; name one that lives on, with -n NAME")
	case f.label != "":
		return errors.New("--label is for --detach")
	}
	return nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/internal/settings"
	"agentvm/vm"
)

const execLong = `Boots a VM, runs a command in it and exits with the command's exit code. With -n NAME the command runs in
a VM that agentvm start has started; with -d as well it lives on there, and its id is printed (see agentvm job --help).

One argument is shell source for /bin/sh. Several arguments are a program and its arguments, run without
a shell. Flags come before the command.

Standard input is passed on. When standard input and output are a terminal, the command gets a terminal
too (see -t); otherwise its three streams are separate and binary-safe.

The network reaches every public address and nothing of the host or its private networks, unless --net, --allow,
--deny, --policy or --host-port say otherwise (see agentvm net --help). Afterwards one line on standard error says what
was denied.

Exit codes: the command's own, 126 when it cannot be executed, 127 when it is not found, 128+N after
signal N, 124 after --timeout, 125 when agentvm itself fails.

With --image FILE.wasm the command runs in a container that container2wasm has made a WASI module of; standard error is
then part of standard output (docs/guide/images.md).

With --isolate the VM has a process of its own, which can reach only what the VM was given of the host.

Ctrl-C interrupts the command; a second one within three seconds stops the VM, or, with -n, kills the command.`

const execExample = `  agentvm exec "ls -la | wc -l"
  agentvm exec -w /tmp -e NAME=value env
  agentvm exec -m ./project:/src:ro --timeout 30s "cd /src && make"
  tar c . | agentvm exec "tar x -C /tmp && ls /tmp"
  agentvm exec --allow '*.alpinelinux.org' "apk add curl"
  agentvm exec -p 8080:80 --timeout 5m "nc -lk -p 80 -e date"
  agentvm exec --json "uname -a"
  agentvm start dev && agentvm exec -n dev "apk add make"
  agentvm exec -d -n dev "make test"`

type execFlags struct {
	vmFlags
	name, label string
	detach      bool
	dir, user   string
	timeout     time.Duration
	interactive bool
	terminal    bool
	json        bool
	maxOutput   int
	isolate     bool
	command     *cobra.Command
}

func (c *cli) execCommand() *cobra.Command {
	var f execFlags
	command := &cobra.Command{
		Use:     "exec [flags] COMMAND [ARGS...]",
		Short:   "Run a command in a fresh VM, or in a running one",
		Long:    execLong,
		Example: execExample,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] == "" {
				return errors.New(`exec: no command given, as in agentvm exec "ls -la"`)
			}
			return nil
		},
	}
	nameFlag(command, &f.name, "run the command in the VM of this `NAME`, which agentvm start has started")
	flags := command.Flags()
	flags.BoolVarP(&f.detach, "detach", "d", false, "with -n: print the command's id and leave it running (see agentvm job)")
	flags.StringVar(&f.label, "label", "", "with -d: a `TEXT` for agentvm job ls to show")
	f.register(command)
	flags.SetInterspersed(false)
	flags.StringVarP(&f.dir, "workdir", "w", "", "working directory in the VM (default: /)")
	flags.StringVarP(&f.user, "user", "u", "", "user in the VM: name, uid, name:group or uid:gid (default root)")
	durationFlag(flags, &f.timeout, "timeout", "", 0, "end the command after this time, such as 90s or 5m, and exit with 124")
	flags.BoolVarP(&f.interactive, "interactive", "i", true, "pass standard input on; -i=false gives the command none")
	flags.BoolVarP(&f.terminal, "tty", "t", false, "give the command a terminal; -t=false never does (default: as standard input and output are)")
	flags.BoolVar(&f.json, "json", false, "print one JSON object with the output and how the command ended")
	flags.IntVar(&f.maxOutput, "max-output", vm.DefaultMaxOutput, "with --json: bytes kept of each stream, half beginning and half end; -1 for all")
	flags.BoolVar(&f.isolate, "isolate", false, "run the VM in a process of its own that confines itself, as agentvm start does (docs/security/hardening.md)")
	f.changes.register(flags)
	flags.StringArrayVar(&f.binds, "bind", nil, "give the VM a command that runs a program of this host, as `NAME=COMMAND`; see docs/guide/bind.md (may be repeated)")
	recordFlag(flags, &f.record)
	f.command = command
	return runs(command, func(ctx context.Context, args []string) error {
		if err := f.checkNamed(command); err != nil {
			return err
		}
		if f.changes.diff && f.json {
			return errors.New("--diff prints a patch, and --json one object: leave one of them out")
		}
		if f.isolate && len(f.binds) > 0 {
			return errors.New("--bind runs programs of this host, and --isolate is for a VM that can reach nothing of it: leave one of them out")
		}
		if f.isolate && f.record != "" {
			return errors.New("--record is for a VM of this process: leave --isolate out")
		}
		for _, name := range []string{"user", "workdir"} {
			if flag := flags.Lookup(name); flag.Changed && flag.Value.String() == "" {
				return fmt.Errorf("--%s is empty: leave it out for the default", name)
			}
		}
		if !flags.Changed("tty") {
			f.terminal = !f.json && !f.detach && isTerminal(c.stdin) && isTerminal(c.stdout)
		}
		if !flags.Changed("interactive") && f.detach {
			f.interactive = false
		}
		return c.exec(ctx, &f, args)
	})
}

func (c *cli) exec(ctx context.Context, f *execFlags, args []string) error {
	command := vm.Command{Args: args, Dir: f.dir, User: f.user, Timeout: f.timeout, MaxOutput: f.maxOutput}
	if len(args) == 1 {
		command.Line, command.Args = args[0], nil
	}
	if f.detach {
		env, err := settings.Environment(f.env)
		if err != nil {
			return err
		}
		command.Env = env
		id, err := c.detach(ctx, f.name, command, f.terminal, f.interactive, f.label)
		if err == nil {
			fmt.Fprintln(c.stdout, id)
		}
		return err
	}
	if f.interactive && !isNull(c.stdin) {
		command.Stdin = c.stdin
	}
	if !f.json {
		command.Stdout, command.Stderr = io.Writer(c.stdout), io.Writer(c.stderr)
	}
	where := c.namedOrFresh(f.name, &f.vmFlags)
	if f.isolate {
		where = c.isolated(f)
	}
	if image := f.flags.Lookup("image").Value.String(); f.name == "" && vm.IsModule(image) {
		where = c.module(f)
	}
	result, denied, err := c.runTarget(ctx, where, command, f.terminal, execInterruptWindow)
	err = adviseDir(f.dir, err)
	if f.json {
		return c.printResult(result, denied, err)
	}
	c.printDenials(&f.vmFlags, denied)
	if err != nil {
		return err
	}
	if result.ExitCode == exitNotFound && f.name == "" {
		c.hintName(args)
	}
	return status(result)
}

// exitNotFound is a shell's exit code for a program that does not exist.
const exitNotFound = 127

// hintName says so when the program that a fresh VM did not have has a VM's name: docker exec takes that first.
func (c *cli) hintName(args []string) {
	words := strings.Fields(args[0])
	store, err := vms()
	if err != nil || len(words) == 0 || client.CheckName(words[0]) != nil || store.Exists(words[0]) != nil {
		return
	}
	fmt.Fprintf(c.stderr, "agentvm: %s is a VM: agentvm exec -n %s runs a command in it\n", words[0], words[0])
}

// adviseDir names the flag to an error about the working directory.
func adviseDir(dir string, err error) error {
	if err != nil && dir != "" && strings.Contains(err.Error(), " "+dir+": ") {
		return fmt.Errorf("--workdir %q: %w", dir, err)
	}
	return err
}

// status returns the error that makes agentvm exit as the command did.
func status(r *vm.Result) error {
	switch {
	case r.TimedOut:
		return exitStatus(exitTimeout)
	case r.ExitCode != 0:
		return exitStatus(r.ExitCode)
	}
	return nil
}

// module is the computer that a WASI module is.
func (c *cli) module(f *execFlags) openTarget {
	return func(_ context.Context, s *session) (*target, error) {
		switch {
		case f.isolate:
			return nil, errors.New("--isolate is not for WASI modules: leave it out")
		case f.changes.diff:
			return nil, errors.New("--diff needs a copy-on-write mount, which WASI modules cannot have: leave it out")
		case f.record != "":
			return nil, errors.New("--record is not for WASI modules: leave it out")
		case f.terminal && f.command.Flags().Changed("tty"):
			return nil, errors.New("--tty: a command in a WASI module cannot have a terminal: leave it out")
		}
		config, err := f.config()
		if err != nil {
			return nil, err
		}
		watch, err := watchNetwork(&f.networkFlags, &config)
		if err != nil {
			return nil, err
		}
		config.Logger = c.log
		c.confineBeforeRun(&f.vmFlags, &config)
		run := func(ctx context.Context, command vm.Command) (*vm.Result, error) {
			defer c.lines.end()
			return vm.RunModule(ctx, config, c.watchOutput(command, s))
		}
		return &target{run: run, end: func(_ *vm.Result, err error) (denials, error) {
			denied := watch.denials()
			c.closeWatch(watch)
			return denied, err
		}}, nil
	}
}

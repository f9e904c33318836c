package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"agentvm/egress"
	"agentvm/vm"
)

const netLearnLong = `Runs a command in a fresh VM as exec does, with a network that lets every public address through, and prints
afterwards, on standard error, the smallest allowlist that would have let the same through: as flags, and as agentvm.toml.
Deny rules hold meanwhile, and so does everything that always holds: the host and private networks are out of reach, unless
--net open is given. The exit code is the command's.

With -n NAME it learns from the records of a VM that agentvm start has started, with --from from a file of --net-log; then it
prints the policy on standard output.

Connections are tied to the names that the VM looked up for them; one for which it looked up none is a rule for an address.
Every rule is for the ports and the protocol that were used. With --wildcards, several names below one become *.NAME, but
never below a suffix under which anyone can register a name.

A rule such as NAME:*/icmp is for a name that the VM looked up but never connected to.

While it learns, a VM can send its data to any public address: learn from commands that you trust.`

type learnFlags struct {
	execFlags
	from, output     string
	wildcards, write bool

	place *projectPlace // with --write
}

func (c *cli) netLearnCommand() *cobra.Command {
	var f learnFlags
	command := &cobra.Command{
		Use: "learn [flags] [--] COMMAND [ARGS...] | -n NAME | --from FILE", Short: "Print the smallest allowlist that lets a command pass",
		Long: netLearnLong,
		Example: "  agentvm net learn -m .:/src -- \"cd /src && pip install -r requirements.txt\"\n  agentvm net learn --write -- apk add make\n" +
			"  agentvm net learn -n dev --wildcards\n  agentvm net learn -o policy.toml -- make test && agentvm exec --policy policy.toml make test",
		Args: func(command *cobra.Command, args []string) error {
			return errors.Join(f.checkSource(args), f.checkLog(command))
		},
	}
	flags := command.Flags()
	nameFlag(command, &f.name, "learn from what the VM of this `NAME` has done, as far as it is kept")
	flags.StringVar(&f.from, "from", "", "learn from a `FILE` of --net-log")
	flags.BoolVar(&f.wildcards, "wildcards", false, "put *.NAME in the place of several names below one")
	flags.StringVarP(&f.output, "output", "o", "", "write the policy to a `FILE`, for --policy")
	flags.BoolVar(&f.write, "write", false, "add the rules to agentvm.toml of this directory or one above it, or make one")
	flags.BoolVar(&f.json, "json", false, "print the policy as one JSON object on standard output; what the command prints there goes to standard error")
	f.register(command)
	f.registerCommand(flags)
	flags.SetInterspersed(false)
	command.PreRunE = f.permissive(command, command.PreRunE)
	return runs(command, func(ctx context.Context, args []string) (err error) {
		if f.write {
			if f.place, err = openProjectPlace(); err != nil {
				return err
			}
			defer f.place.Close()
		}
		if f.name != "" || f.from != "" {
			return c.learnFromLog(ctx, &f)
		}
		return c.learnFromRun(ctx, &f, args)
	})
}

// registerCommand registers the flags of exec that are about the command.
func (f *learnFlags) registerCommand(flags *pflag.FlagSet) {
	flags.StringVarP(&f.dir, "workdir", "w", "", "working directory in the VM (default: /)")
	flags.StringVarP(&f.user, "user", "u", "", "user in the VM: name, uid, name:group or uid:gid (default root)")
	durationFlag(flags, &f.timeout, "timeout", "", 0, "end the command after this time, such as 90s or 5m, and exit with 124")
	flags.BoolVarP(&f.interactive, "interactive", "i", true, "pass standard input on; -i=false gives the command none")
	flags.BoolVarP(&f.terminal, "tty", "t", false, "give the command a terminal")
}

// checkSource checks that there is exactly one source of events.
func (f *learnFlags) checkSource(args []string) error {
	sources := 0
	for _, given := range []bool{len(args) > 0, f.name != "", f.from != ""} {
		if given {
			sources++
		}
	}
	switch {
	case sources == 0 || len(args) > 0 && args[0] == "":
		return errors.New(`net learn: name a command, as in agentvm net learn -- make test, or a VM with -n NAME, or a file with --from`)
	case sources > 1:
		return errors.New("net learn: a command, -n NAME and --from FILE exclude each other")
	}
	return nil
}

// checkLog refuses flags that have no effect where no command is run.
func (f *learnFlags) checkLog(command *cobra.Command) (err error) {
	if f.name == "" && f.from == "" {
		return nil
	}
	about := []string{"name", "from", "wildcards", "output", "write", "json", "quiet"}
	command.LocalFlags().VisitAll(func(flag *pflag.Flag) {
		if err == nil && flag.Changed && !slices.Contains(about, flag.Name) {
			err = fmt.Errorf("--%s is for a command that net learn runs: with -n and --from it looks at what has been", flag.Name)
		}
	})
	return err
}

// permissive lets every public address through, whatever the project's settings say, except for what they deny; with --net open
// on the command line private ones too.
func (f *learnFlags) permissive(command *cobra.Command, readProject func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(command *cobra.Command, args []string) error {
		mode := egress.Public
		if command.Flags().Changed("net") {
			mode = egress.Mode(f.mode)
		}
		switch {
		case mode != egress.Public && mode != egress.Open:
			return failure{fmt.Errorf("--net %s: learning is to let things through: want public or open", mode), exitOwnFailure}
		case slices.ContainsFunc(f.allowing(), func(list string) bool { return len(*f.rules[list]) > 0 }):
			return failure{fmt.Errorf("--%s: learning lets every public address through: leave it out", strings.Join(f.allowing(), ", --")), exitOwnFailure}
		case withoutNetwork(f.flags):
			return failure{errors.New("--no-network: without a network card there is nothing to learn"), exitOwnFailure}
		}
		if f.name != "" || f.from != "" {
			return nil
		}
		if err := readProject(command, args); err != nil {
			return err
		}
		f.mode, f.policyFile = string(mode), ""
		for _, list := range f.allowing() {
			*f.rules[list] = nil
		}
		return nil
	}
}

// learnFromRun runs the command and learns from what its VM does.
func (c *cli) learnFromRun(ctx context.Context, f *learnFlags, args []string) error {
	command := f.command(c, args)
	var learner egress.Learner
	watch := func(config *vm.Config) {
		if !f.write && f.output == "" { // files that are written afterwards
			c.confineBeforeRun(&f.vmFlags, config)
		}
		record := config.Network.Audit // one event at a time
		config.Network.Audit = func(e egress.Event) {
			learner.Add(e)
			record(e)
		}
	}
	result, denied, err := c.runTarget(ctx, c.fresh(&f.vmFlags, watch), command, f.terminal, execInterruptWindow)
	if result == nil {
		return err // nothing has run from which it could learn
	}
	l := learnResult{Learned: learner.Learned(egress.LearnOptions{Wildcards: f.wildcards}), denied: denied}
	reported := c.reportLearned(f, &l, c.stderr)
	if err != nil {
		return errors.Join(err, reported)
	}
	if ended := status(result); ended != nil {
		if reported != nil {
			fmt.Fprintln(c.stderr, "agentvm:", reported)
		}
		return ended // the command's code counts
	}
	return reported
}

func (f *learnFlags) command(c *cli, args []string) vm.Command {
	command := vm.Command{Args: args, Dir: f.dir, User: f.user, Timeout: f.timeout, Stdout: c.stdout, Stderr: c.stderr}
	if len(args) == 1 {
		command.Line, command.Args = args[0], nil
	}
	if f.json {
		command.Stdout = c.stderr
	}
	if f.interactive && !isNull(c.stdin) {
		command.Stdin = c.stdin
	}
	return command
}

// learnFromLog learns from what was recorded.
func (c *cli) learnFromLog(ctx context.Context, f *learnFlags) error {
	var learner egress.Learner
	var l learnResult
	events := 0
	add := func(e egress.Event) {
		events++
		learner.Add(e)
		l.denied.add(e)
	}
	var err error
	if f.name != "" {
		err = eventsOf(ctx, f.name, add)
	} else {
		err = eventsIn(ctx, f.from, add)
	}
	if err != nil {
		return err
	}
	if events == 0 {
		return fmt.Errorf("%s%s: there is no record of a network in it", f.name, f.from)
	}
	l.Learned = learner.Learned(egress.LearnOptions{Wildcards: f.wildcards})
	return c.reportLearned(f, &l, c.stdout)
}

// eventsIn gives the events of a log to use.
func eventsIn(ctx context.Context, path string, use func(egress.Event)) error {
	return readLines(ctx, path, nil, func(line []byte) error {
		if e, ok := parseEvent(line); ok {
			use(e)
		}
		return nil
	})
}

// eventsOf gives the events that are kept of a VM to use.
func eventsOf(ctx context.Context, name string, use func(egress.Event)) error {
	_, path, err := keptLog(name)
	if err != nil {
		return err
	}
	if err := eventsIn(ctx, path+".1", use); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return eventsIn(ctx, path, use)
}

// reportLearned prints what was learned, unless --quiet says that the files are enough, and writes those.
func (c *cli) reportLearned(f *learnFlags, l *learnResult, to io.Writer) error {
	var err error
	switch {
	case f.json:
		err = printJSON(c.stdout, l.json())
	case f.output == "" && !f.write || !f.quiet:
		err = l.print(to)
	}
	if f.output != "" {
		err = errors.Join(err, l.save(f.output))
	}
	if f.write {
		err = errors.Join(err, c.extendProject(f.place, l))
	}
	if line := l.denied.line(f.text("net-log") != ""); line != "" && !f.quiet {
		fmt.Fprintln(c.stderr, "agentvm:", line)
	}
	return err
}

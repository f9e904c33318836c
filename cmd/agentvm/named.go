package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/internal/daemon"
)

// vms returns the store of named VMs, which is beside that of the images.
func vms() (*client.Store, error) { return client.OpenStore(client.StoreOptions{Version: version}) }

// connect connects to a named VM. While the VM boots it succeeds; calls wait for the boot.
func connect(ctx context.Context, name string) (*client.VM, error) {
	store, err := vms()
	if err != nil {
		return nil, err
	}
	v, err := store.Open(ctx, name)
	return v, suggest(store, name, err)
}

// withVM calls do with a connection to a named VM.
func withVM(ctx context.Context, name string, do func(*client.VM) error) error {
	v, err := connect(ctx, name)
	if err != nil {
		return err
	}
	defer v.Close()
	return adviseEnded(name, do(v))
}

// suggest adds to the error about an unknown name what may have been meant.
func suggest(store *client.Store, name string, err error) error {
	if !errors.Is(err, client.ErrNotFound) {
		return err
	}
	if near := nearest(name, store.Names()); near != "" {
		return fmt.Errorf("%w: did you mean %s? (agentvm ps -a lists all)", err, near)
	}
	return fmt.Errorf("%w (agentvm start %s makes it, agentvm ps -a lists all)", err, name)
}

// nearest is the name that differs from a mistyped one in at most two places, but not in all; or "".
func nearest(name string, list []string) (best string) {
	least := min(3, len(name))
	for _, one := range list {
		if d := distance(name, one); d < least {
			best, least = one, d
		}
	}
	return best
}

// distance is Levenshtein's distance: how many bytes to insert, remove or replace.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}

// adviseEnded explains the error of a connection that has ended while a command used the VM: the VM has ended.
func adviseEnded(name string, err error) error {
	if errors.Is(err, client.ErrClosed) {
		return fmt.Errorf("%s has ended meanwhile (agentvm ps -a says how, agentvm logs %s why): %w", name, name, err)
	}
	return err
}

// isDrive says whether a name before a colon means a drive.
func isDrive(name, system string) bool { return system == "windows" && len(name) == 1 }

// checkNew says whether a VM that is made here can have a name. One that was made elsewhere may have another.
func checkNew(name, system string) error {
	if err := client.CheckName(name); err != nil {
		return err
	}
	if isDrive(name, system) {
		return fmt.Errorf("name %q: a name of one letter is a drive on Windows, so that agentvm cp could not tell them apart: take a longer one", name)
	}
	return nil
}

// completeNames completes up to limit names of VMs; 0: any number.
func completeNames(limit int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		store, err := vms()
		if err != nil || limit > 0 && len(args) >= limit {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		list := slices.DeleteFunc(store.Names(), func(name string) bool { return slices.Contains(args, name) })
		return list, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeRunning completes up to limit names of VMs that run; 0: any number. Where none runs it offers all: the command says what to do.
func completeRunning(limit int) cobra.CompletionFunc { return completeAlive(limit, true) }

// completeStopped completes those of VMs that do not run.
func completeStopped(limit int) cobra.CompletionFunc { return completeAlive(limit, false) }

func completeAlive(limit int, wanted bool) cobra.CompletionFunc {
	all := completeNames(limit)
	return func(command *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		list, directive := all(command, args, prefix)
		store, err := vms()
		if err != nil {
			return list, directive
		}
		matching := slices.DeleteFunc(slices.Clone(list), func(name string) bool {
			alive, err := store.Alive(name)
			return err == nil && (alive || store.Asleep(name)) != wanted
		})
		if wanted && len(matching) == 0 {
			return list, directive
		}
		return matching, directive
	}
}

// nameFlag adds -n, with completion of names.
func nameFlag(command *cobra.Command, name *string, usage string) {
	command.Flags().StringVarP(name, "name", "n", "", usage)
	complete := func(command *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return completeRunning(0)(command, nil, prefix)
	}
	if err := command.RegisterFlagCompletionFunc("name", complete); err != nil {
		panic(err) // there is such a flag
	}
}

// nameToo has a command that has nameFlag take the name as its first argument as well, where there are more arguments than least: some commands
// have always taken one, and others the other.
func nameToo(command *cobra.Command, least int) {
	first := 0
	check, run := command.Args, command.RunE
	command.Args = func(command *cobra.Command, args []string) error {
		if !command.Flags().Changed("name") && len(args) > least {
			if err := command.Flags().Set("name", args[0]); err != nil {
				return err
			}
			first = 1
		}
		return check(command, args[first:])
	}
	command.RunE = func(command *cobra.Command, args []string) error { return run(command, args[first:]) }
}

// flagToo has each command that takes the name of a VM as its first argument take it by -n as well.
func flagToo(command *cobra.Command) {
	for _, below := range command.Commands() {
		if below.Name() != "network" && below.Name() != "volume" { // which have names of their own
			flagToo(below)
		}
	}
	flags := command.Flags()
	if !takesName(command.Use) || flags.Lookup("name") != nil || flags.ShorthandLookup("n") != nil {
		return
	}
	var name string
	nameFlag(command, &name, "")
	flags.Lookup("name").Hidden = true // the usage line has the name
	all := func(args []string) []string {
		if !flags.Changed("name") {
			return args
		}
		return append([]string{name}, args...)
	}
	check, prepare, run := command.Args, command.PreRunE, command.RunE
	if check != nil {
		command.Args = func(command *cobra.Command, args []string) error { return check(command, all(args)) }
	}
	if prepare != nil {
		command.PreRunE = func(command *cobra.Command, args []string) error { return prepare(command, all(args)) }
	}
	command.RunE = func(command *cobra.Command, args []string) error { return run(command, all(args)) }
	if complete := command.ValidArgsFunction; complete != nil {
		command.ValidArgsFunction = func(command *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			return complete(command, all(args), prefix)
		}
	}
}

// takesName reports whether the first argument of a command is NAME, by its usage.
func takesName(use string) bool {
	words := slices.DeleteFunc(strings.Fields(use), func(word string) bool { return word == "[flags]" })
	return len(words) > 1 && strings.Trim(words[1], "[].") == "NAME"
}

// each does something to several VMs and continues after failures, which it reports together.
func each(list []string, do func(name string) error) error {
	var errs []error
	for _, name := range list {
		errs = append(errs, do(name))
	}
	return errors.Join(errs...)
}

// counted wants at least low and at most high arguments, any number when high is 0, and shows the usage when there are others.
func counted(low, high int) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		if n := len(args); n < low || high > 0 && n > high {
			return fmt.Errorf("%s: %d arguments; want %s (see %s --help)", command.Name(), n, command.UseLine(), command.CommandPath())
		}
		return nil
	}
}

// daemonCommand has the hidden commands that daemon.Store runs.
func (c *cli) daemonCommand() *cobra.Command {
	var dir string
	var owned bool
	run := &cobra.Command{
		Use: "run --dir DIR NAME", Short: "Run the daemon of a VM", Args: counted(1, 1), ValidArgsFunction: completeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if dir == "" {
				return errors.New("--dir is missing: agentvm start starts a daemon")
			}
			return daemon.Run(cmd.Context(), daemon.Store{Dir: dir, Version: version, Owned: owned}, args[0])
		},
	}
	run.Flags().StringVar(&dir, "dir", "", "directory of the store of VMs")
	run.Flags().BoolVar(&owned, "owned", false, "end when standard input does")
	var held string
	activator := &cobra.Command{
		Use: "activator --dir DIR", Short: "Hold the ports of hibernated VMs", Args: cobra.NoArgs,
		Aliases: []string{"porter"}, // what daemons that are older than this program start
		RunE: func(cmd *cobra.Command, _ []string) error {
			if held == "" {
				return errors.New("--dir is missing: commands that use VMs start the activator")
			}
			return daemon.RunActivator(cmd.Context(), daemon.Store{Dir: held, Version: version})
		},
	}
	activator.Flags().StringVar(&held, "dir", "", "directory of the store of VMs")
	var woken string
	waker := &cobra.Command{
		Use: "waker --dir DIR", Short: "Wake VMs for the process that holds their ports", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if woken == "" {
				return errors.New("--dir is missing: the process that holds ports starts it")
			}
			return daemon.RunWaker(cmd.Context(), daemon.Store{Dir: woken, Version: version}, os.Stdin, os.Stdout)
		},
	}
	waker.Flags().StringVar(&woken, "dir", "", "directory of the store of VMs")
	var served string
	server := &cobra.Command{
		Use: "mount --dir DIR NAME", Short: "Serve a mount that was added to a VM", Args: counted(1, 1), ValidArgsFunction: completeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if served == "" {
				return errors.New("--dir is missing: agentvm mount add starts the server")
			}
			return daemon.ServeMount(cmd.Context(), daemon.Store{Dir: served, Version: version}, args[0], os.Stdin, os.Stdout)
		},
	}
	server.Flags().StringVar(&served, "dir", "", "directory of the store of VMs")
	command := &cobra.Command{Use: "daemon", Short: "Run the processes that own VMs, their added mounts, and their ports while they are hibernated", Hidden: true}
	command.AddCommand(run, activator, waker, server)
	return command
}

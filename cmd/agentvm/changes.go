package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"agentvm/client"
	"agentvm/images"
	"agentvm/internal/host/hostpath"
	"agentvm/internal/share/changes"
	"agentvm/vm"
)

const diffLong = `Shows what a VM has changed in its copy-on-write mounts (-m HOST:GUEST:cow), compared with what the host has now: one line for
each change, with A for added, M for modified, D for deleted with all that is below, R for renamed and T for a file, directory or
link that has become another of these. A change that agentvm apply would refuse has the reason behind it.

A PATH is absolute in the VM or, in a VM with one such mount, relative to the mount.

Exit codes: 0 without a change, 1 with changes, 2 when agentvm fails.`

const diffExample = `  agentvm start dev -m .:/src:cow
  agentvm exec -n dev "cd /src && ./fix.sh"
  agentvm diff dev
  agentvm diff -p dev lib | less
  agentvm apply dev lib/parser.c`

func (c *cli) diffCommand() *cobra.Command {
	var patch, asJSON bool
	command := &cobra.Command{
		Use: "diff [flags] NAME [PATH...]", Short: "Show what a VM has changed in copy-on-write mounts", Long: diffLong, Example: diffExample,
		Args: withPaths, ValidArgsFunction: completeNames(1),
	}
	flags := command.Flags()
	flags.BoolVarP(&patch, "patch", "p", false, "print a patch, as git diff does")
	flags.BoolVarP(&patch, "unified", "u", false, "the same as --patch")
	flags.BoolVar(&asJSON, "json", false, "print one JSON object a line")
	command.MarkFlagsMutuallyExclusive("patch", "json")
	command.MarkFlagsMutuallyExclusive("unified", "json")
	return withExitCode(command, exitDiffFailure, func(ctx context.Context, args []string) error {
		return withVM(ctx, args[0], func(v *client.VM) error {
			list, err := c.printChanges(ctx, v.Changes(), patch, asJSON, args[1:])
			if err == nil && len(list) > 0 {
				err = exitStatus(exitDiffers)
			}
			return err
		})
	})
}

// Exit codes of agentvm diff, as of diff(1).
const (
	exitDiffers     = 1
	exitDiffFailure = 2
)

// withPaths checks the arguments of commands for a VM and paths in it.
func withPaths(_ *cobra.Command, args []string) error {
	if len(args) == 0 || args[0] == "" {
		return errors.New("want the name of a VM, and paths in it if not all is meant")
	}
	return nil
}

// printChanges prints changes in one of three forms.
func (c *cli) printChanges(ctx context.Context, set *vm.Changes, patch, asJSON bool, paths []string) ([]vm.Change, error) {
	progress := c.newProgress()
	defer progress.close()
	progress.waiting("comparing")
	interrupted, err := set.Interrupted(ctx)
	if err != nil {
		return nil, err
	}
	for _, mount := range interrupted {
		fmt.Fprintf(c.stderr, "agentvm: an apply of %s was interrupted; what follows is left to do\n", printable(mount))
	}
	if patch {
		to := io.Writer(c.stdout)
		if isTerminal(c.stdout) {
			to = &plainLines{to: to}
		}
		list, err := set.WriteDiff(ctx, progress.closing(to), paths...)
		for _, change := range list {
			if change.Torn {
				fmt.Fprintf(c.stderr, "agentvm: %s/%s may be incomplete, as the VM has not ended cleanly\n", change.Mount, changes.Quote(change.Path))
			}
		}
		return list, err
	}
	list, err := set.List(ctx, paths...)
	progress.close()
	if err != nil {
		return nil, err
	}
	several := false
	for _, change := range list {
		several = several || change.Mount != list[0].Mount
	}
	for _, change := range list {
		if asJSON {
			err = printJSON(c.stdout, change)
		} else {
			_, err = fmt.Fprintln(c.stdout, changeLine(change, several))
		}
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// changeLine is a change in a list. With several mounts its path is the VM's.
func changeLine(c vm.Change, several bool) string {
	name := func(p string) string {
		if several {
			p = c.Mount + "/" + p
		}
		if c.Mode.IsDir() || c.Status == vm.Deleted && c.OldMode.IsDir() {
			p += "/"
		}
		return changes.Quote(p)
	}
	line := c.Status.String() + "\t" + name(c.Path)
	if c.Status == vm.Renamed {
		line = c.Status.String() + "\t" + name(c.From) + "\t" + name(c.Path)
	}
	if c.Refused != "" {
		return line + "\t(not applied: " + printable(c.Refused) + ")"
	}
	if c.Conflict {
		line += "\t(conflict: the host has changed it too)"
	}
	if c.Torn {
		line += "\t(torn: it may be incomplete, as the VM has not ended cleanly)"
	}
	return line
}

// plainLines writes lines to a terminal without what it would interpret: the guest chose them.
type plainLines struct {
	to   io.Writer
	rest []byte
}

func (p *plainLines) Write(b []byte) (int, error) {
	p.rest = append(p.rest, b...)
	end := bytes.LastIndexByte(p.rest, '\n') + 1
	if end == 0 && len(p.rest) < 64<<10 {
		return len(b), nil
	}
	if end == 0 {
		end = len(p.rest)
	}
	text := strings.ReplaceAll(string(p.rest[:end]), "\t", "        ")
	p.rest = append(p.rest[:0], p.rest[end:]...)
	if _, err := io.WriteString(p.to, printableLines(text)); err != nil {
		return 0, err
	}
	return len(b), nil
}

const applyLong = `Applies to the host's files what a VM has changed in its copy-on-write mounts: all changes, or those at and below each PATH. Each file is
replaced as a whole, by one rename; deletions come last. What was done is printed as agentvm diff prints it.

When the host has changed a file that the VM has changed too, nothing is applied: name the paths that you want, or replace the host's
version with --force. The same holds for a file that may be incomplete, because the VM was killed soon after it had been written.
Devices, FIFOs and sockets, what is hidden from the VM, and what programs of the host obey by themselves
(such as .git/hooks; see --unprotected) are left out with a warning, and the exit code is 1. Set-user-ID bits are dropped.`

func (c *cli) applyCommand() *cobra.Command {
	var force, quiet bool
	command := &cobra.Command{
		Use: "apply [flags] NAME [PATH...]", Short: "Take over what a VM has changed in copy-on-write mounts", Long: applyLong,
		Example: "  agentvm fork dev try --count 3\n  agentvm diff try-2\n  agentvm apply try-2",
		Args:    withPaths, ValidArgsFunction: completeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s := newSession(shellInterruptWindow)
			ctx := s.begin(cmd.Context())
			defer s.end()
			return s.explain(withVM(ctx, args[0], func(v *client.VM) error { return c.apply(ctx, v.Changes(), force, quiet, args[1:]) }))
		},
	}
	command.Flags().BoolVarP(&force, "force", "f", false, "also apply files that the host has changed meanwhile, and files that may be incomplete")
	command.Flags().BoolVarP(&quiet, "quiet", "q", false, "do not print what was applied")
	return command
}

func (c *cli) apply(ctx context.Context, set *vm.Changes, force, quiet bool, paths []string) error {
	progress := c.newProgress()
	progress.waiting("applying")
	applied, err := set.Apply(ctx, vm.ApplyOptions{Paths: paths, Force: force})
	progress.close()
	several := false
	for _, change := range applied.Done {
		several = several || change.Mount != applied.Done[0].Mount
	}
	slices.SortStableFunc(applied.Done, func(a, b vm.Change) int { return cmp.Or(cmp.Compare(a.Mount, b.Mount), cmp.Compare(a.Path, b.Path)) })
	for _, change := range applied.Done {
		if !quiet {
			change.Conflict, change.Torn = false, false
			fmt.Fprintln(c.stdout, changeLine(change, several))
		}
	}
	for _, change := range applied.Skipped {
		fmt.Fprintf(c.stderr, "agentvm: %s/%s is not applied: %s\n", change.Mount, changes.Quote(change.Path), printable(change.Refused))
	}
	for _, mount := range applied.Resumed {
		fmt.Fprintf(c.stderr, "agentvm: an earlier apply of %s was interrupted, and has been continued\n", printable(mount))
	}
	var conflict *vm.ConflictError
	var torn *vm.TornError
	switch {
	case errors.As(err, &torn):
		return fmt.Errorf("%w (agentvm diff shows it; mend it in the VM, name the paths that are wanted, or use --force)", err)
	case errors.As(err, &conflict):
		return fmt.Errorf("%w (agentvm diff shows it; name the paths that are wanted, or use --force)", err)
	case err == nil && len(applied.Skipped) > 0:
		return exitStatus(exitFailure)
	}
	return err
}

const discardLong = `Drops what a VM has changed in its copy-on-write mounts, so that it sees the host's files again: all changes, or those at and below each
PATH. Programs in the VM that use the mount must have ended; the host's files stay as they are.`

func (c *cli) discardCommand() *cobra.Command {
	return &cobra.Command{
		Use: "discard NAME [PATH...]", Short: "Drop what a VM has changed in copy-on-write mounts", Long: discardLong,
		Example: "  agentvm discard dev lib/parser.c\n  agentvm discard dev",
		Args:    withPaths, ValidArgsFunction: completeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withVM(cmd.Context(), args[0], func(v *client.VM) error { return v.Changes().Discard(cmd.Context(), args[1:]...) })
		},
	}
}

// changesFlags are those of a VM that lives for one command.
type changesFlags struct{ diff, apply bool }

func (f *changesFlags) register(flags *pflag.FlagSet) {
	flags.BoolVar(&f.diff, "diff", false, "with -m HOST:GUEST:cow: print a patch of what the command has changed, after its output")
	flags.BoolVar(&f.apply, "apply", false, "with -m HOST:GUEST:cow: apply the command's changes to the host's files, if it exits with 0")
}

// check refuses the flags where there is no mount for them.
func (f *changesFlags) check(mounts []vm.Mount) error {
	if !f.diff && !f.apply || slices.ContainsFunc(mounts, func(m vm.Mount) bool { return m.CopyOnWrite }) {
		return nil
	}
	return errors.New("--diff and --apply are for copy-on-write mounts: give a directory as -m HOST:GUEST:cow")
}

// remember notes before the VM starts that machines change the directories to which changes are applied: afterwards this process is confined.
func (f *changesFlags) remember(ctx context.Context, mounts []vm.Mount) error {
	if !f.apply {
		return nil
	}
	store, err := images.DefaultDir()
	if err != nil {
		return err
	}
	guard, err := hostpath.Known(store)
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if !m.CopyOnWrite {
			continue
		}
		place, err := guard.Open(m.HostPath, m.Identity)
		if err == nil {
			err = errors.Join(guard.Remember(ctx, store, []*hostpath.Place{place}), place.Close())
		}
		if err != nil {
			return fmt.Errorf("mount %s: %w", m.HostPath, err)
		}
	}
	return nil
}

// finishChanges shows and applies what a command has changed, as f says.
func (c *cli) finishChanges(ctx context.Context, f changesFlags, set func() *vm.Changes, result *vm.Result) error {
	if f.diff {
		if _, err := c.printChanges(ctx, set(), true, false, nil); err != nil {
			return err
		}
	}
	if !f.apply {
		return nil
	}
	if result.ExitCode != 0 || result.TimedOut {
		fmt.Fprintln(c.stderr, "agentvm: the command has failed: nothing is applied")
		return nil
	}
	return c.apply(ctx, set(), false, true, nil)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/internal/share/changes"
	"agentvm/internal/share/guestfs"
	"agentvm/vm"
)

const cpLong = `Copies files and directories between the host and a VM that runs. Paths in the VM are absolute.

When the target is a directory that exists, or ends with /, the copy goes into it under its own name; a source that ends with /.
means the contents of that directory. What is in the way is replaced, a file by one rename. Permissions, times and
several names of a file are kept. In a VM the files are root's, and set-user-ID bits are dropped: --archive keeps
them, and owners by number. Out of a VM the files are yours. Devices are not copied, nor, out of a VM, links that
lead out of what is copied. Files that a killed VM was writing may be incomplete: they are copied, and named on standard error.

With - as the other side, the files are in a tar archive on standard input or output.`

const cpExample = `  agentvm cp ./src dev:/root/
  agentvm cp dev:/root/src/build/result.txt .
  tar c . | agentvm cp - dev:/root/src
  agentvm cp dev:/var/log - | tar tv`

// maxReasons is how many of the reasons for leaving something out are shown.
const maxReasons = 5

func (c *cli) cpCommand() *cobra.Command {
	var quiet, archive bool
	command := &cobra.Command{
		Use: "cp [flags] NAME:PATH LOCAL | LOCAL NAME:PATH", Short: "Copy files into and out of a VM", Long: cpLong, Example: cpExample,
		Args: counted(2, 2), ValidArgsFunction: completePlaces,
		RunE: func(cmd *cobra.Command, args []string) error {
			s := newSession(shellInterruptWindow)
			ctx := s.begin(cmd.Context())
			defer s.end()
			return s.explain(c.copy(ctx, args[0], args[1], archive, quiet))
		},
	}
	command.Flags().BoolVarP(&archive, "archive", "a", false, "into a VM: keep owners by number, and set-user-ID, set-group-ID and sticky bits")
	command.Flags().BoolVarP(&quiet, "quiet", "q", false, "do not say what was left out")
	return command
}

// place is one side of a copy: a path on the host or in a VM.
type place struct {
	name string // of a VM; empty: the host
	path string
}

// parsePlace reads NAME:PATH or a local path. What has a separator before the colon is local. So is a drive: one letter, on Windows always
// and elsewhere before a backslash.
func parsePlace(text string) place {
	name, path, found := strings.Cut(text, ":")
	drive := isDrive(name, runtime.GOOS) || len(name) == 1 && strings.HasPrefix(path, `\`)
	if !found || name == "" || drive || strings.ContainsAny(name, `/\`) {
		return place{path: text}
	}
	return place{name, path}
}

func (c *cli) copy(ctx context.Context, from, to string, archive, quiet bool) error {
	source, target := parsePlace(from), parsePlace(to)
	if (source.name == "") == (target.name == "") {
		return errors.New("one side must be in a VM, as NAME:/path, and the other one here")
	}
	if archive && source.name != "" {
		return errors.New("--archive is for copies into a VM: out of one, files belong to who copies them (as root, agentvm cp NAME:PATH - | tar x keeps owners)")
	}
	name := source.name + target.name
	return withVM(ctx, name, func(v *client.VM) error {
		defer c.watchFullDisk(ctx, v)()
		progress := c.newProgress()
		report, err := c.transfer(ctx, v.Files(), source, target, archive, progress)
		progress.close()
		if !quiet {
			c.printSkipped(report)
		}
		c.printTorn(report)
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		return err
	})
}

func (c *cli) transfer(ctx context.Context, files *vm.Files, source, target place, archive bool, progress *progress) (vm.CopyStats, error) {
	switch {
	case source.path == "-" && source.name == "":
		return vm.CopyStats{}, files.ExtractTar(ctx, target.path, io.TeeReader(c.stdin, progress.counting("copying", io.Discard, fileSize(c.stdin))))
	case target.path == "-" && target.name == "":
		if isTerminal(c.stdout) {
			return vm.CopyStats{}, errors.New("a tar archive would go to the terminal: redirect standard output")
		}
		return files.CreateTar(ctx, []string{source.path}, progress.counting("copying", c.stdout, 0))
	}
	guard, err := hostGuard()
	if err != nil {
		return vm.CopyStats{}, err
	}
	files = guestfs.Guarded(files, guard)
	options := vm.CopyOptions{KeepOwners: archive, Progress: func(p vm.CopyProgress) { progress.working("copying", p.Bytes, 0) }}
	if source.name != "" {
		return files.CopyFrom(ctx, source.path, target.path, options)
	}
	return files.CopyTo(ctx, source.path, target.path, options)
}

func (c *cli) printSkipped(s vm.CopyStats) {
	for _, reason := range s.Reasons[:min(len(s.Reasons), maxReasons)] {
		fmt.Fprintln(c.stderr, "agentvm: left out:", printable(reason))
	}
	if more := s.Skipped - maxReasons; more > 0 {
		fmt.Fprintf(c.stderr, "agentvm: left out: %d more\n", more)
	}
}

// printTorn says which files may be incomplete. They are copied nevertheless: whoever saves what is left of a VM wants them, too.
func (c *cli) printTorn(s vm.CopyStats) {
	if s.Torn > 0 {
		fmt.Fprintln(c.stderr, "agentvm:", tornText(s))
	}
}

func tornText(s vm.CopyStats) string {
	var names []string
	for _, name := range s.TornFiles[:min(len(s.TornFiles), maxReasons)] {
		names = append(names, changes.Quote(name))
	}
	text := "the VM has not ended cleanly, and what it had been writing until then may be incomplete: " + strings.Join(names, ", ")
	if more := s.Torn - int64(len(names)); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// completePlaces offers NAME: beside local files.
func completePlaces(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	store, err := vms()
	if err != nil || len(args) > 1 || strings.Contains(prefix, ":") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	var list []string
	for _, name := range store.Names() {
		if strings.HasPrefix(name, prefix) && client.CheckName(name) == nil {
			list = append(list, name+":")
		}
	}
	if len(list) == 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return list, cobra.ShellCompDirectiveNoSpace
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"agentvm/daemon"
	"agentvm/vm"
)

const cpLong = `Copies files and directories between this computer and a VM that runs. Paths in the VM are absolute.

Into a directory that exists, or with a / at the end, the copy goes under its own name; a source that ends with /.
means what is in that directory. What is in the way is replaced, a file by one rename. Permissions and times are
kept; devices are not copied, nor, out of a VM, links that lead out of what is copied.

- as the other side is a tar archive on standard input or output.`

const cpExample = `  agentvm cp ./src dev:/root/
  agentvm cp dev:/root/src/build/result.txt .
  tar c . | agentvm cp - dev:/root/src
  agentvm cp dev:/var/log - | tar tv`

// maxReasons is how many of the reasons for leaving something out are shown.
const maxReasons = 5

func (c *cli) cpCommand() *cobra.Command {
	var quiet bool
	command := &cobra.Command{
		Use: "cp [flags] NAME:PATH LOCAL | LOCAL NAME:PATH", Short: "Copy files into and out of a VM", Long: cpLong, Example: cpExample,
		Args: counted(2, 2), ValidArgsFunction: completePlaces,
		RunE: func(cmd *cobra.Command, args []string) error {
			s := newSession(shellPatience)
			ctx := s.begin(cmd.Context())
			defer s.end()
			return s.explain(c.copy(ctx, args[0], args[1], quiet))
		},
	}
	command.Flags().BoolVarP(&quiet, "quiet", "q", false, "do not say what was left out")
	return command
}

// place is a side of a copy.
type place struct {
	name string // of a VM; empty: this computer
	path string
}

// parsePlace reads NAME:PATH or a local path. What has a separator before the colon, or only one letter, as a drive of
// Windows has, is local.
func parsePlace(text string) place {
	name, path, found := strings.Cut(text, ":")
	if !found || len(name) < 2 || strings.ContainsAny(name, `/\`) {
		return place{path: text}
	}
	return place{name, path}
}

func (c *cli) copy(ctx context.Context, from, to string, quiet bool) error {
	source, target := parsePlace(from), parsePlace(to)
	if (source.name == "") == (target.name == "") {
		return errors.New("one side must be in a VM, as NAME:/path, and the other one here")
	}
	name := source.name + target.name
	client, err := connect(ctx, name)
	if err != nil {
		return err
	}
	defer client.Close()
	remote, err := client.Files(ctx)
	if err != nil {
		return ended(name, err)
	}
	defer remote.Close()
	report, err := c.transfer(ctx, vm.NewFiles(remote), source, target)
	if !quiet {
		c.tellSkipped(report)
	}
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return ended(name, err)
}

// skipped is what was left out of a copy.
type skipped struct {
	count   int64
	reasons []string
}

func (c *cli) transfer(ctx context.Context, files *vm.Files, source, target place) (skipped, error) {
	switch {
	case source.path == "-" && source.name == "":
		return skipped{}, files.TarIn(ctx, target.path, c.stdin)
	case target.path == "-" && target.name == "":
		if isTerminal(c.stdout) {
			return skipped{}, errors.New("a tar archive would go to the terminal: redirect standard output")
		}
		summary, err := files.TarOut(ctx, []string{source.path}, io.Writer(c.stdout))
		return skipped{int64(len(summary.Warnings)), summary.Warnings}, err
	case source.name != "":
		copied, err := files.CopyOut(ctx, source.path, target.path, vm.CopyOptions{})
		return skipped{copied.Skipped, copied.Reasons}, err
	}
	copied, err := files.CopyIn(ctx, source.path, target.path, vm.CopyOptions{})
	return skipped{copied.Skipped, copied.Reasons}, err
}

func (c *cli) tellSkipped(s skipped) {
	for _, reason := range s.reasons[:min(len(s.reasons), maxReasons)] {
		fmt.Fprintln(c.stderr, "agentvm: left out:", printable(reason))
	}
	if more := s.count - maxReasons; more > 0 {
		fmt.Fprintf(c.stderr, "agentvm: left out: %d more\n", more)
	}
}

// completePlaces offers NAME: beside local files.
func completePlaces(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	store, err := vms()
	if err != nil || len(args) > 1 || strings.Contains(prefix, ":") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	var list []string
	for _, name := range names(store) {
		if strings.HasPrefix(name, prefix) && daemon.CheckName(name) == nil {
			list = append(list, name+":")
		}
	}
	if len(list) == 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return list, cobra.ShellCompDirectiveNoSpace
}

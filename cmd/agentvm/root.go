package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const rootLong = `agentvm runs commands in a Linux virtual machine that needs no KVM and no root: a RISC-V machine in WebAssembly,
inside this process, or, for VMs that have a name, in a process of its own that continues in the background.

Without a command it opens an interactive shell in a fresh VM.`

const rootExample = `  agentvm                                    an interactive shell
  agentvm exec "ls -la"                      one command
  agentvm exec -m .:/src:ro "ls /src"        with a directory of the host
  agentvm exec --allow pypi.org "..."        reaching nothing else
  agentvm start dev                          a VM in the background
  agentvm exec -n dev "ls -la"               one command in it
  agentvm fork dev try                       a VM that continues from where dev is
  agentvm doctor                             what works here`

// rootCommand returns the program with all of its commands.
func (c *cli) rootCommand() *cobra.Command { return c.rootWith("") }

// commandFor returns the program with what args need. When their first word is a command, no other is made, nor are the flags of none: together
// they take a third of the time of a command that does little.
func (c *cli) commandFor(args []string) *cobra.Command {
	first := ""
	if len(args) > 0 && slices.ContainsFunc(c.commands(), func(entry commandEntry) bool { return entry.name == args[0] }) {
		first = args[0]
	}
	return c.rootWith(first)
}

func (c *cli) rootWith(first string) *cobra.Command {
	var flags vmFlags
	root := &cobra.Command{
		Use:                        "agentvm",
		Version:                    version,
		Short:                      "Run commands in a Linux virtual machine inside this process",
		Long:                       rootLong,
		Example:                    rootExample,
		SilenceErrors:              true,
		SilenceUsage:               true,
		SuggestionsMinimumDistance: 2,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
					return fmt.Errorf("unknown command %q: did you mean agentvm %s? To run it in a VM use agentvm exec %s (see agentvm --help)", args[0], near[0], args[0])
				}
				return fmt.Errorf("unknown command %q: to run it in a VM use agentvm exec %s (see agentvm --help)", args[0], args[0])
			}
			return nil
		},
		PersistentPreRunE: func(*cobra.Command, []string) error { return c.startLog() },
	}
	root.PersistentFlags().BoolVar(&c.debug, "debug", false, "print what happens, with timings, on standard error")
	if first == "" {
		flags.register(root)
		root.Flags().VisitAll(func(f *pflag.Flag) { f.Hidden = true }) // those of shell, whose help has them
	}
	runs(root, func(ctx context.Context, _ []string) error { return c.interactive(ctx, "", &flags, "") })
	c.addCommands(root, first)
	completeFlags(root)
	root.InitDefaultVersionFlag() // cobra does it only for what is run, not for manual pages
	root.InitDefaultCompletionCmd("completion")
	for _, command := range root.Commands() {
		switch {
		case !command.HasSubCommands():
		case command.Runnable():
			command.SuggestionsMinimumDistance = 2
			command.Args = func(cmd *cobra.Command, args []string) error {
				if len(args) > 0 {
					return unknownSubcommand(cmd, args[0])
				}
				return nil
			}
		default:
			wantsSubcommand(command)
		}
	}
	root.SetHelpCommand(helpCommand(root))
	all := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		if cmd == root {
			root.Print(firstHelp(root))
			return
		}
		all(cmd, args)
	})
	return root
}

// wantsSubcommand makes a command that is only a group of others refuse words that name none of them. Without arguments it prints its help.
func wantsSubcommand(command *cobra.Command) {
	command.DisableFlagsInUseLine = true
	command.SuggestionsMinimumDistance = 2
	command.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return unknownSubcommand(cmd, args[0])
	}
}

func unknownSubcommand(cmd *cobra.Command, name string) error {
	hint := ""
	if near := cmd.SuggestionsFor(name); len(near) > 0 {
		hint = " did you mean " + near[0] + "?"
	}
	return fmt.Errorf("unknown command %q of %s:%s (see %s --help)", name, cmd.CommandPath(), hint, cmd.CommandPath())
}

// helpCommand does what cobra's does, except that it fails when there is no such command, and lists all commands only with --all.
func helpCommand(root *cobra.Command) *cobra.Command {
	var all bool
	command := &cobra.Command{
		Use: "help [COMMAND]", Short: "Help about any command", GroupID: groupOther, Example: "  agentvm help exec\n  agentvm help --all",
		ValidArgsFunction: func(_ *cobra.Command, args []string, prefix string) (list []string, _ cobra.ShellCompDirective) {
			of, _, err := root.Find(args)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			for _, command := range of.Commands() {
				if command.IsAvailableCommand() && strings.HasPrefix(command.Name(), prefix) {
					list = append(list, cobra.CompletionWithDesc(command.Name(), command.Short))
				}
			}
			return list, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			command, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return fmt.Errorf("help: there is no command %q (see agentvm --help)", strings.Join(args, " "))
			}
			if all && command == root {
				root.Printf("%s\n\n%s", root.Long, root.UsageString())
				return nil
			}
			return command.Help()
		},
	}
	command.Flags().BoolVar(&all, "all", false, "list all commands")
	return command
}

// Groups of commands in the help.
const (
	groupOnce  = "once"
	groupNamed = "named"
	groupOther = "other"
)

// addCommands adds all commands, or only the one whose name is first.
func (c *cli) addCommands(root *cobra.Command, first string) {
	root.AddGroup(
		&cobra.Group{ID: groupOnce, Title: "VMs for one command:"},
		&cobra.Group{ID: groupNamed, Title: "Named VMs:"},
		&cobra.Group{ID: groupOther, Title: "Everything else:"},
	)
	for _, entry := range c.commands() {
		if first == "" || first == entry.name {
			command := entry.make()
			command.GroupID = entry.group
			root.AddCommand(command)
		}
	}
	if first == "" {
		// What docker calls them, without a line in the help.
		for use, command := range map[string]*cobra.Command{
			"images": c.imageListCommand(), "pull IMAGE": c.imagePullCommand(), "push IMAGE [docker://NAME[:TAG]]": c.imagePushCommand(), "rmi IMAGE...": c.imageRemoveCommand(),
		} {
			command.Use, command.Aliases, command.Hidden = use, nil, true
			root.AddCommand(command)
		}
	}
	flagToo(root)
	root.SetCompletionCommandGroupID(groupOther)
}

// commandEntry is a command of the program that has not been made yet.
type commandEntry struct {
	group, name string
	make        func() *cobra.Command
}

// commands are the program's commands, in the order of the help.
func (c *cli) commands() []commandEntry {
	return []commandEntry{
		{groupOnce, "exec", c.execCommand},
		{groupOnce, "run", c.runCommand},
		{groupOnce, "shell", c.shellCommand},
		{groupOnce, "replay", c.replayCommand},
		{groupNamed, "start", c.startCommand},
		{groupNamed, "stop", c.stopCommand},
		{groupNamed, "kill", c.killCommand},
		{groupNamed, "wait", c.waitCommand},
		{groupNamed, "restart", c.restartCommand},
		{groupNamed, "rm", c.removeCommand},
		{groupNamed, "ps", c.psCommand},
		{groupNamed, "top", c.topCommand},
		{groupNamed, "attach", c.attachCommand},
		{groupNamed, "job", c.jobCommand},
		{groupNamed, "cp", c.cpCommand},
		{groupNamed, "logs", c.logsCommand},
		{groupNamed, "inspect", c.inspectCommand},
		{groupNamed, "stats", c.statsCommand},
		{groupNamed, "ports", c.portsCommand},
		{groupNamed, "port", c.portCommand},
		{groupNamed, "mount", c.mountCommand},
		{groupNamed, "port-forward", c.portForwardCommand},
		{groupNamed, "fetch", c.fetchCommand},
		{groupNamed, "preview", c.previewCommand},
		{groupNamed, "pause", c.pauseCommand},
		{groupNamed, "resume", c.resumeCommand},
		{groupNamed, "extend", c.extendCommand},
		{groupNamed, "rename", c.renameCommand},
		{groupNamed, "events", c.eventsCommand},
		{groupNamed, "ssh-config", c.sshConfigCommand},
		{groupNamed, "ssh-proxy", c.sshProxyCommand},
		{groupNamed, "fork", c.forkCommand},
		{groupNamed, "snapshot", c.snapshotCommand},
		{groupNamed, "commit", c.commitCommand},
		{groupNamed, "diff", c.diffCommand},
		{groupNamed, "apply", c.applyCommand},
		{groupNamed, "discard", c.discardCommand},
		{groupOther, "net", c.netCommand},
		{groupOther, "network", c.networkCommand},
		{groupOther, "volume", c.volumeCommand},
		{groupOther, "mcp", c.mcpCommand},
		{groupOther, "ui", c.uiCommand},
		{groupOther, "serve", c.serveCommand},
		{groupOther, "e2b", c.e2bCommand},
		{groupOther, "sandboxd", c.sandboxdCommand},
		{groupOther, "pod", c.podCommand},
		{groupOther, "gateway", c.gatewayCommand},
		{groupOther, "config", c.configCommand},
		{groupOther, "image", c.imageCommand},
		{groupOther, "build", c.buildCommand},
		{groupOther, "system", c.systemCommand},
		{groupOther, "service", c.serviceCommand},
		{groupOther, "doctor", c.doctorCommand},
		{groupOther, "version", c.versionCommand},
		{groupOther, "debug", c.debugCommand},
		{groupOther, "daemon", c.daemonCommand},
	}
}

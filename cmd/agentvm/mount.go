package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/internal/share/mount"
)

const mountLong = `Shows further directories of the host to a running VM, as --mount of agentvm start does, and takes them away again. An added mount
lasts until it is removed, the VM stops, or its guest restarts: later starts, forks and snapshots do not have it, and the VM does not
hibernate meanwhile. Each has a process of its own on the host, which can reach that directory alone.`

func (c *cli) mountCommand() *cobra.Command {
	command := &cobra.Command{
		Use: "mount", Short: "Add and remove mounts of running VMs", Long: mountLong,
		Example: "  agentvm mount add dev .:/src\n  agentvm mount ls dev\n  agentvm mount rm dev /src",
	}
	command.AddCommand(c.mountAddCommand(), c.mountRemoveCommand(), c.mountListCommand())
	return command
}

func (c *cli) mountAddCommand() *cobra.Command {
	return &cobra.Command{
		Use: "add NAME HOST[:GUEST][:ro|:cow]...", Short: "Show directories of the host to a running VM", Long: mountLong,
		Example: "  agentvm mount add dev .:/src\n  agentvm mount add dev /data:/data:ro",
		Args:    counted(2, 0), ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveDefault // files
			}
			return completeRunning(1)(cmd, args, prefix)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var list []mount.Spec
			for _, text := range args[1:] {
				m, err := mount.Parse(text)
				if err != nil {
					return err
				}
				list = append(list, m)
			}
			return withVM(cmd.Context(), args[0], func(v *client.VM) error {
				for _, m := range list {
					if err := v.AddMount(cmd.Context(), m); err != nil {
						return err
					}
					fmt.Fprintf(c.stderr, "%s: %s shows %s\n", args[0], m.GuestPath, m.HostPath)
				}
				return nil
			})
		},
	}
}

func (c *cli) mountRemoveCommand() *cobra.Command {
	var force bool
	command := &cobra.Command{
		Use: "rm [flags] NAME GUEST...", Short: "Take added directories of the host away from a VM",
		Long: `Unmounts directories that mount add has added, by their paths in the VM. A directory that programs in the VM use stays mounted; with --force
those programs get errors from then on, and what they have not written back is lost.`,
		Example: "  agentvm mount rm dev /src", Args: counted(2, 0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withVM(cmd.Context(), args[0], func(v *client.VM) error {
				return each(args[1:], func(guest string) error {
					err := v.RemoveMount(cmd.Context(), guest, force)
					if err != nil && !force && strings.Contains(err.Error(), "use it") {
						err = fmt.Errorf("%w: end them, or give --force", err)
					}
					return err
				})
			})
		},
	}
	command.Flags().BoolVarP(&force, "force", "f", false, "unmount it even while programs in the VM use it, or do not answer")
	command.ValidArgsFunction = func(cmd *cobra.Command, args []string, prefix string) (list []string, _ cobra.ShellCompDirective) {
		if len(args) == 0 {
			return completeRunning(1)(cmd, args, prefix)
		}
		_ = withVM(cmd.Context(), args[0], func(v *client.VM) error {
			mounts, err := v.Mounts(cmd.Context())
			for _, m := range mounts {
				if m.Added {
					list = append(list, m.Mount.GuestPath)
				}
			}
			return err
		})
		return list, cobra.ShellCompDirectiveNoFileComp
	}
	return command
}

func (c *cli) mountListCommand() *cobra.Command {
	return &cobra.Command{
		Use: "ls NAME", Short: "List the mounts of a running VM",
		Long:    "Prints the mounts of a VM, a line each, and marks those that were added.",
		Example: "  agentvm mount ls dev",
		Args:    counted(1, 1), ValidArgsFunction: completeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withVM(cmd.Context(), args[0], func(v *client.VM) error {
				list, err := v.Mounts(cmd.Context())
				for _, m := range list {
					remark := ""
					switch {
					case m.Err != nil:
						remark = fmt.Sprintf(" (added, and broken: %v; agentvm mount rm %s %s removes it)", m.Err, args[0], m.Mount.GuestPath)
					case m.Added:
						remark = " (added)"
					}
					fmt.Fprintf(c.stdout, "%s%s\n", m.Mount, remark)
				}
				return err
			})
		},
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/internal/network/preview"
)

const previewListLong = `Lists the valid links, with their secrets.

  ready     the VM runs
  stopped   it does not; the link works again when it is started again
  gone      it was removed; only restoring a snapshot of it under its name brings it back`

func (c *cli) previewListCommand() *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use: "ls [flags] [NAME]", Aliases: []string{"list"}, Short: "List links", Long: previewListLong, Args: counted(0, 1), ValidArgsFunction: completeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := listLinks(cmd.Context(), strings.Join(args, ""))
			switch {
			case err != nil:
				return err
			case asJSON:
				return printJSON(c.stdout, list)
			}
			return printLinks(c.stdout, list, time.Now())
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON array")
	return command
}

// listLinks is never nil. Without a name it is of all VMs.
func listLinks(ctx context.Context, name string) ([]link, error) {
	store, err := previews(preview.Options{})
	if err != nil {
		return nil, err
	}
	defer store.Close()
	found, err := store.List(ctx, name)
	if err != nil {
		return nil, err
	}
	vms, err := vms()
	list := []link{}
	for _, p := range found {
		identity, state := placeOf(vms, p)
		list = append(list, linkTo(p, identity, state))
	}
	return list, err
}

// placeOf says where a preview is, without asking the daemon.
func placeOf(vms *client.Store, p preview.Preview) (client.Identity, linkState) {
	identity, err := vms.Identity(p.VM)
	if err != nil || identity.ID != p.VMID {
		return identity, linkGone
	}
	if alive, err := vms.Alive(p.VM); err == nil && (alive || vms.Asleep(p.VM)) { // a visitor wakes it
		return identity, linkReady
	}
	return identity, linkStopped
}

func printLinks(w io.Writer, list []link, now time.Time) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tVM\tPORT\tSTATE\tEXPIRES IN\tURL")
	for _, l := range list {
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%v\t%s\n", l.ID, l.VM, l.Port, l.State, l.Expires.Sub(now).Round(time.Second), l.URL)
	}
	return table.Flush()
}

const previewRevokeLong = `Ends links at once, and cuts the connections through them. Name a link by its ID or its URL; NAME ends all links of a VM, --all those of
all VMs. Revoking a link twice is not an error.`

func (c *cli) previewRevokeCommand() *cobra.Command {
	var all bool
	command := &cobra.Command{
		Use: "revoke [flags] ID|NAME...", Aliases: []string{"rm"}, Short: "End links", Long: previewRevokeLong, ValidArgsFunction: completeLinks(true),
		Example: "  agentvm preview revoke 0a1b2c3d4e5f6\n  agentvm preview revoke dev\n  agentvm preview revoke --all",
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return errors.New("preview revoke: want the ID of a preview, the name of a VM, or --all")
			}
			return c.revoke(cmd.Context(), args)
		},
	}
	command.Flags().BoolVar(&all, "all", false, "end all links of all VMs")
	return command
}

// revoke ends the named previews, or all.
func (c *cli) revoke(ctx context.Context, what []string) error {
	store, err := previews(preview.Options{})
	if err != nil {
		return err
	}
	defer store.Close()
	list, err := store.List(ctx, "")
	if err != nil {
		return err
	}
	if len(what) == 0 {
		for _, p := range list {
			what = append(what, p.ID)
		}
	}
	ended := 0
	err = each(what, func(one string) error {
		n, err := revokeOne(ctx, store, list, one)
		ended += n
		return err
	})
	fmt.Fprintf(c.stderr, "agentvm: previews revoked: %d\n", ended)
	return err
}

// revokeOne ends a preview, or those of a VM. An ID counts before a name.
func revokeOne(ctx context.Context, store *preview.Store, list []preview.Preview, what string) (int, error) {
	token := tokenIn(what)
	err := store.Revoke(ctx, token)
	if err == nil {
		return 1, nil
	}
	if token != what || !errors.Is(err, preview.ErrUnknown) && !errors.Is(err, preview.ErrForged) {
		return 0, err
	}
	for _, p := range list {
		if p.VM == what {
			return store.RevokeAll(ctx, what)
		}
	}
	if vms, storeErr := vms(); storeErr == nil {
		if _, noSuch := vms.Config(what); noSuch == nil {
			return 0, nil // a VM without previews
		}
	}
	return 0, fmt.Errorf("%w: %s (agentvm preview ls lists them)", preview.ErrUnknown, what)
}

// tokenIn returns the token of a link, and any other text as it is.
func tokenIn(text string) string {
	rest, is := strings.CutPrefix(text, "http://")
	if !is {
		return text
	}
	host, path, _ := strings.Cut(rest, "/")
	if token, is := strings.CutPrefix("/"+path, "/p/"); is && !strings.Contains(host, "."+preview.Domain) {
		token, _, _ = strings.Cut(token, "/")
		return token
	}
	token, _, _ := strings.Cut(host, ".")
	return token
}

func (c *cli) previewOpenCommand() *cobra.Command {
	return &cobra.Command{
		Use: "open ID", Short: "Open a link in the host's browser", Args: counted(1, 1), ValidArgsFunction: completeLinks(false),
		Long:    "Prints a link and opens it in the host's browser, by a file that exists for 15 seconds or until Ctrl-C: command lines are not secret.",
		Example: "  agentvm preview open 0a1b2c3d4e5f6",
		RunE:    func(cmd *cobra.Command, args []string) error { return c.openLink(cmd.Context(), args[0]) },
	}
}

func (c *cli) openLink(ctx context.Context, id string) error {
	list, err := listLinks(ctx, "")
	if err != nil {
		return err
	}
	for _, l := range list {
		switch {
		case l.ID != id:
		case l.State == linkGone:
			return fmt.Errorf("preview %s: its VM %s was removed", id, l.VM)
		case l.State == linkStopped:
			return fmt.Errorf("preview %s: its VM does not run: start it with agentvm start %s", id, l.VM)
		default:
			fmt.Fprintln(c.stdout, l.URL)
			folder, err := linkFolder()
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
			defer stop()
			return browse(ctx, opener(runtime.GOOS), folder, l.URL, openerTime, redirectTime)
		}
	}
	return fmt.Errorf("%w: %s (agentvm preview ls lists them)", preview.ErrUnknown, id)
}

// completeLinks completes IDs of previews, and names of VMs where those can be given, too.
func completeLinks(names bool) cobra.CompletionFunc {
	return func(command *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		var list []string
		if links, err := listLinks(command.Context(), ""); err == nil && (names || len(args) == 0) {
			for _, l := range links {
				list = append(list, fmt.Sprintf("%s\tport %d of %s", l.ID, l.Port, l.VM))
			}
		}
		if names {
			more, _ := completeNames(0)(command, args, prefix)
			list = append(list, more...)
		}
		return list, cobra.ShellCompDirectiveNoFileComp
	}
}

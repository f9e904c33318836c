package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/network/preview"
)

const previewLong = `Links to servers in VMs, for a person with a browser. Whoever has a link sees what the server on one port of one VM serves, until the
link expires or is revoked. Other people do not, and the link shows nothing else of the VM. Links are for browsers on the host: they lead to its loopback.

A link stays valid when its VM stops and starts again, and when a snapshot of the VM is restored under the VM's name. It never leads to another
VM that gets the name later.`

const previewExample = `  agentvm preview create dev 3000
  agentvm preview create dev 3000 --expires 10m
  agentvm preview ls
  agentvm preview revoke dev`

func (c *cli) previewCommand() *cobra.Command {
	command := &cobra.Command{Use: "preview", Short: "Share a server in a VM by a link", Long: previewLong, Example: previewExample}
	command.AddCommand(c.previewCreateCommand(), c.previewListCommand(), c.previewRevokeCommand(), c.previewOpenCommand())
	return command
}

// previews opens the store of links. Close it.
func previews(o preview.Options) (*preview.Store, error) {
	store, err := vms()
	if err != nil {
		return nil, err
	}
	return preview.OpenStore(store.PreviewPath(), o)
}

// link is what preview create and ls print of a preview with --json.
type link struct {
	ID      string    `json:"id"`
	VM      string    `json:"vm"`
	Port    uint16    `json:"port"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
	State   linkState `json:"state"`
	URL     string    `json:"url,omitempty"`
	PathURL string    `json:"pathUrl,omitempty"` // for clients that do not resolve names below localhost
}

// linkState says whether a link leads anywhere.
type linkState string

const (
	linkReady   linkState = "ready"
	linkStopped linkState = "stopped" // the VM does not run; when it does, the link leads there again
	linkGone    linkState = "gone"    // the VM was removed
)

// linkTo returns what to print of a preview of a VM with that identity.
func linkTo(p preview.Preview, of client.Identity, state linkState) link {
	l := link{ID: p.ID, VM: p.VM, Port: p.Port, Created: p.Created, Expires: p.Expires, State: state}
	if of.PreviewPort != 0 && state != linkGone {
		l.URL, l.PathURL = p.URL(of.PreviewPort), p.PathURL(of.PreviewPort)
	}
	return l
}

const previewCreateLong = `Makes a link to a port of a VM that runs, and prints it. With it a browser on the host sees what listens there, as if it were
http://localhost:PORT in the VM. It is valid for an hour unless --expires says otherwise, and for 24 hours at most, or as long as
the VM's agentvm.toml says ([preview] max-expires-in-seconds).

The link is a secret: whoever has it needs nothing else.`

func (c *cli) previewCreateCommand() *cobra.Command {
	var lifetime time.Duration
	var asJSON bool
	command := &cobra.Command{
		Use: "create [flags] NAME PORT", Short: "Make a link to a port of a VM", Long: previewCreateLong, Args: counted(2, 2), ValidArgsFunction: completeNames(1),
		Example: "  agentvm preview create dev 3000\n  agentvm preview create dev 3000 --expires 10m --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			port, err := guestPort(args[1])
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("expires") && lifetime < time.Second {
				return fmt.Errorf("--expires %v: want a time of a second or more, as 10m or 2h", lifetime)
			}
			return withVM(cmd.Context(), args[0], func(v *client.VM) error { return c.createPreview(cmd.Context(), v, port, lifetime, asJSON) })
		},
	}
	durationFlag(command.Flags(), &lifetime, "expires", "", 0, "how long the link is valid, such as 10m or 2h (default 1h)")
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return command
}

// guestPort reads a port that something in a VM may listen on.
func guestPort(text string) (uint16, error) {
	port, err := parsePort(text)
	if err != nil {
		return 0, fmt.Errorf("port %q: want a port of the VM, from 1 to 65535", text)
	}
	return port, nil
}

// newPreview makes a link to a port of a VM.
func newPreview(ctx context.Context, v *client.VM, port uint16, lifetime time.Duration) (link, error) {
	config, err := v.Config(ctx)
	if err != nil {
		return link{}, err
	}
	if err := config.Access.DecideFetch(port); err != nil {
		return link{}, fmt.Errorf("preview of port %d of %s: %w", port, v.Name(), err)
	}
	place, err := v.Preview(ctx)
	if err != nil {
		return link{}, err
	}
	store, err := previews(preview.Options{MaxLifetime: time.Duration(config.PreviewMaxLifetime)})
	if err != nil {
		return link{}, err
	}
	defer store.Close()
	made, err := store.Create(ctx, v.Name(), place.ID, port, lifetime)
	if err != nil {
		return link{}, err
	}
	return linkTo(made, place, linkReady), nil
}

func (c *cli) createPreview(ctx context.Context, v *client.VM, port uint16, lifetime time.Duration, asJSON bool) error {
	shown, err := newPreview(ctx, v, port, lifetime)
	if err != nil {
		return err
	}
	c.warnSilent(ctx, v, port)
	if asJSON {
		return printJSON(c.stdout, shown)
	}
	fmt.Fprintln(c.stdout, shown.URL)
	c.printLinkExpiry(shown, lifetime)
	return nil
}

// listenTime is how long a VM is asked whether anything listens, which only a warning needs.
const listenTime = 5 * time.Second

// warnSilent says so when nothing listens at a port yet, or when that cannot be known.
func (c *cli) warnSilent(ctx context.Context, v *client.VM, port uint16) {
	ctx, cancel := context.WithTimeout(ctx, listenTime)
	defer cancel()
	list, err := v.Sockets(ctx)
	if err != nil {
		fmt.Fprintf(c.stderr, "agentvm: whether anything listens at port %d of %s is not known: %v\n", port, v.Name(), err)
		return
	}
	for _, s := range list {
		if s.Network == "tcp" && s.State == guestrpc.SocketListen && s.Local.Port() == port {
			return
		}
	}
	fmt.Fprintf(c.stderr, "agentvm: nothing listens at port %d of %s yet: until something does, visitors see a page that says so\n", port, v.Name())
}

// printLinkExpiry says how long a link is good, above all when that is less than was asked for.
func (c *cli) printLinkExpiry(l link, asked time.Duration) {
	cut := ""
	if given := l.Expires.Sub(l.Created); asked-given >= time.Second {
		cut = fmt.Sprintf(", %v and not %v, for that is the most", given, asked)
	}
	fmt.Fprintf(c.stderr, "agentvm: preview %s of port %d of %s is good until %s%s; agentvm preview revoke %s ends it\n",
		l.ID, l.Port, l.VM, l.Expires.Local().Format(time.DateTime), cut, l.ID)
}

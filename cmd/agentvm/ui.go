package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"

	"github.com/spf13/cobra"

	"agentvm/egress"
	api "agentvm/internal/api/serve"
	"agentvm/internal/api/ui"
)

const uiLong = `Serves a page with the VMs of the store: what they use, terminals, files, logs, connections with what was denied and buttons to allow it, previews,
snapshots and forks.

The page is at this host's loopback, for whoever opens the link that this command prints. The link works once; press Enter here for another one.
The open page lasts until this command ends, or the tab is closed. Nothing is kept in cookies.

From another host: ssh -L 8481:127.0.0.1:8481 HOST agentvm ui --listen 127.0.0.1:8481`

// uiFlags are the flags of ui.
type uiFlags struct {
	listen string
	open   bool
	audit  auditFlag
}

func (c *cli) uiCommand() *cobra.Command {
	var f uiFlags
	command := &cobra.Command{
		Use: "ui [flags]", Short: "Serve a page with the VMs, for a browser on this host", Long: uiLong, Args: cobra.NoArgs,
		Example: "  agentvm ui\n  agentvm ui --open",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s := newSession(shellInterruptWindow)
			ctx := s.begin(cmd.Context())
			defer s.end()
			return s.explain(c.ui(ctx, f))
		},
	}
	command.Flags().StringVar(&f.listen, "listen", "127.0.0.1:0", "listen at `ADDRESS:PORT` of the loopback; port 0 takes one that is free")
	command.Flags().BoolVar(&f.open, "open", false, "open the link in the default browser")
	f.audit.register(command.Flags())
	return command
}

// ui serves until it is interrupted.
func (c *cli) ui(ctx context.Context, f uiFlags) (err error) {
	store, err := vms()
	if err != nil {
		return err
	}
	place, placeErr := openProjectPlace()
	if placeErr == nil {
		defer place.Close()
	}
	home, _ := os.UserHomeDir() // without one ~ means nothing
	audit, file, err := f.audit.open(c.log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	server, err := ui.New(ui.Options{
		API: api.Options{Store: store, Saved: savedAPI{c, store}, Previews: previewAPI{}, Version: version, Audit: audit, Logger: c.log},
		WriteRule: func(text string, allow bool) (string, error) {
			rule, err := egress.ParseRule(text)
			if err = errors.Join(placeErr, err); err != nil {
				return "", err
			}
			return place.writeRule(rule, allow)
		},
		Home:   home,
		Logger: c.log,
	})
	if err != nil {
		return err
	}
	folder, err := linkFolder()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var opening sync.WaitGroup
	defer opening.Wait()
	defer cancel()
	return server.Serve(ctx, f.listen, func() {
		link := server.Link()
		fmt.Fprintln(c.stdout, link)
		if f.open {
			opening.Go(func() {
				if err := browse(ctx, opener(runtime.GOOS), folder, link, openerTime, redirectTime); err != nil {
					fmt.Fprintf(c.stderr, "agentvm: %v\n", err)
				}
			})
		}
		if isTerminal(c.stdin) && isTerminal(c.stderr) {
			fmt.Fprintln(c.stderr, "agentvm: open the link in a browser; it works once. Enter prints another one, Ctrl-C ends.")
			go c.printLinks(server)
		}
	})
}

// printLinks prints a link for each line that is typed. It ends with the program: nothing can end a read of a terminal.
func (c *cli) printLinks(server *ui.Server) {
	for lines := bufio.NewScanner(c.stdin); lines.Scan(); {
		fmt.Fprintln(c.stdout, server.Link())
	}
}

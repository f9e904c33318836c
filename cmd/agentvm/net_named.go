package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"agentvm/client"
)

// What net does with -n NAME: it asks a VM that runs instead of reading a file.

// fileOrName returns the file or the name of the VM that a command is about, which takes a FILE or -n NAME. Without a file of the name, a VM's
// name will do.
func fileOrName(name string, args []string) (file, vm string, err error) {
	switch {
	case name == "" && len(args) == 0:
		return "", "", errors.New("name a FILE of --net-log, or a VM with -n NAME")
	case name != "" && len(args) > 0:
		return "", "", errors.New("either a FILE or -n NAME, not both")
	case name != "":
		return "", name, nil
	}
	if _, err := os.Stat(args[0]); errors.Is(err, fs.ErrNotExist) && isMade(args[0]) {
		return "", args[0], nil
	}
	return args[0], "", nil
}

// liveFlow is what net flows -n --json prints of each flow that is open.
type liveFlow struct {
	Flow      uint64    `json:"flow"`
	State     string    `json:"state"`
	Protocol  string    `json:"protocol"`
	Direction string    `json:"direction"`
	Source    string    `json:"source"`
	Target    string    `json:"target"`
	Process   string    `json:"process,omitempty"`
	Opened    time.Time `json:"opened"`
	Sent      uint64    `json:"sent"`
	Received  uint64    `json:"received"`
}

// liveFlows is never nil.
func liveFlows(ctx context.Context, name string) ([]liveFlow, error) {
	list := []liveFlow{}
	err := withVM(ctx, name, func(v *client.VM) error {
		flows, err := v.Flows(ctx)
		for _, f := range flows {
			list = append(list, liveFlow{
				f.ID, fmt.Sprint(f.State), f.Protocol, fmt.Sprint(f.Direction), f.Source.String(), f.Destination.String(), f.Process,
				f.Opened, f.Sent, f.Received,
			})
		}
		return err
	})
	return list, err
}

func (c *cli) printFlowsOf(ctx context.Context, name string, asJSON bool) error {
	list, err := liveFlows(ctx, name)
	switch {
	case err != nil:
		return err
	case asJSON:
		return printJSON(c.stdout, list)
	}
	return printLiveFlows(c.stdout, list)
}

func printLiveFlows(w io.Writer, list []liveFlow) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "FLOW\tSTATE\tPROTOCOL\tDIRECTION\tOPENED\tSENT\tRECEIVED\tSOURCE\tTARGET\tPROCESS")
	for _, f := range list {
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", f.Flow, f.State, f.Protocol, f.Direction, f.Opened.Local().Format("15:04:05"),
			bytesText(int64(f.Sent)), bytesText(int64(f.Received)), f.Source, f.Target, printable(f.Process))
	}
	return table.Flush()
}

// explainNamed asks a VM what its policy decides.
func explainNamed(ctx context.Context, name, text string) (*explanation, error) {
	t, err := parseDestination(text)
	if err != nil {
		return nil, err
	}
	e := &explanation{Target: text}
	err = withVM(ctx, name, func(v *client.VM) (err error) {
		e.Decision, err = v.Explain(ctx, strings.TrimSuffix(t.host, "."), t.port, t.protocol)
		return err
	})
	return e, err
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"agentvm/egress"
)

const netFlowsLong = `Prints the connections that a file of --net-log records, those that are open and those that have ended. While the
VM runs the file grows, so this is the state of the moment. With the NAME of a running VM (-n NAME where a file has the same name) it
prints the VM's open connections.`

// flowState says whether a recorded flow is open, and how it ended otherwise.
type flowState string

const (
	flowOpen    flowState = "open"
	flowClosed  flowState = "closed"
	flowCut     flowState = "cut"     // by a new policy
	flowUnknown flowState = "unknown" // its VM ended without recording the flow's end
)

// recordedFlow is what net flows --json prints of each.
type recordedFlow struct {
	Flow     uint64    `json:"flow"`
	State    flowState `json:"state"`
	Protocol string    `json:"protocol"`
	Source   string    `json:"source"`
	Target   string    `json:"target"`
	Process  string    `json:"process,omitempty"`
	Opened   time.Time `json:"opened"`
	Seconds  float64   `json:"seconds,omitempty"` // of a flow that has ended
	Sent     int64     `json:"sent"`              // of a flow that has ended
	Received int64     `json:"received"`          // of a flow that has ended
}

func (c *cli) netFlowsCommand() *cobra.Command {
	var asJSON, open bool
	var name string
	command := &cobra.Command{
		Use: "flows [flags] NAME | FILE", Short: "Print the connections of a network log, or of a running VM",
		Long:    netFlowsLong,
		Example: "  agentvm exec --net-log net.jsonl \"apk add curl\" & sleep 5; agentvm net flows --open net.jsonl\n  agentvm net flows dev",
		Args:    counted(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, vm, err := fileOrName(name, args)
			switch {
			case err != nil:
				return err
			case vm != "":
				return c.printFlowsOf(cmd.Context(), vm, asJSON)
			}
			list, err := recordedFlows(cmd.Context(), file)
			if err != nil {
				return err
			}
			if open {
				list = openFlows(list)
			}
			if asJSON {
				return printJSON(c.stdout, append([]*recordedFlow{}, list...)) // [] when there is none
			}
			return printFlows(c.stdout, list)
		},
	}
	nameFlag(command, &name, "ask the running VM of this `NAME` for its open connections")
	command.Flags().BoolVar(&open, "open", false, "only those that are open")
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON array")
	return command
}

// recordedFlows reads a log. A VM that starts to write to the same file counts its flows from 1 again.
func recordedFlows(ctx context.Context, path string) ([]*recordedFlow, error) {
	var list []*recordedFlow
	open := make(map[uint64]*recordedFlow)
	err := readLines(ctx, path, nil, func(line []byte) error {
		var e egress.Event
		switch err := json.Unmarshal(line, &e); {
		case err != nil:
		case e.Kind == egress.KindPolicy && e.Reason == egress.ReasonStart:
			for _, f := range open {
				f.State = flowUnknown
			}
			clear(open)
		case e.Flow == 0, e.Kind != egress.KindTCP && e.Kind != egress.KindUDP: // an echo is no connection
		case e.Verdict == egress.VerdictAllow:
			f := &recordedFlow{
				Flow: e.Flow, State: flowOpen, Protocol: e.Kind, Source: e.Source.String(), Target: eventTarget(e), Process: e.Process, Opened: e.Time,
			}
			list, open[e.Flow] = append(list, f), f
		case open[e.Flow] != nil:
			open[e.Flow].end(e)
			if e.Verdict == egress.VerdictClose {
				delete(open, e.Flow)
			}
		}
		return nil
	})
	return list, err
}

// end notes what an event about the flow's end says.
func (f *recordedFlow) end(e egress.Event) {
	switch e.Verdict {
	case egress.VerdictDeny:
		f.State = flowCut
	case egress.VerdictClose:
		f.Sent, f.Received, f.Seconds = e.Sent, e.Received, e.Duration
		if f.State == flowOpen {
			f.State = flowClosed
		}
	}
	if e.Process != "" {
		f.Process = e.Process
	}
}

func openFlows(list []*recordedFlow) (open []*recordedFlow) {
	for _, f := range list {
		if f.State == flowOpen {
			open = append(open, f)
		}
	}
	return open
}

func printFlows(w io.Writer, list []*recordedFlow) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "FLOW\tSTATE\tPROTOCOL\tOPENED\tTIME\tSENT\tRECEIVED\tSOURCE\tTARGET\tPROCESS")
	for _, f := range list {
		lasted, sent, received := "", "", ""
		if f.State == flowClosed || f.State == flowCut {
			lasted = time.Duration(f.Seconds * float64(time.Second)).Round(time.Millisecond).String()
			sent, received = bytesText(f.Sent), bytesText(f.Received)
		}
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", f.Flow, f.State, f.Protocol, f.Opened.Local().Format("15:04:05"),
			lasted, sent, received, f.Source, printable(f.Target), printable(f.Process))
	}
	return table.Flush()
}

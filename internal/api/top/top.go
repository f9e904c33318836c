// Package top shows, in a terminal, what the VMs of a store use and which connections they make, and lets its user act on that. It asks the
// daemons, and reads the logs of the networks; guests are asked only where the host cannot count itself.
//
// The model belongs to the goroutine of its program (charm.land/bubbletea/v2). Whatever waits runs as a command of it, in a goroutine of its own,
// and comes back as a message.
package top

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	tea "charm.land/bubbletea/v2"

	"agentvm/client"
	"agentvm/egress"
	"agentvm/vm"
)

// VM is one line of the list.
type VM struct {
	Name     string       `json:"name"`
	State    client.State `json:"state"`
	CPU      float64      `json:"cpu"`            // processors of the host that it keeps busy
	Memory   uint64       `json:"memory"`         // bytes of the host
	Disk     int64        `json:"disk"`           // bytes of the host's disk
	Received float64      `json:"receivedPerSec"` // bytes per second
	Sent     float64      `json:"sentPerSec"`     // bytes per second
	Denied   uint64       `json:"denied"`         // connections and look-ups since its start
	Open     int          `json:"connections"`    // that are open
	Started  time.Time    `json:"started,omitzero"`
	Jobs     int          `json:"jobs"` // that run
	Health   string       `json:"health,omitempty"`
	Error    string       `json:"error,omitempty"`

	Sidecars []client.SidecarInfo `json:"sidecars,omitempty"`
}

// Connection is an event of a VM's network.
type Connection struct {
	VM string
	egress.Event
}

// Reading is what is known at one moment. Connections are those since the reading before, oldest first.
type Reading struct {
	At          time.Time
	VMs         []VM
	Connections []Connection
}

// Source is where readings come from, and what is done with VMs. Read is called by one goroutine at a time; the others at any time.
type Source interface {
	Read(ctx context.Context) (Reading, error)
	// Change has the VM's policy allow or deny what a rule is about, and returns how many connections that has cut.
	Change(ctx context.Context, name string, rule egress.Rule, allow bool) (cut int, err error)
	Pause(ctx context.Context, name string) error
	Resume(ctx context.Context, name string) error
	Stop(ctx context.Context, name string) error
	Jobs(ctx context.Context, name string) ([]vm.JobInfo, error)
	Output(ctx context.Context, name, job string) ([]byte, error)
	// Log returns the end of the log of the VM's daemon.
	Log(ctx context.Context, name string) ([]byte, error)
}

// Config configures Run.
type Config struct {
	Source Source
	// Shell opens a shell in a VM on the terminal. nil: there is none.
	Shell func(name string) error
	// WriteRule adds a rule to the project file and says what it has done. nil: there is none.
	WriteRule func(rule egress.Rule, allow bool) (string, error)
	Input     io.Reader // a terminal. Default: standard input
	Output    io.Writer // a terminal. Default: standard output
	Environ   []string  // default: the process's
}

// framesPerSecond is how often the screen is drawn at most; bubbletea's own 60 cost more of a processor than everything else here.
const framesPerSecond = 10

// Run shows the monitor until its user leaves or ctx ends.
func Run(ctx context.Context, c Config) error {
	if c.Environ == nil {
		c.Environ = os.Environ()
	}
	options := []tea.ProgramOption{tea.WithContext(ctx), tea.WithFPS(framesPerSecond), tea.WithEnvironment(c.Environ)}
	if c.Input != nil {
		options = append(options, tea.WithInput(c.Input))
	}
	if c.Output != nil {
		options = append(options, tea.WithOutput(c.Output))
	}
	_, err := tea.NewProgram(newModel(ctx, c), options...).Run()
	if err != nil && ctx.Err() != nil {
		return nil
	}
	return err
}

// onceTime is between the two readings from which Once computes rates.
const onceTime = 500 * time.Millisecond

// Once returns one reading with rates.
func Once(ctx context.Context, s Source) (Reading, error) {
	if _, err := s.Read(ctx); err != nil {
		return Reading{}, err
	}
	select {
	case <-time.After(onceTime):
	case <-ctx.Done():
		return Reading{}, ctx.Err()
	}
	return s.Read(ctx)
}

// Print writes a reading's VMs as a table.
func Print(w io.Writer, r Reading) error {
	for _, line := range vmTable(r.VMs, r.At) {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

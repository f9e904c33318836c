package serve

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"agentvm/client"
	"agentvm/egress"
	"agentvm/vm"
)

// Stats are what a VM uses. All but the last three fields is what the guest reports, which a program with its root rights can falsify.
type Stats struct {
	UptimeSeconds   float64 `json:"uptimeSeconds"`
	CPUSeconds      float64 `json:"cpuSeconds" jsonschema:"processor time since the boot"`
	Load            float64 `json:"load" jsonschema:"average of the last minute"`
	MemoryTotal     uint64  `json:"memoryTotal" jsonschema:"bytes"`
	MemoryAvailable uint64  `json:"memoryAvailable" jsonschema:"bytes"`
	Processes       int     `json:"processes"`
	SentBytes       uint64  `json:"sentBytes" jsonschema:"by the guest, as the host counts"`
	ReceivedBytes   uint64  `json:"receivedBytes"`
	Denied          uint64  `json:"denied" jsonschema:"connections and look-ups"`
}

// Flow is a connection that is open.
type Flow struct {
	ID          uint64    `json:"id"`
	Protocol    string    `json:"protocol"`
	Direction   string    `json:"direction"`
	Source      string    `json:"source"`
	Destination string    `json:"destination"`
	Process     string    `json:"process,omitempty" jsonschema:"as the guest reports"`
	Opened      time.Time `json:"opened"`
	Sent        uint64    `json:"sent"`
	Received    uint64    `json:"received"`
}

// Target names a destination as a rule does.
type Target struct {
	Rule string `json:"rule" jsonschema:"HOST[:PORTS[/PROTOCOL]]"`
}

// NetworkEvent is an event of the log with what can be done about it.
type NetworkEvent struct {
	egress.Event
	Target    string `json:"target,omitempty" jsonschema:"a rule for it"`
	Allowable bool   `json:"allowable,omitempty" jsonschema:"it was denied, and a rule would allow it"`
}

const (
	logBacklog = 256 << 10 // bytes of the log with which a stream begins
	logPause   = 200 * time.Millisecond
)

func (s *Server) watchRoutes() []route {
	return []route{
		call("GET", "/v1/vms/{vm}/stats", "Shows what a VM uses", func(r *http.Request, _ struct{}) (Stats, error) {
			v, err := s.open(r)
			if err != nil {
				return Stats{}, err
			}
			defer v.Close()
			return statsOf(r.Context(), v)
		}),
		call("GET", "/v1/vms/{vm}/network/flows", "Lists the open connections", func(r *http.Request, _ struct{}) ([]Flow, error) {
			v, err := s.open(r)
			if err != nil {
				return nil, err
			}
			defer v.Close()
			list, err := v.Flows(r.Context())
			out := make([]Flow, 0, len(list))
			for _, f := range list {
				out = append(out, flowOf(f))
			}
			return out, err
		}),
		call("POST", "/v1/vms/{vm}/network/allow", "Changes the policy at once to allow a destination", s.changePolicy(s.allowing)),
		call("POST", "/v1/vms/{vm}/network/deny", "Changes the policy at once to deny a destination; connections to it are cut", s.changePolicy(
			func(p egress.Policy, r egress.Rule) (egress.Policy, error) { return p.Denying(r), nil })),
		{
			method: "GET", path: "/v1/vms/{vm}/network/events", summary: "Sends the last 256 KiB of the network's log, and what follows while it grows, as events named network",
			rawOut: "text/event-stream", status: http.StatusOK, stream: true, serve: s.networkEvents, events: map[string]any{"network": json.RawMessage(nil)},
		},
	}
}

func statsOf(ctx context.Context, v client.AnyVM) (Stats, error) {
	guest, err := v.Stats(ctx)
	if err != nil {
		return Stats{}, err
	}
	out := Stats{
		UptimeSeconds: guest.Uptime.Seconds(), CPUSeconds: (guest.User + guest.System).Seconds(), Load: guest.Load1,
		MemoryTotal: guest.MemoryTotal, MemoryAvailable: guest.MemoryAvailable, Processes: guest.Processes,
	}
	if network, err := v.NetworkStats(ctx); err == nil { // it may have no network
		out.SentBytes, out.ReceivedBytes = network.Link.BytesFromGuest, network.Link.BytesToGuest
		out.Denied = network.Egress.Denied + network.Egress.Refused
	}
	return out, nil
}

func flowOf(f vm.Flow) Flow {
	return Flow{
		ID: f.ID, Protocol: f.Protocol, Direction: string(f.Direction), Source: f.Source.String(), Destination: f.Destination.String(), Process: f.Process,
		Opened: f.Opened, Sent: f.Sent, Received: f.Received,
	}
}

func (s *Server) allowing(p egress.Policy, r egress.Rule) (egress.Policy, error) {
	then, err := p.Allowing(r)
	if err == nil && s.options.Most != nil {
		err = forbidden(then.Within(s.most().Policy))
	}
	return then, err
}

func (s *Server) changePolicy(change func(egress.Policy, egress.Rule) (egress.Policy, error)) func(*http.Request, Target) (Change, error) {
	return func(r *http.Request, in Target) (Change, error) {
		rule, err := egress.ParseRule(in.Rule)
		if err != nil {
			return Change{}, invalid("%v", err)
		}
		v, err := s.open(r)
		if err != nil {
			return Change{}, err
		}
		defer v.Close()
		policy, cut, err := client.ChangePolicy(r.Context(), v, func(p egress.Policy) (egress.Policy, error) { return change(p, rule) })
		return Change{policyOf(policy), cut}, err
	}
}

// networkEvents follows the log, whether the VM runs or not, until the client goes.
func (s *Server) networkEvents(w http.ResponseWriter, r *http.Request) {
	log, err := s.options.Store.NetworkLog(r.PathValue("vm"), logBacklog)
	if err != nil {
		WriteProblem(w, err)
		return
	}
	defer log.Close()
	e := newEvents(w)
	defer e.close()
	pause := time.NewTicker(logPause)
	defer pause.Stop()
	for {
		var failed error
		err := log.Poll(func(event egress.Event) {
			if failed == nil {
				failed = e.send("network", networkEventOf(event))
			}
		})
		if err != nil {
			_ = e.send("error", problemOf(err))
		}
		if err != nil || failed != nil {
			return
		}
		select {
		case <-pause.C:
		case <-r.Context().Done():
			return
		}
	}
}

func networkEventOf(e egress.Event) NetworkEvent {
	out := NetworkEvent{Event: e}
	if rule, err := e.AsRule(); err == nil {
		out.Target, out.Allowable = rule.String(), e.Allowable()
	}
	return out
}

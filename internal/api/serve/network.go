package serve

import (
	"context"
	"net/http"
	"net/netip"
	"time"

	"agentvm/client"
	"agentvm/egress"
	"agentvm/nat"
)

// Change is what a new policy has done.
type Change struct {
	Policy
	Cut int `json:"cut" jsonschema:"how many connections it has ended"`
}

// Denial is a connection or look-up that the policy has refused.
type Denial struct {
	Time        time.Time `json:"time"`
	Kind        string    `json:"kind"`
	Destination string    `json:"destination,omitempty"`
	Names       []string  `json:"names,omitempty"`
	Process     string    `json:"process,omitempty"`
	Message     string    `json:"message"`
}

// Listener is a port of the guest at which a program listens.
type Listener struct {
	Network string `json:"network" jsonschema:"tcp or udp"`
	Address string `json:"address"`
	Process string `json:"process,omitempty"`
	PID     int    `json:"pid,omitempty"`
}

// NewForward opens a port of the host.
type NewForward struct {
	Port     uint16 `json:"port" jsonschema:"of the guest"`
	HostPort uint16 `json:"hostPort,omitempty" jsonschema:"of the host's loopback; default: any"`
	Protocol string `json:"protocol,omitempty" jsonschema:"tcp, the default, or udp"`
}

// Forward is a port of the host that leads to one of the guest while the VM runs.
type Forward struct {
	Address string `json:"address"`
}

func (s *Server) networkRoutes() []route {
	return []route{
		call("GET", "/v1/vms/{vm}/network", "Shows the policy of a VM's network", func(r *http.Request, _ struct{}) (Policy, error) {
			v, err := s.open(r)
			if err != nil {
				return Policy{}, err
			}
			defer v.Close()
			policy, err := v.Policy(r.Context())
			return policyOf(policy), err
		}),
		call("PUT", "/v1/vms/{vm}/network", "Replaces the policy at once; connections that the new one denies are cut", func(r *http.Request, in Policy) (Change, error) {
			policy, err := s.policy(in)
			if err != nil {
				return Change{}, err
			}
			v, err := s.open(r)
			if err != nil {
				return Change{}, err
			}
			defer v.Close()
			cut, err := v.ReplacePolicy(r.Context(), in.Version, policy)
			return Change{policyOf(policy), cut}, err
		}),
		call("GET", "/v1/vms/{vm}/network/denials", "Lists the latest denials, newest last", func(r *http.Request, _ struct{}) ([]Denial, error) {
			v, err := s.open(r)
			if err != nil {
				return nil, err
			}
			defer v.Close()
			list, err := v.Denials(r.Context())
			out := make([]Denial, 0, len(list))
			for _, e := range list {
				out = append(out, denialOf(e))
			}
			return out, err
		}),
		call("GET", "/v1/vms/{vm}/ports", "Lists the ports at which the VM's programs listen, as the guest reports", func(r *http.Request, _ struct{}) ([]Listener, error) {
			v, err := s.open(r)
			if err != nil {
				return nil, err
			}
			defer v.Close()
			list, err := v.Sockets(r.Context())
			out := []Listener{}
			for _, socket := range list {
				if client.Listens(socket) {
					out = append(out, Listener{socket.Network, socket.Local.String(), socket.Process, socket.PID})
				}
			}
			return out, err
		}),
		call("POST", "/v1/vms/{vm}/ports", "Opens a port of this host's loopback that leads to a port of the VM", func(r *http.Request, in NewForward) (Forward, error) {
			forward := nat.Forward{Protocol: in.Protocol, Listen: netip.AddrPortFrom(netip.Addr{}, in.HostPort), GuestPort: in.Port}
			if err := forward.Check(); err != nil {
				return Forward{}, invalid("%v", err)
			}
			v, err := s.open(r)
			if err != nil {
				return Forward{}, err
			}
			defer v.Close()
			at, err := v.Forward(context.WithoutCancel(r.Context()), forward)
			if err != nil {
				return Forward{}, err
			}
			return Forward{at.String()}, nil
		}),
	}
}

func denialOf(e egress.Event) Denial {
	out := Denial{Time: e.Time, Kind: e.Kind, Names: e.Names, Process: e.Process, Message: e.Message}
	if e.Destination.IsValid() {
		out.Destination = e.Destination.String()
	}
	return out
}

package serve

import (
	"net/http"
	"time"

	"agentvm/client"
)

// Snapshot describes a snapshot.
type Snapshot struct {
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	Comment string    `json:"comment,omitempty"`
	Bytes   int64     `json:"bytes" jsonschema:"on the host's disk"`
	VM      string    `json:"vm,omitempty" jsonschema:"the VM that was saved"`
}

// NewSnapshot names one.
type NewSnapshot struct {
	Name    string `json:"name"`
	Comment string `json:"comment,omitempty"`
}

// Restored names the VM that continues from a snapshot.
type Restored struct {
	Name string `json:"name"`
}

// Forks are VMs that continue from where another one is.
type Forks struct {
	Names        []string `json:"names" jsonschema:"of the new VMs"`
	KeepPrograms bool     `json:"keepPrograms,omitempty" jsonschema:"programs run on in the forks; their output is lost"`
}

const maxForks = 64

func (s *Server) savedRoutes() []route {
	return []route{
		call("GET", "/v1/snapshots", "Lists the snapshots", func(r *http.Request, _ struct{}) ([]Snapshot, error) {
			list, err := s.options.Saved.List(r.Context())
			if list == nil {
				list = []Snapshot{}
			}
			return list, err
		}),
		call("POST", "/v1/vms/{vm}/snapshots", "Saves a VM, which runs on", func(r *http.Request, in NewSnapshot) (none struct{}, err error) {
			if err := client.CheckName(in.Name); err != nil {
				return none, invalid("%v", err)
			}
			return none, s.options.Saved.Create(r.Context(), r.PathValue("vm"), in.Name, in.Comment)
		}),
		call("POST", "/v1/snapshots/{snapshot}/restore", "Makes a VM that continues from a snapshot", func(r *http.Request, in Restored) (VM, error) {
			if err := client.CheckName(in.Name); err != nil {
				return VM{}, invalid("%v", err)
			}
			if err := s.options.Saved.Restore(r.Context(), r.PathValue("snapshot"), in.Name, s.permit); err != nil {
				return VM{}, err
			}
			return s.describe(r.Context(), in.Name)
		}),
		call("DELETE", "/v1/snapshots/{snapshot}", "Removes a snapshot", func(r *http.Request, _ struct{}) (none struct{}, err error) {
			return none, s.options.Saved.Remove(r.Context(), r.PathValue("snapshot"))
		}),
		call("POST", "/v1/vms/{vm}/forks", "Makes VMs that continue from where this one is", func(r *http.Request, in Forks) ([]VM, error) {
			if len(in.Names) == 0 || len(in.Names) > maxForks {
				return nil, invalid("names: want 1 to %d names of new VMs", maxForks)
			}
			for _, name := range in.Names {
				if err := client.CheckName(name); err != nil {
					return nil, invalid("%v", err)
				}
			}
			v, err := s.open(r)
			if err != nil {
				return nil, err
			}
			defer v.Close()
			config, err := v.Config(r.Context())
			if err == nil {
				err = s.permit(config.Network)
			}
			if err != nil {
				return nil, err
			}
			if err := v.Fork(r.Context(), in.Names, client.ForkOptions{KeepPrograms: in.KeepPrograms}); err != nil {
				return nil, err
			}
			out := make([]VM, 0, len(in.Names))
			for _, name := range in.Names {
				fork, err := s.describe(r.Context(), name)
				if err != nil {
					return nil, err
				}
				out = append(out, fork)
			}
			return out, nil
		}),
	}
}

package serve

import (
	"context"
	"net/http"
	"time"
)

// Preview is a link to a server in a VM.
type Preview struct {
	ID      string    `json:"id"`
	VM      string    `json:"vm"`
	Port    uint16    `json:"port"`
	Expires time.Time `json:"expires"`
	State   string    `json:"state" jsonschema:"ready, stopped or gone"`
	URL     string    `json:"url,omitempty" jsonschema:"a secret: whoever has it needs nothing else"`
}

// NewPreview says which port a link leads to.
type NewPreview struct {
	Port            uint16  `json:"port"`
	LifetimeSeconds float64 `json:"lifetimeSeconds,omitempty" jsonschema:"default 3600"`
}

// Previews has the links to servers in VMs.
type Previews interface {
	List(ctx context.Context, vm string) ([]Preview, error)
	Create(ctx context.Context, vm string, port uint16, lifetime time.Duration) (Preview, error)
	Revoke(ctx context.Context, id string) error
}

func (s *Server) previewRoutes() []route {
	if s.options.Previews == nil {
		return nil
	}
	return []route{
		call("GET", "/v1/vms/{vm}/previews", "Lists the links to servers in a VM, with their secrets", func(r *http.Request, _ struct{}) ([]Preview, error) {
			list, err := s.options.Previews.List(r.Context(), r.PathValue("vm"))
			if list == nil {
				list = []Preview{}
			}
			return list, err
		}),
		call("POST", "/v1/vms/{vm}/previews", "Makes a link to a server in a VM, for browsers on the server's host", func(r *http.Request, in NewPreview) (Preview, error) {
			lifetime, err := seconds("lifetimeSeconds", in.LifetimeSeconds)
			if err == nil && in.Port == 0 {
				err = invalid("port: want 1 to 65535")
			}
			if err != nil {
				return Preview{}, err
			}
			return s.options.Previews.Create(r.Context(), r.PathValue("vm"), in.Port, lifetime)
		}),
		call("DELETE", "/v1/previews/{preview}", "Ends a link, and cuts the connections through it", func(r *http.Request, _ struct{}) (none struct{}, err error) {
			return none, s.options.Previews.Revoke(r.Context(), r.PathValue("preview"))
		}),
	}
}

package serve

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"math"
	"net/http"
	"reflect"
	"strings"
	"time"

	"agentvm/client"
	"agentvm/egress"
	"agentvm/images"
	"agentvm/internal/settings"
	"agentvm/vm"
)

// VM describes a VM.
type VM struct {
	Name     string            `json:"name"`
	State    string            `json:"state" jsonschema:"starting, running, paused, stopping, failed, or stopped and how"`
	Error    string            `json:"error,omitempty"`
	Image    string            `json:"image,omitempty"`
	Platform string            `json:"platform,omitempty" jsonschema:"as linux/arm64; missing until it is known"`
	CPUs     int               `json:"cpus,omitempty" jsonschema:"processors"`
	Memory   uint64            `json:"memory,omitempty" jsonschema:"bytes"`
	Started  *time.Time        `json:"started,omitempty"`
	Policy   string            `json:"policy,omitempty" jsonschema:"of its network, in one line"`
	Ports    []string          `json:"ports,omitempty" jsonschema:"ports of the host that lead into it"`
	Labels   map[string]string `json:"labels,omitempty"`
	Jobs     int               `json:"jobs,omitempty" jsonschema:"that run"`
	Health   string            `json:"health,omitempty"`
	Parent   string            `json:"parent,omitempty" jsonschema:"what it continues from: vm NAME or snapshot NAME"`
}

// NewVM is what a VM is made of.
type NewVM struct {
	Name         string            `json:"name,omitempty" jsonschema:"1 to 63 lower-case letters, digits, _ . and -; default: vm- and random digits"`
	Image        string            `json:"image,omitempty" jsonschema:"as agentvm run takes it; default alpine"`
	Platform     string            `json:"platform,omitempty" jsonschema:"linux/riscv64 or linux/arm64; default: what the image is for, riscv64 when it is for both"`
	CPUs         int               `json:"cpus,omitempty" jsonschema:"processors; default 1, several for linux/arm64 alone"`
	Memory       uint64            `json:"memory,omitempty" jsonschema:"bytes; default 512 MiB"`
	DiskSize     int64             `json:"diskSize,omitempty" jsonschema:"bytes; default 10 GiB"`
	Env          map[string]string `json:"env,omitempty"`
	Network      *Policy           `json:"network,omitempty" jsonschema:"default: every public address"`
	Labels       map[string]string `json:"labels,omitempty"`
	IdleSeconds  float64           `json:"idleSeconds,omitempty" jsonschema:"stop it after this time without clients and running jobs"`
	LifeSeconds  float64           `json:"lifeSeconds,omitempty" jsonschema:"stop it this time after its start"`
	ReadOnlyRoot bool              `json:"readOnlyRoot,omitempty"`

	MaxConnections int `json:"maxConnections,omitempty" jsonschema:"the maximum number of open TCP connections, up to 65535; default 1024"`
}

// Policy is that of a VM's network.
type Policy struct {
	Mode         string   `json:"mode,omitempty" jsonschema:"public, allowlist, none or open; default: public, or allowlist with an allow rule"`
	Allow        []string `json:"allow,omitempty" rules:"allow" jsonschema:"rules HOST[:PORTS[/PROTOCOL]]"`
	AllowSNI     []string `json:"allowSNI,omitempty" rules:"allow-sni" jsonschema:"rules for names that each TLS or HTTP connection must itself give"`
	AllowPrivate []string `json:"allowPrivate,omitempty" rules:"allow-private" jsonschema:"rules for private networks, such as 10.1.0.0/16:5432, which stay closed otherwise"`
	Deny         []string `json:"deny,omitempty" rules:"deny"`
	Version      string   `json:"version,omitempty" jsonschema:"of the policy that was read: the new policy replaces only that version, and the answer is 409 when another version holds; without it, any version is replaced"`
}

func (p Policy) egress() (policy egress.Policy, err error) {
	policy.Mode = egress.Mode(p.Mode)
	rules := make(map[string][]string)
	for list, texts := range settings.RuleFields(&p) {
		rules[list] = *texts
	}
	if err := policy.Add(rules); err != nil {
		return policy, invalid("%v", err)
	}
	if err := policy.Validate(); err != nil {
		return policy, invalid("%v", err)
	}
	return policy, nil
}

// policy reads a client's policy, which gets the deny rules that hold for all.
func (s *Server) policy(in Policy) (egress.Policy, error) {
	policy, err := in.egress()
	if err != nil || s.options.Most == nil {
		return policy, err
	}
	policy, err = policy.Under(s.most().Policy)
	return policy, forbidden(err)
}

// most is Options.Most, which is there, with what it says of no network as a policy.
func (s *Server) most() vm.Network { return vm.Network{}.Limited(*s.options.Most) }

// permit returns an error for a network that reaches more than Options.Most.
func (s *Server) permit(n vm.Network) error {
	if s.options.Most == nil {
		return nil
	}
	return forbidden(n.Within(s.most()))
}

func forbidden(err error) error {
	if err == nil {
		return nil
	}
	return problemf(http.StatusForbidden, "the VM would reach more than this server's flags say: %v", err)
}

func policyOf(p egress.Policy) Policy {
	out := Policy{Mode: string(p.Effective()), Version: p.Version()}
	for list, texts := range settings.RuleFields(&out) {
		*texts = p.Texts()[list]
	}
	return out
}

// StopRequest says how a VM is stopped.
type StopRequest struct {
	GraceSeconds *float64 `json:"graceSeconds,omitempty" jsonschema:"for programs to end; default 5"`
}

const defaultGrace = 5 * time.Second

func (s *Server) vmRoutes() []route {
	return []route{
		call("GET", "/v1/vms", "Lists the VMs", func(r *http.Request, _ struct{}) ([]VM, error) {
			list, err := s.options.Store.List(r.Context())
			out := make([]VM, 0, len(list))
			for _, status := range list {
				out = append(out, vmOf(status))
			}
			return out, err
		}),
		call("POST", "/v1/vms", "Makes and starts a VM", s.create),
		call("GET", "/v1/vms/{vm}", "Describes a VM", func(r *http.Request, _ struct{}) (VM, error) { return s.describe(r.Context(), r.PathValue("vm")) }),
		call("DELETE", "/v1/vms/{vm}", "Stops a VM and removes it with its files", func(r *http.Request, _ struct{}) (none struct{}, err error) {
			if _, err := s.options.Store.Stop(r.Context(), r.PathValue("vm"), 0); err != nil {
				return none, err
			}
			return none, s.options.Store.Remove(r.Context(), r.PathValue("vm"))
		}),
		call("POST", "/v1/vms/{vm}/start", "Starts a stopped VM", func(r *http.Request, _ struct{}) (VM, error) {
			config, err := s.options.Store.Config(r.PathValue("vm"))
			if err == nil {
				err = s.permit(config.Network)
			}
			if err != nil {
				return VM{}, err
			}
			return s.started(r.Context(), r.PathValue("vm"), s.options.Store.Start, config)
		}),
		call("POST", "/v1/vms/{vm}/stop", "Stops a VM; its files stay", func(r *http.Request, in StopRequest) (VM, error) {
			grace := defaultGrace
			if in.GraceSeconds != nil {
				var err error
				if grace, err = seconds("graceSeconds", *in.GraceSeconds); err != nil {
					return VM{}, err
				}
			}
			if _, err := s.options.Store.Stop(r.Context(), r.PathValue("vm"), grace); err != nil {
				return VM{}, err
			}
			return s.describe(r.Context(), r.PathValue("vm"))
		}),
		call("POST", "/v1/vms/{vm}/pause", "Stops a VM's processors", onVM(s, func(ctx context.Context, v *client.VM) error { return v.Pause(ctx) })),
		call("POST", "/v1/vms/{vm}/resume", "Has them run again", onVM(s, func(ctx context.Context, v *client.VM) error { return v.Resume(ctx) })),
	}
}

// onVM makes the function of a route that changes a VM.
func onVM(s *Server, do func(context.Context, *client.VM) error) func(*http.Request, struct{}) (VM, error) {
	return func(r *http.Request, _ struct{}) (VM, error) {
		v, err := s.open(r)
		if err != nil {
			return VM{}, err
		}
		defer v.Close()
		if err := do(r.Context(), v); err != nil {
			return VM{}, err
		}
		return s.describe(r.Context(), v.Name())
	}
}

// open connects to the VM of a request's path. It must run.
func (s *Server) open(r *http.Request) (*client.VM, error) {
	return s.options.Store.Open(r.Context(), r.PathValue("vm"))
}

func (s *Server) create(r *http.Request, in NewVM) (VM, error) { return s.Create(r.Context(), in) }

// Setting is a part of a new VM's configuration, with the name of the request's field that it comes from.
type Setting struct {
	Field string
	Set   func(*client.Config) error
}

// Create makes and starts a VM. More settings are what clients of the API cannot ask for. Errors of status 400 are *Problem and name a field.
func (s *Server) Create(ctx context.Context, in NewVM, more ...Setting) (VM, error) {
	name := cmp.Or(in.Name, "vm-"+randomDigits())
	if err := client.CheckName(name); err != nil {
		return VM{}, InField("name", err)
	}
	config, err := s.Config(in, more...)
	if err != nil {
		return VM{}, err
	}
	if !s.creates.try(name) {
		return VM{}, problemf(http.StatusConflict, "%s is being made", name)
	}
	defer s.creates.give(name)
	return s.started(ctx, name, s.options.Store.Create, config)
}

// Config is the configuration of a VM as Create makes it.
func (s *Server) Config(in NewVM, more ...Setting) (client.Config, error) {
	var config client.Config
	config.PublicRegistries = true // a client learns nothing of what this host reaches
	if s.options.Most != nil {
		config.Network = config.Network.Limited(*s.options.Most)
	}
	for _, one := range append(s.settings(in), more...) {
		err := one.Set(&config)
		if err == nil {
			err = config.Validate()
		}
		if err != nil {
			return config, InField(one.Field, err)
		}
	}
	return config, nil
}

// settings are those of a request: each field that package settings knows, and the policy.
func (s *Server) settings(in NewVM) (list []Setting) {
	for _, one := range settings.All() {
		value, ok := fieldNamed(in, one.JSON)
		if !ok {
			continue
		}
		list = append(list, Setting{one.JSON, func(c *client.Config) (err error) {
			if n, isSeconds := value.(float64); isSeconds {
				value, err = seconds(one.JSON, n)
			}
			if err == nil {
				err = refuse(one.Key, value)
			}
			if err != nil {
				return err
			}
			return one.Put(c.Settings(), value)
		}})
	}
	return append(list, Setting{"network", func(c *client.Config) (err error) {
		if in.Network != nil {
			c.Network.Policy, err = s.policy(*in.Network)
		}
		return err
	}})
}

// fieldNamed returns what a request has in the field of a name; nothing when it leaves the field out.
func fieldNamed(in NewVM, name string) (any, bool) {
	v := reflect.ValueOf(in)
	for i := range v.NumField() {
		if tag, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ","); tag == name && !v.Field(i).IsZero() {
			return v.Field(i).Interface(), true
		}
	}
	return nil, false
}

// refuse returns an error for a value that users of this host can give a VM and clients cannot.
func refuse(key string, value any) error {
	switch v := value.(type) {
	case string:
		if key == "image" && (images.NamesFile(v) || vm.IsModule(v)) {
			return invalid("image %q is a file of the server's host: agentvm image import it there, and name the image", v)
		}
	case map[string]string:
		for name, text := range v {
			if key == "env" && (name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(text, "\x00")) {
				return invalid("env: %q is no name of a variable, or its value has a NUL", name)
			}
		}
	}
	return nil
}

// started describes a VM that one of the store's functions has started.
func (s *Server) started(ctx context.Context, name string, start func(context.Context, string, client.Config, client.Progress) (*client.VM, error), config client.Config) (VM, error) {
	v, err := start(ctx, name, config, nil)
	if err != nil {
		return VM{}, err
	}
	defer v.Close()
	return s.describe(ctx, name)
}

func (s *Server) describe(ctx context.Context, name string) (VM, error) {
	status, err := s.options.Store.Status(ctx, name)
	if err != nil {
		return VM{}, err
	}
	return vmOf(status), nil
}

func vmOf(status client.Status) VM {
	out := VM{
		Name: status.Name, State: string(status.State), Error: status.Error, Image: cmp.Or(status.Image, status.Config.Image),
		Platform: cmp.Or(status.Platform, status.Config.Platform), CPUs: max(status.Config.CPUs, 1), Memory: status.Config.Memory,
		Labels: status.Config.Labels, Policy: status.Config.Network.Policy.String(), Parent: status.Config.Parent,
	}
	if out.Memory == 0 {
		out.Memory = vm.DefaultMemory
	}
	if i := status.Info; i != nil {
		out.Image, out.Platform, out.Memory = i.Image, cmp.Or(i.Platform, out.Platform), i.Memory
		out.Ports, out.Policy, out.Jobs, out.Health = i.Ports, i.Policy, i.Jobs, i.Health
		if !i.Started.IsZero() {
			out.Started = &i.Started
		}
	}
	return out
}

// seconds is a length of time of a request, which cannot be negative or longer than a century.
func seconds(name string, n float64) (time.Duration, error) {
	if n < 0 || n > 100*365*24*3600 || math.IsNaN(n) {
		return 0, invalid("%s: want a positive number", name)
	}
	return time.Duration(n * float64(time.Second)), nil
}

func randomDigits() string {
	b := make([]byte, 4)
	_, _ = rand.Read(b) // crypto/rand never fails
	return hex.EncodeToString(b)
}

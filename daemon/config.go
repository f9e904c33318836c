package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"agentvm/egress"
	"agentvm/mount"
	"agentvm/nat"
	"agentvm/preview"
	"agentvm/vm"
)

// Config is what a VM is started with, as config.json keeps it. The zero value is vm.Config's, with a disk that stays.
type Config struct {
	Image    string   `json:"image,omitempty"`
	Memory   uint64   `json:"memory,omitempty"` // bytes
	Hostname string   `json:"hostname,omitempty"`
	Env      []string `json:"env,omitempty"`    // KEY=VALUE
	Mounts   []string `json:"mounts,omitempty"` // as mount.Parse reads them, the host's path absolute
	Network  Network  `json:"network,omitzero"`
	Access   Access   `json:"access,omitzero"`

	// PreviewMaxLifetime cuts the lifetimes of links to the VM (preview.maxExpiresInSeconds). Default: preview.MaxLifetime.
	PreviewMaxLifetime Duration `json:"previewMaxLifetime,omitzero"`

	// CACertificate is a file, absolute, that is read at each start: see vm.Config.
	CACertificate   string    `json:"caCertificate,omitempty"`
	NoNewPrivileges bool      `json:"noNewPrivileges,omitempty"`
	Sockets         []string  `json:"sockets,omitempty"` // as vm.ParseUnixSocket reads them, the host's path absolute
	Sidecars        []Sidecar `json:"sidecars,omitempty"`

	// DiskSize is that of the disk which keeps the VM's files, in bytes, when it is made. Default: 10 GiB; negative: no
	// disk, nothing stays.
	DiskSize int64 `json:"diskSize,omitempty"`

	// IdleTimeout stops a VM without clients and running jobs. Default: none.
	IdleTimeout Duration `json:"idleTimeout,omitzero"`
	// MaxLifetime stops the VM so long after the daemon's start. Default: none.
	MaxLifetime Duration `json:"maxLifetime,omitzero"`

	// Metrics is the address of this host's loopback on which /metrics is served. Default: not at all; port 0: any.
	Metrics string `json:"metrics,omitempty"`

	Labels   map[string]string `json:"labels,omitempty"`
	StoreDir string            `json:"storeDir,omitempty"` // of images; default: images.DefaultDir
	Debug    bool              `json:"debug,omitempty"`    // the log has debug lines

	// ColdBoot is vm.Config's.
	ColdBoot bool `json:"coldBoot,omitempty"`
	// KernelArguments are added to the kernel's command line.
	KernelArguments string `json:"kernelArguments,omitempty"`
}

// Network is vm.Network as JSON.
type Network struct {
	Disabled     bool             `json:"disabled,omitempty"`
	Policy       egress.Policy    `json:"policy,omitzero"`
	HostPorts    []uint16         `json:"hostPorts,omitempty"`
	Forwards     []string         `json:"forwards,omitempty"` // as nat.ParseForward reads them
	Resolvers    []netip.AddrPort `json:"resolvers,omitempty"`
	Search       []string         `json:"search,omitempty"`
	Subnet       netip.Prefix     `json:"subnet,omitzero"`
	DisableIPv6  bool             `json:"disableIPv6,omitempty"`
	MTU          int              `json:"mtu,omitempty"`
	SendLimit    int64            `json:"sendLimit,omitempty"`    // bytes/s
	ReceiveLimit int64            `json:"receiveLimit,omitempty"` // bytes/s
	Capture      string           `json:"capture,omitempty"`      // file for a pcap of every frame, absolute

	// Log is a file, absolute, to which every event is appended, with processes. Default: none. In the VM's directory the last
	// events are kept anyway, see Store.NetworkLogPath.
	Log string `json:"log,omitempty"`
}

// Access is vm.Access as JSON.
type Access struct {
	ListenAllow         []vm.PortRange `json:"listenAllow,omitempty"`
	ListenDeny          []vm.PortRange `json:"listenDeny,omitempty"`
	ConnectAllow        []vm.PortRange `json:"connectAllow,omitempty"`
	ConnectDeny         []vm.PortRange `json:"connectDeny,omitempty"`
	LoopbackExemptPorts []uint16       `json:"loopbackExemptPorts,omitempty"`
}

// VM is the same for a VM.
func (a Access) VM() vm.Access {
	return vm.Access{
		Listen:              vm.PortPolicy{Allow: a.ListenAllow, Deny: a.ListenDeny},
		Connect:             vm.PortPolicy{Allow: a.ConnectAllow, Deny: a.ConnectDeny},
		LoopbackExemptPorts: a.LoopbackExemptPorts,
	}
}

// Duration is a time.Duration that JSON spells like "90s".
type Duration time.Duration

// MarshalText is time.Duration's String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText is time.ParseDuration.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = Duration(parsed)
	return err
}

// Check finds what can be found without starting anything.
func (c Config) Check() error {
	for _, text := range c.Mounts {
		spec, err := mount.Parse(text)
		if err != nil {
			return err
		}
		if !filepath.IsAbs(spec.HostPath) {
			return fmt.Errorf("mount %q: the host's path must be absolute, for the daemon has another working directory", text)
		}
	}
	for _, text := range c.Sockets {
		socket, err := vm.ParseUnixSocket(text)
		if err != nil {
			return err
		}
		if !strings.HasPrefix(text, socket.Host) {
			return fmt.Errorf("socket %q: the host's path must be absolute, for the daemon has another working directory", text)
		}
	}
	if err := checkSidecars(c.Sidecars); err != nil {
		return err
	}
	for _, text := range c.Network.Forwards {
		if _, err := nat.ParseForward(text); err != nil {
			return err
		}
	}
	for what, path := range map[string]string{"capture file": c.Network.Capture, "network log": c.Network.Log, "CA certificate": c.CACertificate} {
		if path != "" && !filepath.IsAbs(path) {
			return fmt.Errorf("%s %q: the path must be absolute", what, path)
		}
	}
	if c.IdleTimeout < 0 || c.MaxLifetime < 0 {
		return errors.New("idle time-out and maximum lifetime: want a positive time, or 0 for none")
	}
	if c.PreviewMaxLifetime < 0 || time.Duration(c.PreviewMaxLifetime) > preview.MaxLifetime {
		return fmt.Errorf("the longest lifetime of previews: want up to %v, or 0 for that", preview.MaxLifetime)
	}
	if err := c.Access.VM().Check(); err != nil {
		return err
	}
	if err := checkMetrics(c.Metrics); err != nil {
		return err
	}
	config, err := c.vmConfig()
	if err != nil {
		return err
	}
	return config.Network.Check()
}

func readConfig(path string) (c Config, err error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, err
	}
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil {
		return c, fmt.Errorf("read a VM's configuration: %s: %w", path, err)
	}
	return c, nil
}

func writeConfig(path string, c Config) error {
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("write a VM's configuration: %w", err)
	}
	return writeFile(path, append(b, '\n'))
}

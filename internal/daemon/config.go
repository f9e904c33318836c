package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"agentvm/egress"
	"agentvm/images"
	"agentvm/internal/atomicfile"
	"agentvm/internal/hostpath"
	"agentvm/internal/mount"
	"agentvm/internal/preview"
	"agentvm/internal/private"
	"agentvm/nat"
	"agentvm/vm"
)

// Config is a VM's configuration, as config.json keeps it. The zero value is vm.Config's, with a disk that is kept. Its own Mounts, Network,
// Access and Sockets take the places of the vm.Config's.
type Config struct {
	vm.Config

	Mounts  []string `json:"mounts,omitempty"` // as mount.Parse reads them, the host's path absolute
	Network Network  `json:"network,omitzero"`

	// HostPaths identifies the files to which the host's paths in this Config led when they were configured. The VM's start refuses a
	// path that leads to another file by then. Store.Start adds the missing ones; a caller that configures a path anew calls Forget.
	HostPaths []hostpath.Identity `json:"hostPaths,omitempty"`

	Access Access `json:"access,omitzero"`

	// PreviewMaxLifetime cuts the lifetimes of links to the VM (preview.maxExpiresInSeconds). Default: preview.MaxLifetime.
	PreviewMaxLifetime Duration `json:"previewMaxLifetime,omitzero"`

	// CACertificate is a file, absolute, that is read at each start: see vm.Config.
	CACertificate string    `json:"caCertificate,omitempty"`
	Sockets       []string  `json:"sockets,omitempty"` // as vm.ParseUnixSocket reads them, the host's path absolute
	Sidecars      []Sidecar `json:"sidecars,omitempty"`

	// DiskSize is the size, in bytes, of the disk that keeps the VM's files, used when the disk is made. Default: 10 GiB; negative: no
	// disk, and no file is kept.
	DiskSize int64 `json:"diskSize,omitempty"`

	// IdleTimeout stops a VM without clients and running jobs. Default: none.
	IdleTimeout Duration `json:"idleTimeout,omitzero"`
	// MaxLifetime stops the VM this long after the daemon's start. Default: none.
	MaxLifetime Duration `json:"maxLifetime,omitzero"`

	// Metrics is the loopback address of the host at which /metrics is served. Default: not served; port 0: any.
	Metrics string `json:"metrics,omitempty"`

	Labels map[string]string `json:"labels,omitempty"`
	Debug  bool              `json:"debug,omitempty"` // the log has debug lines
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

// Check validates c without starting anything.
func (c Config) Check() error {
	for field, set := range map[string]bool{
		"Mounts": len(c.Config.Mounts) > 0, "Network": !reflect.ValueOf(c.Config.Network).IsZero(), "Access": !reflect.ValueOf(c.Config.Access).IsZero(),
		"UnixSockets": len(c.Config.UnixSockets) > 0, "CACertificate": len(c.Config.CACertificate) > 0, "Disk": c.Config.Disk != "", "Kernel": len(c.Config.Kernel) > 0,
	} {
		if set {
			return fmt.Errorf("vm.Config.%s is for a VM of this process: the configuration of a daemon's VM has its own field, or none", field)
		}
	}
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

// Forget accepts, for paths, whatever they lead to at the next start.
func (c *Config) Forget(paths ...string) {
	c.HostPaths = slices.DeleteFunc(slices.Clone(c.HostPaths), func(i hostpath.Identity) bool { return slices.Contains(paths, i.Path) })
}

// ForgetMounts is Forget for the directories of the mounts.
func (c *Config) ForgetMounts() {
	for _, text := range c.Mounts {
		if spec, err := mount.Parse(text); err == nil {
			c.Forget(spec.HostPath)
		}
	}
}

// pin adds to HostPaths what newly configured paths lead to.
func (c *Config) pin() error {
	config, err := c.vmConfig()
	if err != nil {
		return err
	}
	list, err := config.Pin()
	if err != nil {
		return err
	}
	guard, err := c.guard()
	if err != nil {
		return err
	}
	for _, path := range []string{c.CACertificate, c.Network.Capture, c.Network.Log} {
		if path == "" {
			continue
		}
		place, err := guard.OpenNew(path, hostpath.Find(c.HostPaths, path))
		if err != nil {
			return err
		}
		list = append(list, place.Identity)
		_ = place.Close()
	}
	c.HostPaths = list
	return nil
}

// guard returns a guard that knows which directories machines could change.
func (c Config) guard() (*hostpath.Guard, error) {
	dir := c.StoreDir
	if dir == "" {
		var err error
		if dir, err = images.DefaultDir(); err != nil {
			return nil, err
		}
	}
	return hostpath.Known(dir)
}

// maxHostFile bounds files that are read into memory, in bytes.
const maxHostFile = 16 << 20

func (c Config) readHostFile(path string) ([]byte, error) {
	guard, err := c.guard()
	if err != nil {
		return nil, err
	}
	return guard.ReadFile(path, hostpath.Find(c.HostPaths, path), maxHostFile)
}

// maxConfig bounds a configuration's file, in bytes.
const maxConfig = 16 << 20

func readConfig(path string) (c Config, err error) {
	b, err := private.ReadFile(path, maxConfig)
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
	return atomicfile.Write(path, append(b, '\n'))
}

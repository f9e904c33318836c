package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"agentvm/egress"
	"agentvm/images"
	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/hostpath"
	"agentvm/internal/host/private"
	"agentvm/internal/network/preview"
	"agentvm/internal/settings"
	"agentvm/nat"
	"agentvm/vm"
)

// Config is a VM's configuration, as config.json keeps it: a vm.Config without what only the VM's process has, and what its daemon does. The zero
// value is vm.Config's, with a disk that is kept. Paths of the host are absolute, for the daemon has another working directory.
type Config struct {
	vm.Config

	// HostPaths identifies the files to which the host's paths in this Config led when they were configured. The VM's start refuses a
	// path that leads to another file by then. Store.Start adds the missing ones; a caller that configures a path anew calls Forget.
	HostPaths []hostpath.Identity `json:"hostPaths,omitempty"`

	// PreviewMaxLifetime cuts the lifetimes of links to the VM (preview.maxExpiresInSeconds). Default: preview.MaxLifetime.
	PreviewMaxLifetime Duration `json:"previewMaxLifetime,omitzero"`

	// CAFile has the certificates of vm.Config.CACertificate. It is read at each start.
	CAFile string `json:"caCertificate,omitempty"`
	// CaptureFile gets a pcap of every frame. Default: none.
	CaptureFile string `json:"-"` // network.capture, see MarshalJSON
	// NetworkLog is a file to which every event is appended, with processes. Default: none. In the VM's directory the last events are
	// kept anyway, see Store.NetworkLogPath.
	NetworkLog string `json:"-"` // network.log

	Sidecars []Sidecar `json:"sidecars,omitempty"`

	// DiskSize is the size, in bytes, of the disk that keeps the VM's files, used when the disk is made. Default: 10 GiB; negative: no
	// disk, and no file is kept.
	DiskSize int64 `json:"diskSize,omitempty"`

	// IdleTimeout stops a VM without clients and running jobs. Default: none.
	IdleTimeout Duration `json:"idleTimeout,omitzero"`
	// HibernateAfter saves a VM without clients, running jobs and connections, and ends its daemon, until a client connects, or anyone to its
	// ports or previews. Default: never.
	HibernateAfter Duration `json:"hibernateAfter,omitzero"`
	// MaxLifetime stops the VM this long after the daemon's start. Default: none.
	MaxLifetime Duration `json:"maxLifetime,omitzero"`

	// Metrics is the loopback address of the host at which /metrics is served. Default: not served; port 0: any.
	Metrics string `json:"metrics,omitempty"`

	// Parent is what the VM continues from: "vm NAME" or "snapshot NAME". Empty: it has booted.
	Parent string `json:"parent,omitempty"`

	// Restart says when a VM that has ended by itself is started again: its guest has powered off or crashed, or its daemon was killed and
	// agentvm service runs. A guest that reboots always is. Default: Never.
	Restart RestartPolicy `json:"restart,omitempty"`

	// ChangedFrom has what the VM was started with, if that was changed while it ran: see AsStarted. The daemon sets it.
	ChangedFrom *Changeable `json:"changedFrom,omitempty"`

	// Cold has a VM that is hibernated give up its memory in this start, and boot from its disk. It is not kept.
	Cold bool `json:"-"`

	Labels map[string]string `json:"labels,omitempty"`
	Debug  bool              `json:"debug,omitempty"` // the log has debug lines
}

// Changeable has the settings that can be changed while a VM runs.
type Changeable struct {
	Policy         egress.Policy `json:"policy,omitzero"`
	Forwards       []nat.Forward `json:"forwards,omitempty"`
	IdleTimeout    Duration      `json:"idleTimeout,omitzero"`
	HibernateAfter Duration      `json:"hibernateAfter,omitzero"`
	MaxLifetime    Duration      `json:"maxLifetime,omitzero"`
	Restart        RestartPolicy `json:"restart,omitempty"`
}

// AsStarted is the configuration without what was changed while the VM ran.
func (c Config) AsStarted() Config {
	if was := c.ChangedFrom; was != nil {
		c.Network.Policy, c.Network.Forwards = was.Policy, was.Forwards
		c.IdleTimeout, c.HibernateAfter, c.MaxLifetime, c.Restart = was.IdleTimeout, was.HibernateAfter, was.MaxLifetime, was.Restart
		c.ChangedFrom = nil
	}
	return c
}

// Settings is where package settings sets what c has.
func (c *Config) Settings() settings.Config {
	return settings.Config{
		Config: &c.Config, CAFile: &c.CAFile, CaptureFile: &c.CaptureFile, NetworkLog: &c.NetworkLog, Metrics: &c.Metrics, Restart: (*string)(&c.Restart),
		DiskSize: &c.DiskSize, Labels: &c.Labels,
		IdleTimeout: (*time.Duration)(&c.IdleTimeout), HibernateAfter: (*time.Duration)(&c.HibernateAfter), MaxLifetime: (*time.Duration)(&c.MaxLifetime),
	}
}

// configText is Config as JSON, where the network has its files.
type configText struct {
	plainConfig
	Network networkText `json:"network,omitzero"`
}

type (
	plainConfig Config
	networkText struct {
		vm.Network
		Capture string `json:"capture,omitempty"`
		Log     string `json:"log,omitempty"`
	}
)

// MarshalJSON writes what config.json has.
func (c Config) MarshalJSON() ([]byte, error) {
	return json.Marshal(configText{plainConfig(c), networkText{c.Network, c.CaptureFile, c.NetworkLog}})
}

// UnmarshalJSON reads it.
func (c *Config) UnmarshalJSON(b []byte) error {
	t := configText{plainConfig: plainConfig(*c)}
	err := json.Unmarshal(b, &t)
	*c = Config(t.plainConfig)
	c.Network, c.CaptureFile, c.NetworkLog = t.Network.Network, t.Network.Capture, t.Network.Log
	return err
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

// Validate returns what is wrong with c, as the start of a VM would, without starting anything.
func (c Config) Validate() error {
	n := c.Network
	for field, set := range map[string]bool{
		"CACertificate": len(c.CACertificate) > 0, "Disk": c.Disk != "", "HostCommands": len(c.HostCommands) > 0, "Kernel": len(c.Kernel) > 0, "Recorder": c.Recorder != nil,
		"Network.Capture": n.Capture != nil, "Network.Audit": n.Audit != nil, "Network.AuditProcesses": n.AuditProcesses, "Network.Dial": n.Dial != nil, "Network.Listen": n.Listen != nil,
	} {
		if set {
			return fmt.Errorf("vm.Config.%s is for a VM of this process: the configuration of a daemon's VM has its own field, or none", field)
		}
	}
	for _, s := range c.Secrets {
		path, isFile := strings.CutPrefix(s.Source, "file:")
		switch {
		case s.Value != "":
			return fmt.Errorf("secret %s: a daemon's VM gets a Source and no Value, which would have to be written down", s.Name)
		case isFile && !filepath.IsAbs(path):
			return fmt.Errorf("secret %s: %s: the path must be absolute, for the daemon has another working directory", s.Name, s.Source)
		}
	}
	for _, m := range c.Mounts {
		if !filepath.IsAbs(m.HostPath) {
			return fmt.Errorf("mount %q: the host's path must be absolute, for the daemon has another working directory", m)
		}
	}
	for _, socket := range c.UnixSockets {
		if !filepath.IsAbs(socket.Host) {
			return fmt.Errorf("socket %q: the host's path must be absolute, for the daemon has another working directory", socket)
		}
	}
	if vm.IsModule(c.Image) {
		return fmt.Errorf("image %s: %w", c.Image, vm.ErrModule)
	}
	if err := checkSidecars(c.Sidecars); err != nil {
		return err
	}
	for what, path := range map[string]string{"capture file": c.CaptureFile, "network log": c.NetworkLog, "CA certificate": c.CAFile} {
		if path != "" && !filepath.IsAbs(path) {
			return fmt.Errorf("%s %q: the path must be absolute", what, path)
		}
	}
	if err := c.checkHibernation(); err != nil {
		return err
	}
	if c.IdleTimeout < 0 || c.MaxLifetime < 0 {
		return errors.New("idle time-out and maximum lifetime: want a positive time, or 0 for none")
	}
	if c.PreviewMaxLifetime < 0 || time.Duration(c.PreviewMaxLifetime) > preview.MaxLifetime {
		return fmt.Errorf("the longest lifetime of previews: want up to %v, or 0 for that", preview.MaxLifetime)
	}
	if !validRestart(c.Restart) {
		return fmt.Errorf("restart %.40q: want always, on-failure or never", c.Restart)
	}
	if err := checkMetrics(c.Metrics); err != nil {
		return err
	}
	config, err := c.vmConfig()
	if err != nil {
		return err
	}
	return config.Validate()
}

// checkHibernation returns why the VM cannot be hibernated as HibernateAfter says.
func (c Config) checkHibernation() error {
	if c.HibernateAfter < 0 {
		return errors.New("time to hibernation: want a positive time, or 0 for none")
	}
	return nil
}

// Forget accepts, for paths, whatever they lead to at the next start.
func (c *Config) Forget(paths ...string) {
	c.HostPaths = slices.DeleteFunc(slices.Clone(c.HostPaths), func(i hostpath.Identity) bool { return slices.Contains(paths, i.Path) })
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
	for _, path := range []string{c.CAFile, c.CaptureFile, c.NetworkLog} {
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
		if err = json.Unmarshal(b, &c); err != nil {
			err = fmt.Errorf("it is damaged: %w: remove it, and agentvm start %s, with the VM's flags, boots its disk", err, filepath.Base(filepath.Dir(path)))
		}
	}
	if err != nil {
		return c, fmt.Errorf("read a VM's configuration: %s: %w", path, err)
	}
	return c, nil
}

func writeConfig(path string, c Config) error {
	if err := nameConfig(path, c); err != nil {
		return err
	}
	return atomicfile.SyncFolder(filepath.Dir(path))
}

// nameConfig is writeConfig that leaves it to the caller to make the file's name durable: the folder's sync.
func nameConfig(path string, c Config) error {
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("write a VM's configuration: %w", err)
	}
	f, err := atomicfile.Create(path)
	if err != nil {
		return err
	}
	defer f.Discard()
	if _, err = f.Write(append(b, '\n')); err == nil {
		err = f.Flush()
	}
	if err != nil {
		return err
	}
	return f.Rename()
}

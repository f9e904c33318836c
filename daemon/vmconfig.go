package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"agentvm/disk"
	"agentvm/images"
	"agentvm/mount"
	"agentvm/nat"
	"agentvm/vm"
)

// vmConfig is the part of c that is a VM's own. What is open, like files and loggers, is bootVM's.
func (c Config) vmConfig() (v vm.Config, err error) {
	v = vm.Config{
		Image: c.Image, Memory: c.Memory, Hostname: c.Hostname, Env: c.Env, StoreDir: c.StoreDir,
		KernelArguments: c.KernelArguments, NoNewPrivileges: c.NoNewPrivileges, ColdBoot: c.ColdBoot,
		Access: c.Access.VM(),
	}
	if c.CACertificate != "" {
		if v.CACertificate, err = os.ReadFile(c.CACertificate); err != nil {
			return v, fmt.Errorf("CA certificate: %w", err)
		}
	}
	for _, text := range c.Sockets {
		socket, err := vm.ParseUnixSocket(text)
		if err != nil {
			return v, err
		}
		v.UnixSockets = append(v.UnixSockets, socket)
	}
	for _, text := range c.Mounts {
		spec, err := mount.Parse(text)
		if err != nil {
			return v, err
		}
		v.Mounts = append(v.Mounts, spec)
	}
	v.Network, err = c.Network.vmNetwork()
	return v, err
}

func (n Network) vmNetwork() (v vm.Network, err error) {
	v = vm.Network{
		Disabled: n.Disabled, Policy: n.Policy, HostPorts: n.HostPorts, Resolvers: n.Resolvers, Search: n.Search,
		Subnet: n.Subnet, DisableIPv6: n.DisableIPv6, MTU: n.MTU, SendLimit: n.SendLimit, ReceiveLimit: n.ReceiveLimit,
	}
	for _, text := range n.Forwards {
		f, err := nat.ParseForward(text)
		if err != nil {
			return v, err
		}
		v.Forwards = append(v.Forwards, f)
	}
	return v, nil
}

// bootVM is the bootFunc of Run.
func bootVM(ctx context.Context, b booting) (VM, error) {
	config, err := b.config.vmConfig()
	if err != nil {
		return nil, err
	}
	if b.restore == nil || !b.restore.SameIdentity { // which has the saved name unless there is one
		config.Hostname = cmp.Or(config.Hostname, b.name)
	}
	config.Logger = b.logger
	config.Progress = tellProgress(b.progress)
	if b.config.DiskSize >= 0 {
		config.Disk = b.paths.disk()
	}
	if config.Disk != "" && b.restore == nil {
		if err := makeDisk(config.Disk, b.config.DiskSize); err != nil {
			return nil, err
		}
	}
	files, err := openFiles(b, &config.Network)
	if err != nil {
		return nil, err
	}
	v, err := b.restore.start(ctx, config)
	if err != nil {
		return nil, errors.Join(err, files.Close())
	}
	return &machine{VM: v, config: b.config, files: files}, nil
}

// machineFiles are what a VM's network is written to.
type machineFiles struct {
	capture *captureFile
	audit   *auditLog
}

// openFiles opens them and has the network write there.
func openFiles(b booting, n *vm.Network) (f *machineFiles, err error) {
	f = &machineFiles{}
	if n.Disabled {
		return f, nil
	}
	if f.capture, err = openCapture(b.config.Network.Capture); err != nil {
		return nil, err
	}
	if f.capture != nil {
		n.Capture = f.capture
	}
	if f.audit, err = openAudit(b.paths.audit(), b.config.Network.Log, b.logger); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	n.Audit, n.AuditProcesses = f.audit.write, b.config.Network.Log != ""
	f.audit.write(StartEvent(*n))
	return f, nil
}

// Close closes them, after the VM.
func (f *machineFiles) Close() error { return errors.Join(f.capture.Close(), f.audit.Close()) }

// makeDisk makes a disk unless there is one. It gets its name when it is complete; this process has the VM's lock.
func makeDisk(path string, size int64) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	partial := path + ".new"
	if err := os.Remove(partial); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := disk.Create(partial, size); err != nil {
		return err
	}
	return os.Rename(partial, path)
}

// captureFile is a file that may be missing.
type captureFile struct{ *os.File }

var _ io.WriteCloser = (*captureFile)(nil)

func openCapture(path string) (*captureFile, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("packet capture: %w", err)
	}
	return &captureFile{f}, nil
}

// Close closes the file, if there is one.
func (f *captureFile) Close() error {
	if f == nil {
		return nil
	}
	return f.File.Close()
}

// progressTime is how often a stage says how far it has come.
const progressTime = time.Second

// tellProgress makes lines of how an image is got: one at a stage's beginning, one a second, one at its end.
func tellProgress(tell func(slog.Level, string)) images.ProgressFunc {
	var mu sync.Mutex
	var stage images.Stage
	var last time.Time
	return func(p images.Progress) {
		mu.Lock()
		defer mu.Unlock()
		ended := p.Total > 0 && p.Done == p.Total
		if p.Stage == stage && time.Since(last) < progressTime && !ended {
			return
		}
		stage, last = p.Stage, time.Now()
		text := fmt.Sprintf("%s %s: %.1f MB", p.Stage, p.Name, float64(p.Done)/1e6)
		if p.Total > 0 {
			text += fmt.Sprintf(" of %.1f MB", float64(p.Total)/1e6)
		}
		tell(slog.LevelInfo, text)
	}
}
